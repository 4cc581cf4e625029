"""Pictures: what is drawn is what the answers say, on the axes that are given; wrong input is refused."""

import subprocess
import sys

import jax.numpy as jnp
import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import plotting


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    graph = kbp.grid_graph(4, 5)
    x = np.cumsum(rng.normal(size=(60, 20)), axis=1) / 4
    y = x + 0.5 * rng.normal(size=x.shape)
    kernel = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}
    model = kbp.fit(kbp.pool(graph, x, y), rule=kbp.ConstantTime(1e-2, 12), ridge=1e-2, **kernel)
    evidence = kbp.observe(model, graph, y[0])
    solution = kbp.run(model, graph, evidence, num_iters=6)
    belief = kbp.beliefs(model, graph, evidence, solution, jnp.linspace(-4, 4, 81))
    return model, graph, solution, belief, x


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_belief_has_its_density_and_marks(problem):
    belief = problem[3]
    ax = plotting.plot_belief(belief, 3, truth=0.5, label="height (m)")
    density = ax.lines[0].get_xydata()
    np.testing.assert_allclose(np.trapezoid(density[:, 1], density[:, 0]), 1, atol=0.02)
    marks = {line.get_label(): line.get_xdata()[0] for line in ax.lines[1:]}
    answers = {"mode": float(kbp.mode(belief)[3]), "mean": float(kbp.mean(belief)[3]), "truth": 0.5}
    assert marks == pytest.approx(answers)
    assert ax.get_xlabel() == "height (m)" and "90% interval" in ax.get_legend_handles_labels()[1]


def test_unsorted_points_are_drawn_in_order(problem):
    belief = problem[3]
    order = np.random.default_rng(0).permutation(81)
    mixed = kbp.Belief(belief.points[order], belief.weights[:, order])
    given, found = (plotting.plot_belief(b, 3).lines[0].get_xydata() for b in (belief, mixed))
    np.testing.assert_allclose(given, found)


def test_map_shows_means_and_deviations(problem):
    belief = problem[3]
    axes = plotting.plot_grid(belief, (4, 5))
    np.testing.assert_allclose(axes[0].images[0].get_array(), kbp.mean(belief).reshape(4, 5))
    np.testing.assert_allclose(axes[1].images[0].get_array(), np.sqrt(kbp.variance(belief)).reshape(4, 5))


def test_residuals_by_name_and_alone(problem):
    solution = problem[2]
    ax = plotting.plot_residuals({"a": solution, "b": solution}, tol=1e-3)
    assert [line.get_label() for line in ax.lines] == ["a", "b", "tolerance 0.001"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), solution.residuals)
    assert plotting.plot_residuals(solution).get_legend() is None


def test_messages_that_say_nothing_have_distance_0(problem):
    model, graph, solution, *_ = problem
    silent = kbp.run(model, graph, None, num_iters=1)
    spoken = plotting.plot_messages(model, graph, solution).lines[0].get_ydata()
    assert spoken.shape == (graph.num_edges,) and (np.diff(spoken) >= 0).all() and 0 < spoken.max() <= 2
    assert spoken.mean() > plotting.plot_messages(model, graph, silent).lines[0].get_ydata().mean()


def test_graph_has_its_edges_and_means(problem):
    _, graph, _, belief, _ = problem
    ax = plotting.plot_graph(graph, belief)
    lines, nodes = ax.collections
    assert len(lines.get_segments()) == graph.num_edges // 2
    np.testing.assert_allclose(nodes.get_array(), kbp.mean(belief))
    sizes, spread = nodes.get_sizes(), np.asarray(kbp.variance(belief))
    assert sizes[spread.argmin()] == sizes.max() > sizes.min() == sizes[spread.argmax()]
    placed = plotting.plot_graph(graph, belief, positions=np.arange(40).reshape(20, 2))
    np.testing.assert_array_equal(placed.collections[1].get_offsets(), np.arange(40).reshape(20, 2))


