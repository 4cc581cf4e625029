"""Public models of the UAI competition of 2014 against belief propagation in NumPy and exact answers."""

from pathlib import Path

import jax
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import discrete, elimination
from tests import uai
from tests.programs import DATA, needs

QUICK = ("Grids_11", "Segmentation_11")
NAMES = sorted(path.stem for path in (Path(DATA) / "uai").glob("*.uai")) if DATA else []


def test_the_reader_multiplies_factors_and_orients_tables(tmp_path):
    (tmp_path / "a.uai").write_text("MARKOV\n2\n2 3\n3\n1 0\n2 1 0\n2 0 1\n\n2 1 2\n6 1 2 3 4 5 6\n6 1 1 1 2 2 2\n")
    (tmp_path / "a.uai.MAR").write_text("MAR\n2 2 0.25 0.75 3 0.5 0.25 0.25\n")
    (tmp_path / "a.uai.PR").write_text("PR\n2\n")
    model = uai.read(tmp_path / "a.uai")
    np.testing.assert_array_equal(model.node[0], [1, 2])
    np.testing.assert_array_equal(model.edge[0, 1], [[1, 3, 5], [4, 8, 12]])
    assert model.log_z == 2 * np.log(10) and model.marginals[1].tolist() == [0.5, 0.25, 0.25]


@needs("uai")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_public_models_have_the_marginals_of_a_loop_in_numpy(name):
    """From constant messages, after as many iterations; most grids do not converge."""
    model = uai.read(Path(DATA) / "uai" / f"{name}.uai")
    known, graph, evidence = uai.problem(model)

    @jax.jit
    def solve(known, evidence):
        solution = kbp.run(known, graph, evidence, num_iters=30, damping=0.5)
        beliefs = kbp.beliefs(known, graph, evidence, solution, known.points)
        return solution.converged, beliefs, kbp.log_partition(known, graph, evidence, solution)

    converged, beliefs, log_z = solve(known, evidence)
    for found, expected in zip(uai.weights_of(model, beliefs), uai.propagate(model, 30, 0.5), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    if converged and model.log_z is not None:  # an estimate, in the units of the file
        np.testing.assert_allclose(log_z, model.log_z, rtol=0.03)


@needs("uai")
@pytest.mark.parametrize(
    "name",
    [
        *("Grids_12", "Segmentation_14"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("DBN_11", "Grids_15", "ObjectDetection_11")),
    ],
)
def test_elimination_has_the_published_answers(name):
    path = Path(DATA) / "uai" / f"{name}.uai"
    model, found = uai.read(path), elimination.solve(discrete.read_uai(path, f"{path}.evid"))
    for own, published in zip(found.marginals, model.marginals, strict=True):
        np.testing.assert_allclose(own, published, atol=1e-6)
    if model.log_z is not None:  # published with some digits
        np.testing.assert_allclose(found.log_partition, model.log_z, rtol=1e-4)
