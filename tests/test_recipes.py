"""The recipes of CONTRIBUTING.md, followed: a kernel is added to a copy of the package, and a schedule written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

ROOT = Path(__file__).resolve().parent.parent

CAUCHY = '''class Cauchy(Kernel):
    """The Cauchy kernel 1 / (1 + ||x - y||^2 / bandwidth^2).

    Args:
        bandwidth: length scale > 0, in the units of the points.

    Raises:
        ValueError: bandwidth is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.kernels.Cauchy(2.0)(jnp.array(1.0), jnp.array(3.0)))
        0.5
    """

    bandwidth: Float[Array, ""]

    def __init__(self, bandwidth: ScalarLike):
        self.bandwidth = positive_number("bandwidth", bandwidth)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return 1 / (1 + ||x - y||^2 / bandwidth^2)."""
        return 1 / (1 + jnp.sum(_scaled(x, y, self.bandwidth) ** 2))


'''

EDITS = (  # file, the text that it stands before, and what is added
    ("kbpjax/kernels/euclidean.py", "class Laplace(Kernel):", CAUCHY),
    ("kbpjax/kernels/__init__.py", "    Laplace,\n", "    Cauchy,\n"),
    ("kbpjax/kernels/__init__.py", '    "Laplace",\n', '    "Cauchy",\n'),
    (
        "tests/kernels/test_kernels.py",
        '    "linear": (kbp.Linear()',
        '    "cauchy": (kbp.kernels.Cauchy(0.8), lambda x, y: 1 / (1 + np.sum((x - y) ** 2) / 0.64)),\n',
    ),
    (".ci/docs_reference.py", "kernels.Laplace kernels.Matern", "kernels.Cauchy "),
    ("tests/fuzz/recipes.py", 'recipe("kernels.Laplace"', 'recipe("kernels.Cauchy", kernels.Cauchy, 1.0)\n'),
    (
        "tests/fuzz/recipes.py",
        '    "Laplace": (kernels.Laplace(1.0)',
        '    "Cauchy": (kernels.Cauchy(1.0), VECTORS),\n',
    ),
)


@pytest.mark.slow
def test_a_kernel_is_added(tmp_path):
    for folder in ("kbpjax", "tests", ".ci", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.kbp"))
    for file in ("CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    for file, before, added in EDITS:
        path = tmp_path / file
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, (file, before)
        path.write_text(text.replace(before, added + before), encoding="utf-8")
    files = [
        "tests/kernels/test_kernels.py",
        "tests/test_examples.py",
        "tests/test_public.py",
        "tests/fuzz/test_fuzz.py",
    ]
    asked = ["-m", "not slow", "-q", "-p", "no:cacheprovider", "-k", "cauchy or public or name or recipe", *files]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *asked], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    code = "import docs_links; assert docs_links.anchors()['kernels.Cauchy']"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / ".ci", env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


class Halves(kbp.Synchronous):
    """Synchronous iterations in which a random half of the messages stays as it was."""

    seed: int = 0

    def init(self, problem):
        """Return the random key of the first iteration."""
        return super().init(problem), jax.random.key(self.seed)

    def sweep(self, problem, state, messages, damping):
        """Do one iteration; return the messages, the residual of the old ones and the next state."""
        inner, key = state
        key, now = jax.random.split(key)
        sent, residual, inner = super().sweep(problem, inner, messages, damping)
        chosen = jax.random.bernoulli(now, 0.5, messages.shape[1:])
        return jnp.where(chosen, sent, messages), residual, (inner, key)


def test_a_schedule_is_written():
    table = jnp.array([[[2.0, 1.0], [1.0, 2.0]]])
    model, graph = kbp.Operators(jnp.eye(2)[None], table), kbp.grid_graph(3, 3)
    local = jnp.asarray(np.random.default_rng(0).uniform(0.2, 1, (graph.num_nodes, 2)))
    plain = kbp.run(model, graph, local, tol=1e-9, num_iters=500)
    halves = kbp.run(model, graph, local, tol=1e-9, num_iters=500, schedule=Halves())
    assert plain.converged and halves.converged and halves.num_iters > plain.num_iters
    np.testing.assert_allclose(halves.messages, plain.messages, atol=1e-7)
