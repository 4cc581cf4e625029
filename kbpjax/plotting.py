"""Plots of beliefs, runs and models; needs `pip install 'kbpjax[plot]'`.

Every function plots on the given axes, or on new axes, and returns the axes. Colors are safe for color-blind readers
(Okabe and Ito 2008), and color maps have monotone lightness.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import need
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution, constant_messages, solved
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.draws import mode
from kbpjax.posterior.intervals import coverage, interval
from kbpjax.posterior.posterior import Posterior, as_belief
from kbpjax.posterior.summaries import marginal, mean, std

__all__ = [
    "plot_belief",
    "plot_costs",
    "plot_graph",
    "plot_grid",
    "plot_landmarks",
    "plot_messages",
    "plot_reliability",
    "plot_residuals",
]

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "0.4"


@public
def plot_belief(
    belief: Belief | Posterior,
    node: int,
    *,
    truth: float | None = None,
    coverage: float = 0.9,
    label: str = "x",
    ax: Any = None,
) -> Any:
    """Plot the density of one scalar variable with mode, mean and credible interval; return the axes.

    Repeated points are merged.

    Args:
        belief: belief of scalar variables; of vectors, plot `kbpjax.marginal(belief, coordinate)`.
        node: node of the variable.
        truth: true value to mark; None: no mark.
        coverage: nominal coverage of the interval, in (0, 1).
        label: label of the variable, with its units.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Raises:
        ValueError: variables are not scalar, or the node does not exist.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp, matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_belief
        >>> belief = kbp.Belief(jnp.linspace(0.0, 2.0, 5), jnp.array([[0.1, 0.2, 0.4, 0.2, 0.1]]))
        >>> ax = plot_belief(belief, 0, truth=1.2, label="height (m)")
        >>> ax.get_title(), ax.get_xlabel()
        ('belief of node 0', 'height (m)')
        >>> plt.close(ax.figure)
    """
    belief = as_belief(belief)
    _numbers(belief, node)
    _checks.require(node >= 0, "node", f"must be one of {len(belief)} nodes", node, "Count from 0.")
    one = marginal(belief[node])
    points, weights = _numbers(one, 0), np.asarray(one.weights)[0]
    spacing = np.gradient(points) if len(points) > 1 else np.ones(1)
    low, high = (float(end[0]) for end in interval(one, coverage))
    ax = _axes(ax)
    density = weights / np.maximum(spacing, np.finfo(float).tiny)
    ax.plot(points, density, color=BLUE, label="belief")
    at = np.unique(np.concatenate([points, [low, high]]))
    inside = (at >= low) & (at <= high)
    heights, name = np.interp(at, points, density), f"{coverage:.0%} interval"
    ax.fill_between(at, heights, where=inside, color=BLUE, alpha=0.2, label=name)
    ax.axvline(float(mode(one)[0]), color=ORANGE, linestyle="--", label="mode")
    ax.axvline(float(mean(one)[0]), color=GREEN, linestyle=":", label="mean")
    if truth is not None:
        ax.axvline(truth, color=RED, linewidth=1, label="truth")
    ax.set(xlabel=label, ylabel="density", title=f"belief of node {node}", ylim=(0, None))
    ax.legend(fontsize="small")
    return ax


@public
def plot_grid(
    belief: Belief | Posterior, shape: tuple[int, int], *, label: str = "x", axes: Sequence[Any] | None = None
) -> Any:
    """Plot means and standard deviations of a grid of scalar variables; return the two axes.

    Args:
        belief: belief of scalar variables, numbered row by row.
        shape: numbers of rows and columns.
        label: label of the variables, with their units.
        axes: two axes; None: new axes.

    Returns:
        The two axes.

    Raises:
        ValueError: the shape does not match the number of nodes, or variables are not scalar.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp, matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_grid
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0]), jnp.full((6, 2), 0.5))  # 2 x 3 grid
        >>> left, right = plot_grid(belief, (2, 3))
        >>> left.get_title(), right.get_title()
        ('mean', 'standard deviation')
        >>> plt.close(left.figure)
    """
    belief = as_belief(belief)
    _numbers(belief, 0)
    count = belief.weights.shape[0]
    rule, fix = f"must have {count} cells, one per node", "Pass (rows, columns) of the grid."
    _checks.require(len(shape) == 2 and shape[0] * shape[1] == count, "shape", rule, shape, fix)
    both = _several(axes, 2, (4.2 * 2, 4.0))
    images = {"mean": (mean(belief), "viridis"), "standard deviation": (std(belief), "magma")}
    for ax, (name, (values, colors)) in zip(both, images.items(), strict=True):
        drawn = ax.imshow(np.asarray(values).reshape(shape), cmap=colors, interpolation="nearest")
        ax.figure.colorbar(drawn, ax=ax, label=f"{name} of {label}", shrink=0.8)
        ax.set(title=name, xlabel="column", ylabel="row")
        ax.locator_params(integer=True)
    return both


@public
def plot_residuals(
    solutions: Solution | Posterior | Mapping[str, Solution], *, tol: float | None = None, ax: Any = None
) -> Any:
    """Plot the residual of each iteration, which shows convergence; return the axes.

    Args:
        solutions: a solution or a posterior, or {name: solution}.
        tol: tolerance to mark by a line; None: no line.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp, matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_residuals
        >>> operators = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> solution = kbp.run(operators, kbp.grid_graph(2, 2), jnp.ones((4, 2)).at[0, 0].set(3.0), num_iters=5)
        >>> ax = plot_residuals({"a loop of four": solution}, tol=1e-3)
        >>> [line.get_label() for line in ax.lines]
        ['a loop of four', 'tolerance 0.001']
        >>> plt.close(ax.figure)
    """
    solutions = solutions.solution if isinstance(solutions, Posterior) else solutions
    named = solutions if isinstance(solutions, Mapping) else {"": solutions}
    ax = _axes(ax)
    colors = (BLUE, ORANGE, GREEN, RED, GREY)
    for number, (name, solution) in enumerate(named.items()):
        residuals = np.asarray(solution.residuals)
        style = ("-", "--", ":", "-.")[number // len(colors) % 4]
        steps = np.arange(1, len(residuals) + 1)
        ax.plot(steps, residuals, style, color=colors[number % len(colors)], label=name, marker=".")
    if tol is not None:
        ax.axhline(tol, color=GREY, linewidth=1, label=f"tolerance {tol:g}")
    ax.set(xlabel="iteration", ylabel="residual: largest change of a message")
    if any(
        np.any(np.asarray(solution.residuals) > 0) for solution in named.values()
    ):  # the log scale needs a positive value
        ax.set_yscale("log")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(alpha=0.3)
    if any(named) or tol is not None:
        ax.legend(fontsize="small")
    return ax


@public
def plot_messages(
    model: KernelMRF | Posterior, graph: Graph | None = None, solution: Solution | None = None, *, ax: Any = None
) -> Any:
    """Plot the sorted distances of messages from the uninformative message; return the axes.

    Messages have norm 1, so distances are between 0 (uninformative) and 2.

    Args:
        model: a posterior; or a model, with
        graph: the graph, and
        solution: the solution of `run` or `run_tree`.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Examples:
        >>> import kbpjax as kbp, matplotlib.pyplot as plt, numpy as np
        >>> from kbpjax.plotting import plot_messages
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5), rule=kbp.FullRank())

        >>> ax = plot_messages(model, graph, kbp.run(model, graph, num_iters=3))
        >>> len(ax.lines[0].get_xdata())  # directed edges
        4
        >>> plt.close(ax.figure)
    """
    learned, graph, _, solution = solved(model, graph, None, solution)
    uninformative = constant_messages(learned, graph)
    same = uninformative.shape == solution.messages.shape
    fix = "Pass the model, graph and solution of one run."
    rule = f"must have messages of {uninformative.shape[0]} directed edges"
    _checks.require(same, "solution", rule, f"messages of shape {solution.messages.shape}", fix)
    distances = np.sort(np.linalg.norm(np.asarray(solution.messages - uninformative), axis=1))
    ax = _axes(ax)
    ax.plot(np.linspace(0, 100, len(distances)), distances, color=BLUE)
    ax.set(xlabel="share of messages (%)", ylabel="distance from the uninformative message", ylim=(0, None))
    ax.grid(alpha=0.3)
    return ax


@public
def plot_graph(
    graph: Graph,
    belief: Belief | Posterior,
    *,
    positions: Numbers | None = None,
    label: str = "mean of x",
    ax: Any = None,
) -> Any:
    """Plot a graph with nodes colored by mean and sized by certainty; return the axes.

    Args:
        graph: the graph, legible up to some hundred nodes.
        belief: belief of scalar variables.
        positions: positions of the nodes [node, 2]; None: spring layout (networkx).
        label: label of the color bar.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Raises:
        ValueError: the belief or the positions do not match the nodes of the graph.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp, matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_graph
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]))
        >>> ax = plot_graph(kbp.chain_graph(3), belief)
        >>> len(ax.collections[0].get_segments()), len(ax.collections[1].get_offsets())  # edges and nodes
        (2, 3)
        >>> plt.close(ax.figure)
    """
    belief = as_belief(belief)
    _numbers(belief, 0)
    count = graph.num_nodes
    rule, fix = f"must have {count} nodes", "Pass the belief of the nodes of this graph."
    _checks.require(belief.weights.shape[0] == count, "belief", rule, belief.weights.shape, fix)
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)
    ends = ends[ends[:, 0] < ends[:, 1]]
    layout = _layout(ends, count) if positions is None else _known("positions", positions)
    rule, fix = f"must have shape {(count, 2)}", "Pass two coordinates per node."
    _checks.require(layout.shape == (count, 2), "positions", rule, layout.shape, fix)
    ax = _axes(ax)
    spread = np.asarray(std(belief))
    certainty = 1 - (spread - spread.min()) / max(np.ptp(spread), np.finfo(float).tiny)
    lines = need("matplotlib.collections", "plot").LineCollection
    ax.add_collection(lines(layout[ends].tolist(), colors="0.7", linewidths=0.8, zorder=1))
    drawn = ax.scatter(*layout.T, c=np.asarray(mean(belief)), s=20 + 100 * certainty, cmap="viridis", zorder=2)
    ax.figure.colorbar(drawn, ax=ax, label=label, shrink=0.8)
    ax.set(xticks=[], yticks=[], xlabel="larger nodes: smaller standard deviation")
    return ax


@public
def plot_landmarks(model: KernelMRF, *, node_type: int = 0, samples: Numbers | None = None, ax: Any = None) -> Any:
    """Plot the points (landmarks) at which messages of a node type are evaluated; return the axes.

    Args:
        model: the model.
        node_type: the node type.
        samples: training samples [sample, *dim] to plot below; None: no samples.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Raises:
        ValueError: points have more than two coordinates, the node type does not exist, or samples have another shape.

    Examples:
        >>> import kbpjax as kbp, matplotlib.pyplot as plt, numpy as np
        >>> from kbpjax.plotting import plot_landmarks
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))

        >>> ax = plot_landmarks(model, samples=x.ravel())
        >>> ax.get_title()
        'landmarks of node type 0'
        >>> plt.close(ax.figure)
    """
    fix = f"Pass one of {sorted(model.points)}."
    _checks.require(node_type in model.points, "node_type", "must be a node type of the model", node_type, fix)
    points = np.asarray(model.points[node_type])
    flat = points.reshape(len(points), -1)
    fix = "Plot two coordinates of model.points[node_type]."
    _checks.require(flat.shape[1] <= 2, "model", "must have points of one or two numbers", points.shape[1:], fix)
    ax = _axes(ax)
    drawn = None if samples is None else _known("samples", samples)
    drawn = None if drawn is None else drawn.reshape(len(drawn), -1)
    fits = drawn is None or drawn.shape[1] == flat.shape[1]
    got, fix = None if drawn is None else drawn.shape[1], "Pass samples [sample, *dim] of this node type."
    _checks.require(fits, "samples", f"must have {flat.shape[1]} numbers each", got, fix)
    if flat.shape[1] == 1:
        if drawn is not None:
            ax.hist(drawn[:, 0], bins=60, density=True, color=BLUE, alpha=0.3, label=f"{len(drawn)} samples")
        ax.plot(flat[:, 0], np.zeros(len(flat)), "|", color=RED, markersize=18, label=f"{len(flat)} landmarks")
        ax.set(xlabel="x", ylabel="density of the samples")
    else:
        if drawn is not None:
            ax.plot(*drawn.T, ".", color=BLUE, alpha=0.3, markersize=2, label=f"{len(drawn)} samples")
        ax.plot(*flat.T, "x", color=RED, label=f"{len(flat)} landmarks")
        ax.set(xlabel="first coordinate", ylabel="second coordinate")
    ax.set_title(f"landmarks of node type {node_type}")
    ax.legend(fontsize="small")
    return ax


@public
def plot_reliability(
    belief: Belief | Posterior | Mapping[int, Belief],
    truth: Numbers | Mapping[int, Numbers],
    *,
    levels: Numbers = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    label: str = "",
    ax: Any = None,
) -> Any:
    """Plot the share of true values inside central intervals against their nominal coverage; return the axes.

    Calibrated beliefs are on the diagonal, overconfident ones below it. Bars are two standard errors, with nodes
    counted as independent. Neighbors are not: the bars are too short if they are much alike.

    Args:
        belief: belief of scalar variables, or {node type: belief}, which gives one curve per type. For several cases
            `Belief(points, weights.reshape(-1, len(points)))`.
        truth: true value of each node, NaN where unknown; or {node type: values}.
        levels: nominal coverages [level], in [0, 1].
        label: name of the method, for several in the same axes.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Raises:
        ValueError: as `kbpjax.coverage`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp, matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_reliability
        >>> wide = kbp.Belief(jnp.linspace(-2.0, 2.0, 5), jnp.tile(jnp.array([0.1, 0.2, 0.4, 0.2, 0.1]), (3, 1)))
        >>> ax = plot_reliability(wide, [0.1, -0.4, 1.5], label="wide")
        >>> ax = plot_reliability(kbp.temper(wide, 0.5), [0.1, -0.4, 1.5], label="tempered", ax=ax)
        >>> ax.get_legend_handles_labels()[1]
        ['calibrated', 'wide', 'tempered']
        >>> plt.close(ax.figure)
    """
    by_type = isinstance(belief, Mapping) or (isinstance(belief, Posterior) and len(belief.by_type) > 1)
    curves: Any = coverage(belief, truth, levels)
    curves = curves if by_type else {0: curves}
    truths = truth if isinstance(truth, Mapping) else dict.fromkeys(curves, truth)
    nominal = np.asarray(_checks.as_numpy("levels", levels), float)
    ax = _axes(ax)
    if not any(line.get_label() == "calibrated" for line in ax.lines):
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="calibrated")
    for v, shares in curves.items():
        inside = np.asarray(shares, float)
        known = np.sum(~np.isnan(np.asarray(_checks.as_numpy("truth", truths[v]), float)))
        bars = 2 * np.sqrt(inside * (1 - inside) / max(known, 1))
        name = ", ".join(part for part in (label, f"type {v}" if by_type else "") if part)
        number = len(ax.containers)
        style = {"marker": "osD^vP*X"[number % 8], "color": (BLUE, ORANGE, GREEN, RED, GREY)[number % 5]}
        ax.errorbar(nominal, inside, bars, label=name or "beliefs", markersize=4, capsize=2, **style)
    ax.set(xlabel="nominal coverage", ylabel="share of true values inside", xlim=(0, 1), ylim=(0, 1))
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    return ax


@public
def plot_costs(
    costs: Mapping[str, tuple[Numbers, Numbers]], *, error: str = "error", baseline: float | None = None, ax: Any = None
) -> Any:
    """Plot error against run time of several methods (lower left is better); return the axes.

    Args:
        costs: {method: (seconds, errors)}, numbers or lists of numbers; points of a list are joined by lines.
        error: label of the errors, with their units.
        baseline: baseline error to mark by a line; None: no line.
        ax: axes; None: new axes.

    Returns:
        The axes.

    Raises:
        ValueError: numbers of seconds and errors differ, or seconds are <= 0.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> from kbpjax.plotting import plot_costs
        >>> costs = {"kernel": ([0.1, 1.0], [5.0, 4.0]), "particle": (10.0, 4.5)}  # seconds, errors
        >>> ax = plot_costs(costs, error="RMSE (gray levels)", baseline=6.0)
        >>> [line.get_label() for line in ax.lines]
        ['kernel', 'particle', 'to beat']
        >>> plt.close(ax.figure)
    """
    ax = _axes(ax)
    for number, (name, pair) in enumerate(costs.items()):
        seconds, errors = (_known("costs", values) for values in pair)
        same = seconds.shape == errors.shape and seconds.ndim == 1
        got, fix = f"{seconds.shape} and {errors.shape} of {name}", "Pass one error per time."
        _checks.require(same, "costs", "must have the same number of seconds and errors", got, fix)
        positive = bool((seconds > 0).all())
        _checks.require(positive, "costs", "must have seconds > 0", f"{seconds.min()} of {name}", "Time them again.")
        style = {"marker": "osD^vP*X"[number % 8], "color": (BLUE, ORANGE, GREEN, RED, GREY)[number % 5]}
        ax.plot(seconds, errors, linestyle="-" if len(seconds) > 1 else "", label=name, **style)
    if baseline is not None:
        ax.axhline(baseline, color=GREY, linewidth=1, linestyle="--", label="to beat")
    ax.set(xscale="log", xlabel="seconds", ylabel=error)
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    return ax


def _numbers(belief: Belief, node: int) -> np.ndarray:
    """Return the points of one node of a belief of scalar variables as floats."""
    points = np.asarray(belief.points)
    fix = "Plot one coordinate: kbpjax.marginal(belief, 0)."
    _checks.require(points.ndim == 1 + belief.own_points, "belief", "must have scalar variables", points.shape, fix)
    count = belief.weights.shape[0]
    _checks.require(-count <= node < count, "node", f"must be one of {count} nodes", node, "Count from 0.")
    return (points[node] if belief.own_points else points).astype(float)


def _known(argument: str, values: Numbers) -> np.ndarray:
    """Return finite numbers as floats, with one axis at least; raise ValueError for others."""
    array = np.atleast_1d(np.asarray(_checks.as_numpy(argument, values), float))
    _checks.require_finite(argument, array, "Leave out what is missing.")
    return array


def _axes(ax: Any) -> Any:
    if ax is not None:
        _checks.require(hasattr(ax, "plot"), "ax", "must be axes of matplotlib", type(ax).__name__, "Pass None.")
        return ax
    return need("matplotlib.pyplot", "plot").subplots(figsize=(5.5, 4), layout="constrained")[1]


def _several(axes: Sequence[Any] | None, count: int, size: tuple[float, float]) -> Any:
    if axes is not None:
        fix = "Pass one per panel, or None."
        ok = len(axes) == count and all(hasattr(one, "plot") for one in axes)
        _checks.require(ok, "axes", f"must be {count} axes of matplotlib", f"{len(axes)} objects", fix)
        return axes
    return need("matplotlib.pyplot", "plot").subplots(1, count, figsize=size, layout="constrained")[1]


def _layout(ends: np.ndarray, count: int) -> np.ndarray:
    """Return a deterministic spring layout of a graph [node, 2]."""
    networkx = need("networkx", "plot")
    graph = networkx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(ends.tolist())
    positions = networkx.spring_layout(graph, seed=0)
    return np.array([positions[node] for node in range(count)])
