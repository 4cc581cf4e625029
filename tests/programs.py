"""Programs of the project as a user runs them: in a process of their own, with the default settings of JAX."""

import importlib
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from tests.flags import QUICK

ROOT = Path(__file__).resolve().parent.parent
DATA = os.environ.get("KBPJAX_DATA")
SETTINGS = {**os.environ, "MPLBACKEND": "Agg", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SHORT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true", "XLA_FLAGS": QUICK}
"""For programs that take longer to compile than to run."""


def python(*arguments, folder=ROOT, **environment):
    """Run Python with arguments in a folder; return what it printed and its exit status."""
    command = [sys.executable, *map(str, arguments)]
    settings = {**SETTINGS, **environment}
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def experiment(name, *arguments, **environment):
    """Run an experiment."""
    return python("-m", f"experiments.{name}", *arguments, **environment)


def inside(name, *arguments, **environment):
    """Run an experiment in this process, for arguments that it refuses; return what `experiment` would."""
    out, err = io.StringIO(), io.StringIO()
    module = importlib.import_module(f"experiments.{name}.run")
    with mock.patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        status = module.main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def needs(folder):
    """Skip a test where a folder of the data is missing."""
    missing = DATA is None or not (Path(DATA) / folder).exists()
    return pytest.mark.skipif(missing, reason=f"needs the data in {folder}")
