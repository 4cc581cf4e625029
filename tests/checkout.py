"""What a checkout has and the source archive of a release lacks."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
needs_results = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "results").exists(), reason="results and outputs of notebooks are in a checkout only"
)