def test_landmarks_in_one_and_two_dimensions(problem):
    model, *_, x = problem
    ax = plotting.plot_landmarks(model, samples=x.ravel())
    np.testing.assert_allclose(ax.lines[0].get_xdata(), model.points[0])
    rng = np.random.default_rng(0)
    both = rng.normal(size=(40, 3, 2))
    flat = kbp.fit(kbp.pool(kbp.chain_graph(3), both), kernel=kbp.RBF(1.0), rule=kbp.ConstantTime(1e-2, 9))
    ax = plotting.plot_landmarks(flat, samples=both.reshape(-1, 2))
    np.testing.assert_allclose(ax.lines[1].get_xydata(), flat.points[0])


def test_costs(problem):
    ax = plotting.plot_costs({"a": ([1, 2], [3, 1]), "b": (0.1, 2)}, error="RMSE (m)", baseline=2.5)
    assert ax.get_xscale() == "log" and ax.get_ylabel() == "RMSE (m)"
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 3], [2, 1]])


def test_axes_are_taken_and_returned(problem):
    model, graph, solution, belief, _ = problem
    drawn, axes = plt.subplots(1, 2)
    assert plotting.plot_belief(belief, 0, ax=axes[0]) is axes[0]
    assert plotting.plot_grid(belief, (4, 5), axes=axes) is axes
    calls = (
        lambda ax: plotting.plot_residuals(solution, ax=ax),
        lambda ax: plotting.plot_messages(model, graph, solution, ax=ax),
        lambda ax: plotting.plot_graph(graph, belief, ax=ax),
        lambda ax: plotting.plot_landmarks(model, ax=ax),
        lambda ax: plotting.plot_costs({"a": (1, 1)}, ax=ax),
    )
    drawn, axes = plt.subplots(1, len(calls))
    assert all(call(ax) is ax for call, ax in zip(calls, axes, strict=True))
    drawn.canvas.draw()


WRONG = {
    "node": (lambda p: plotting.plot_belief(p[3], 20), r"^node: must be one of 20 nodes; got 20"),
    "dim": (
        lambda p: plotting.plot_belief(kbp.Belief(jnp.ones((3, 2)), jnp.ones((1, 3)) / 3), 0),
        "^belief: must have scalar",
    ),
    "shape": (lambda p: plotting.plot_grid(p[3], (4, 4)), r"^shape: must have 20 cells"),
    "axes": (lambda p: plotting.plot_grid(p[3], (4, 5), axes=[None]), r"^axes: must be 2 axes of matplotlib; got 1"),
    "solution": (
        lambda p: plotting.plot_messages(p[0], kbp.grid_graph(2, 2), p[2]),
        "^solution: must have messages of 8",
    ),
    "belief": (lambda p: plotting.plot_graph(kbp.chain_graph(3), p[3]), "^belief: must have 3 nodes"),
    "positions": (lambda p: plotting.plot_graph(p[1], p[3], positions=[[0, 0]]), "^positions: must have shape"),
    "node_type": (
        lambda p: plotting.plot_landmarks(p[0], node_type=7),
        r"^node_type: must be a node type of the model; got 7",
    ),
    "samples": (lambda p: plotting.plot_landmarks(p[0], samples=p[4]), "^samples: must have 1 numbers each; got 20"),
    "costs": (lambda p: plotting.plot_costs({"a": ([1, 2], [1])}), "^costs: must have the same number of"),
    "seconds": (lambda p: plotting.plot_costs({"a": (0, 1)}), "^costs: must have seconds > 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused(name, problem):
    call, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        call(problem)


def test_beliefs_of_vectors_are_plotted_coordinate_by_coordinate():
    columns = [a.ravel() for a in np.meshgrid(np.linspace(0, 1, 5), np.linspace(2, 4, 3))]
    points = jnp.asarray(np.stack(columns, axis=1))
    belief = kbp.Belief(points, jnp.full((2, 15), 1 / 15))
    with pytest.raises(ValueError, match=r"Plot one coordinate: kbpjax.marginal\(belief, 0\)"):
        plotting.plot_belief(belief, 0)
    drawn = [
        plotting.plot_belief(kbp.marginal(belief, 1), 1),
        plotting.plot_belief(kbp.Belief(points[:, 1], belief.weights), 1),  # repeated points
    ]
    for ax in drawn:
        np.testing.assert_allclose(ax.lines[0].get_xdata(), [2, 3, 4])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), np.full(3, 1 / 3), rtol=1e-6)
        plt.close(ax.figure)


