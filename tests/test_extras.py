"""What only an extra brings is not needed without it, and says what to install."""

import pytest

import kbpjax as kbp
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


def test_large_modules_are_attributes():
    assert {"plotting", "baselines", "estimator"} < set(dir(kbp))
    assert kbp.plotting.plot_belief and kbp.baselines.discrete.run
    with pytest.raises(AttributeError, match="module 'kbpjax' has no attribute 'nonsense'"):
        _ = kbp.nonsense


def test_large_modules_are_imported_when_first_used():
    code = WITHOUT.format(packages=("sklearn",)) + (
        "import kbpjax as kbp; lazy = {'kbpjax.plotting', 'kbpjax.baselines', 'kbpjax.estimator'};"
        "assert not lazy & set(sys.modules); kbp.plotting.plot_belief, kbp.baselines.discrete;"
        "assert not hasattr(kbp, 'estimator') and 'estimator' in dir(kbp); kbp.estimator"
    )
    outcome = python("-c", code, **SHORT)
    said = outcome.stderr.strip().split("\n")[-1]
    assert said.startswith("AttributeError: kbpjax.estimator: this needs scikit-learn. Install it"), outcome.stderr


@pytest.mark.parametrize(
    "package, extra, call",
    [
        ("sklearn", "estimator", "import kbpjax.estimator"),
        (
            "matplotlib",
            "plot",
            "x = jax.numpy.ones((1, 2, 2)); s = kbp.run(kbp.Operators(x, x), kbp.chain_graph(2)); "
            "kbp.plotting.plot_residuals(s)",
        ),
        ("networkx", "plot", "kbp.chain_graph(2).to_networkx()"),
    ],
)
@pytest.mark.slow
def test_what_is_missing_is_named(package, extra, call):
    code = WITHOUT.format(packages=(package,)) + "import jax, kbpjax as kbp; " + call
    outcome = python("-c", code, **SHORT)
    assert outcome.returncode == 1
    said = outcome.stderr.strip().split("\n")[-1]
    assert said.startswith("ImportError: this needs") and said.endswith(f"pip install 'kbpjax[{extra}]'")


def test_what_is_there_is_imported():
    assert need("json", "plot").dumps([]) == "[]"
