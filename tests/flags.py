"""Flags of XLA with which short programs are compiled quickly rather than well, here and in processes of their own.

XLA's newer code generator and its split into parallel parts take twice as long for programs as short as these
(jax 0.10.2: 5.8 CPU seconds for 300 programs of one operation, 12.8 with both).
"""

from importlib.metadata import version

# Releases after 0.11.0 no longer have the first flag, and end the process for it.
HAS_EMITTERS = version("jaxlib").startswith(("0.10.", "0.11.0"))
QUICK = ("--xla_cpu_use_fusion_emitters=false " if HAS_EMITTERS else "") + "--xla_cpu_parallel_codegen_split_count=1"