def test_the_package_does_not_import_matplotlib():
    code = "import sys, kbpjax, kbpjax.plotting; print(any(m in sys.modules for m in ('matplotlib', 'networkx')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_residuals_that_are_all_zero_are_drawn():
    operators = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
    solution = kbp.run(operators, kbp.chain_graph(3), num_iters=3)
    assert not np.asarray(solution.residuals).any()
    ax = plotting.plot_residuals(solution)
    assert ax.get_yscale() == "linear"
    ax.figure.canvas.draw()


def test_reliability_has_shares_and_bars_of_each_method(problem):
    belief = problem[3]
    truth = np.asarray(kbp.mean(belief)) + np.linspace(-2, 2, 20)
    truth[0] = np.nan
    ax = plotting.plot_reliability(belief, truth, levels=[0.3, 0.6], label="plain")
    assert plotting.plot_reliability({0: belief, 3: belief}, {0: truth, 3: truth}, label="both", ax=ax) is ax
    assert ax.get_legend_handles_labels()[1] == ["calibrated", "plain", "both, type 0", "both, type 3"]
    line, _, (bars,) = ax.containers[0]
    low, high = (np.asarray(ends) for ends in zip(*(kbp.interval(belief, c) for c in (0.3, 0.6)), strict=True))
    shares = ((low <= truth) & (truth <= high))[:, 1:].mean(axis=1)
    np.testing.assert_allclose(line.get_xydata(), np.stack([[0.3, 0.6], shares], axis=1))
    heights = [np.ptp(one[:, 1]) for one in bars.get_segments()]
    np.testing.assert_allclose(heights, 4 * np.sqrt(shares * (1 - shares) / 19))


def test_beliefs_on_own_points_are_drawn_as_those_of_each_node():
    z, rows = np.array([0.5, -1.0, 0.0, 1.0]), np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    points = np.stack([z, 5 + 3 * z])
    own = kbp.Belief(jnp.asarray(points), jnp.asarray(rows), own_points=True)
    one = kbp.Belief(own.points[1], own.weights[1:])
    got, expected = (plotting.plot_belief(*args) for args in ((own, 1), (one, 0)))
    for a, b in zip(got.lines, expected.lines, strict=True):
        np.testing.assert_allclose(a.get_xydata(), b.get_xydata(), rtol=1e-12)
    left, right = plotting.plot_grid(own, (1, 2))
    np.testing.assert_allclose(left.images[0].get_array().ravel(), kbp.mean(own))
    np.testing.assert_allclose(right.images[0].get_array().ravel(), kbp.std(own))
    ax = plotting.plot_graph(kbp.chain_graph(2), own, positions=[[0, 0], [1, 1]])
    np.testing.assert_allclose(ax.collections[1].get_array(), kbp.mean(own))
    ax = plotting.plot_reliability(own, [0.4, 5.5], levels=[0.5])
    np.testing.assert_allclose(ax.containers[0][0].get_ydata(), kbp.coverage(own, [0.4, 5.5], [0.5]))
    with pytest.raises(ValueError, match="belief: must have scalar variables"):
        plotting.plot_belief(kbp.Belief(own.points[..., None], own.weights, own_points=True), 0)
