"""Strict settings for every test: 64 bit available, no silent promotion of types or ranks.

With KBPJAX_CHECKED=1, as `make test-examples` sets it, the shapes and types that the package's functions declare are
checked at each call, by the examples of all docstrings. Other tests go without: the checks cost a quarter of the CPU
seconds, and refuse some wrong arguments before the package can.

Most of the time goes into compiling short programs, so these are compiled quickly rather than well, and kept on disk
between runs (`.pytest_cache/jax`, shared by the workers; `make clean` removes it). Programs that the tests start as
processes of their own run as a user's do (`tests.programs`).
"""

import contextlib
import gc
import os
import shutil
from pathlib import Path

from tests.flags import QUICK

os.environ["XLA_FLAGS"] = f"{QUICK} --xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ.get(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

checked = os.environ.get("KBPJAX_CHECKED")
with jaxtyping.install_import_hook("kbpjax", "beartype.beartype") if checked else contextlib.nullcontext():
    import kbpjax as kbpjax

gc.set_threshold(200_000, 50, 100)  # tracing makes many short-lived objects: 13 % of the CPU seconds (jax 0.10.2)

CACHE = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
LARGEST_CACHE, LARGEST_PROCESS = 2 * 2**30, 3 * 2**30  # bytes


def pytest_configure(config):
    """Begin with an empty cache where old programs have piled up."""
    full = CACHE.exists() and sum(file.stat().st_size for file in CACHE.iterdir()) > LARGEST_CACHE
    if full and not hasattr(config, "workerinput"):
        shutil.rmtree(CACHE)


def pytest_collection_modifyitems(items):
    """Mark the examples in docstrings as slow, for each compiles programs of its own; and the folder of experiments."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("slow")
        elif item.path.parent == Path(__file__).parent / "experiments":
            item.add_marker("experiments")


def memory():
    """Bytes that this process holds; infinite where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else float("inf")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """Drop compiled programs once they have added up to gigabytes."""
    yield
    if memory() > LARGEST_PROCESS:
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request):
    """Compile in half of the time, except for a test file that says `OPTIMISED = True`: the programs are short."""
    before = jax.config.read("jax_disable_most_optimizations")
    optimized = getattr(getattr(request.node, "obj", None), "OPTIMISED", False)
    jax.config.update("jax_disable_most_optimizations", before or not optimized)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
