"""What only an extra brings is not needed without it, and says what to install."""

import pytest

from kbpjax._misc import need
from tests.programs import SHORT, python

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({packages!r})); "
OPTIONAL = ("matplotlib", "networkx", "sklearn", "PIL", "tqdm", "snowballstemmer", "rapidfuzz", "skimage", "bm3d")


def test_everything_but_the_estimator_is_imported_without_extras():
    code = (
        WITHOUT.format(packages=OPTIONAL)
        + "import kbpjax, kbpjax.baselines, kbpjax.io, kbpjax.plotting, kbpjax.__main__"
    )
    assert python("-W", "error", "-c", code, **SHORT).returncode == 0


@pytest.mark.parametrize(
    "package, extra, call",
    [
        ("sklearn", "estimator", "import kbpjax.estimator"),
        (
            "matplotlib",
            "plot",
            "from kbpjax import plotting; plotting.plot_residuals(kbp.Solution(*[jax.numpy.ones((2, 2))] * 5))",
        ),
        ("networkx", "plot", "kbp.chain_graph(2).to_networkx()"),
    ],
)
def test_what_is_missing_is_named(package, extra, call):
    code = WITHOUT.format(packages=(package,)) + "import jax, kbpjax as kbp; " + call
    outcome = python("-c", code, **SHORT)
    assert outcome.returncode == 1
    said = outcome.stderr.strip().split("\n")[-1]
    assert said.startswith("ImportError: this needs") and said.endswith(f"pip install 'kbpjax[{extra}]'")


def test_what_is_there_is_imported():
    assert need("json", "plot").dumps([]) == "[]"
