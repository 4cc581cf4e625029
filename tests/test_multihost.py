"""Two processes of this machine give the image that one gives; a process that fails is shown and takes all with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def multihost(*arguments, out):
    """Run the experiment as a program, with the default settings of jax but for quick compilation."""
    command = [sys.executable, "-m", "experiments.multihost", *map(str, arguments), "--out", str(out)]
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=170)


@pytest.mark.slow
def test_two_processes_give_the_same_image_as_one(tmp_path):
    outcome = multihost("--quick", "--side", 12, "--levels", 5, "--iters", 6, out=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    results = json.loads((tmp_path / "multihost.json").read_text())
    two, one = results["rows"]
    assert (two["processes"], two["devices"], one["processes"]) == (2, 2, 1)
    assert results["largest_difference"] < 1e-2  # of 255 gray levels
    assert two["exchanged_kib"] == two["messages_kib"] * 2 * 12 / (2 * 2 * 12 * 11)  # one row of pixels each way
    assert two["rmse_mean"] < two["noisy"]
    assert "Largest difference" in outcome.stdout
    assert not (tmp_path / "multihost.npz").exists()


@pytest.mark.slow
def test_process_that_fails_is_shown_and_stops_the_others(tmp_path):
    outcome = multihost("--side", 12, "--levels", 300, out=tmp_path)
    assert outcome.returncode == 1
    assert "ended with status 2" in outcome.stderr and "levels" in outcome.stderr and "300" in outcome.stderr
    assert outcome.stderr.rstrip().endswith("not all processes ended well; what they wrote is above.")


@pytest.mark.slow
def test_wrong_arguments_give_one_line_and_status_2(tmp_path):
    outcome = multihost("--side", 3, out=tmp_path)
    assert outcome.returncode == 2
    assert outcome.stderr == "error: --side: must be at least 4; got 3. Ask for more.\n"
