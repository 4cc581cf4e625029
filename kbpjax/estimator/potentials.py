"""From the codes of a table to a model: smoothed counts of each pair of neighbors, then potentials trained."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.estimator.columns import Angles, Code, Labels, Numbers
from kbpjax.estimator.joint import Held, Joint, learn_joint, weighed
from kbpjax.estimator.rows import Rows, blocks, padded_evidence, settled_beliefs
from kbpjax.features.cholesky import incomplete_cholesky
from kbpjax.inference.diagnostics import ConvergenceWarning
from kbpjax.learning.learn import learn_model
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.rules import FixedLandmarks
from kbpjax.training.folds import FEWEST, Folds
from kbpjax.training.gaussian import NODES, VALUES, can_be_gaussian, gaussian_model
from kbpjax.training.potentials import ClosedForm, model_of
from kbpjax.training.train import train
from kbpjax.tuning.tried import Selection

LEVELS, REACH = 48, 4.0
"""Number of levels of normal scores, and the largest."""

DIRECTIONS = 32
"""Number of levels of angles."""

TIED = 0.05
"""Share of rows with the same value above which a column of numbers has separate levels and a separate marginal."""

EPS = 1e-3
"""Largest residual of the landmarks of smoothed counts."""

NARROWEST, WIDEST = 0.15, 0.5
"""Bandwidths of smoothed counts of many and of few rows, in standard normal scores."""

FEW_ROWS = 60
"""Number of rows from which potentials of a Gaussian of the graph are learned, and effort "high" trains potentials."""

MANY_ROWS = 400
"""Number of rows from which effort "auto" trains them.

Chosen on the tables of `experiments.imputation`: beside the joint Gaussian, training gains little on fewer rows.
"""

MOST_EDGES = 300
"""Number of edges above which effort "auto" keeps the Gaussian of the graph where there is one.

On 70 stations with 501 edges nothing that training found was taken (set pm10 of `experiments.imputation`).
"""

ROWS = 20000
"""Largest number of rows that potentials are learned from."""

PENALTY = 1e-2
"""Weight of the squares of the corrections."""

EFFORTS = {"low": (0, 0.0), "auto": (400, 25.0), "high": (1500, 180.0)}
"""{word: largest number of steps and of seconds of each way of training}."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """A model of the columns of a table.

    Attributes:
        model: the model, on levels.
        graph: its graph.
        selection: what was tried.
        joint: a Gaussian of the columns, with which beliefs are combined; None of few rows.
    """

    model: KernelMRF
    graph: kbp.Graph
    selection: Selection | None
    joint: Joint | None = None


def node_types(codes: Sequence[Code], table: NDArray[np.floating]) -> NDArray[np.integer]:
    """Return the node type of each column: 0 of numbers, 1 of angles, its own of labels and of numbers with ties."""
    types, last = [], 1
    for code, x in zip(codes, table.T, strict=True):
        if isinstance(code, Angles):
            types.append(1)
            continue
        known = x[~np.isnan(x)]
        _, counts = np.unique(known, return_counts=True)
        if isinstance(code, Labels) or counts.max() > max(TIED * len(known), 1):
            last += 1
        types.append(last if isinstance(code, Labels) or counts.max() > max(TIED * len(known), 1) else 0)
    return np.array(types)


def learn(
    codes: Sequence[Code],
    table: NDArray[np.floating],
    edges: NDArray[np.integer],
    *,
    effort: str,
    seed: int,
    progress: bool,
    positions: NDArray[np.floating] | None = None,
    times: int = 1,
) -> Learned:
    """Return a model of the codes of a table.

    Args:
        codes: how each column is coded.
        table: the codes [row, column], NaN where missing.
        edges: pairs of columns [edge, 2].
        effort: one of `EFFORTS`.
        seed: seed of training, and of the rows that are used of large tables.
        progress: whether to show a progress bar.
        positions: places of the columns [column, dim]; None: not known.
        times: number of times of each column.
    """
    if len(table) > ROWS:
        table = table[np.random.default_rng(seed).permutation(len(table))[:ROWS]]
    types = node_types(codes, table)
    there = ~np.isnan(table)
    common = [int(np.sum(there[:, a] & there[:, b])) for a, b in edges.tolist()]
    edges = edges[np.array(common, int) > 1] if len(edges) else edges.reshape(0, 2)
    graph = kbp.Graph.from_edges(edges, len(codes), node_type=types, edge_type=np.arange(len(edges)))
    dtype = np.dtype(jnp.result_type(float))
    samples, masks, kernels, levels = {}, {}, {}, {}
    count = float(np.median(there.sum(axis=0)))
    width = float(np.clip(count ** (-1 / 6), NARROWEST, WIDEST))
    for v, *_ in graph.node_types:
        nodes = np.flatnonzero(types == v)
        code = codes[nodes[0]]
        own = np.where(there[:, nodes], table[:, nodes], 0)
        masks[v] = there[:, nodes]
        if isinstance(code, Labels):
            samples[v], levels[v] = own.astype(np.int32), np.arange(len(code.labels), dtype=np.int32)
            kernels[v] = code.kernel
        elif isinstance(code, Numbers):
            ends = (-REACH, REACH) if v == 0 else (np.nanmin(table[:, nodes]), np.nanmax(table[:, nodes]))
            samples[v], levels[v] = own.astype(dtype), np.linspace(*ends, LEVELS, dtype=dtype)
            kernels[v] = kbp.RBF(width)
        else:
            samples[v] = own.astype(dtype)
            levels[v] = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False, dtype=dtype)
            kernels[v] = kbp.kernels.Periodic(2 * np.pi, width)
    data = kbp.pool(graph, samples, mask=masks)
    steps, seconds = EFFORTS[effort]
    trains = bool(steps) and len(table) >= (FEW_ROWS if effort == "high" else MANY_ROWS) and len(edges) > 0
    trains = trains and (effort == "high" or len(edges) <= MOST_EDGES or not _gaussian(codes, there, edges))
    (cases,) = data.cases
    split = Folds.of_cases(cases, seed).kept
    paired = all(np.any(there[split, a] & there[split, b]) for a, b in edges.tolist())
    fewer = len(table) >= FEWEST and paired and bool(there[split].any(axis=0).all())
    trains = trains and fewer
    apart = np.isin(np.arange(len(table)), split)[:, None]
    kept = kbp.pool(graph, samples, mask={v: mask & apart for v, mask in masks.items()}) if fewer else data
    options: Any = {
        "kernel": kernels,
        "ridge": float(np.clip(1 / count, 1e-4, 0.2)),
        "relation": "counts",
        "rule": _landmarks(kernels, levels),
        "levels": {v: _checks.to_jax(x) for v, x in levels.items()},
        "floor": 0.0,
    }

    def untrained(seen: kbp.TrainingData, chosen: NDArray[np.integer]) -> KernelMRF:
        model = learn_model(seen, **options)
        if len(edges) and len(table) >= FEW_ROWS and can_be_gaussian(model, cases):
            return gaussian_model(model, cases, chosen, model)
        closed = ClosedForm.of(model, graph, own=False)
        return model_of(model, closed, closed.start(model), tuple(levels), len(codes))

    selection = None
    if trains:  # pairs of the rows on which `train` compares are not counted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the start is kept, which converges
            model = compared = train(
                learn_model(kept, **options),
                data,
                start="all",
                sharing="edge",
                penalty=PENALTY,
                steps=steps,
                seconds=seconds,
                seed=seed,
                progress=progress,
            )
        selection = model.selection
    else:
        model = untrained(data, np.arange(len(table)))
        compared = untrained(kept, split) if fewer else model
    learned = Learned(model, graph, selection)
    if not fewer:
        return learned
    held = Held.of(table[~apart[:, 0]], seed)
    return dataclasses.replace(learned, joint=_joint(compared, graph, codes, table, split, held, positions, times))


def _joint(
    model: KernelMRF,
    graph: kbp.Graph,
    codes: Sequence[Code],
    table: NDArray[np.floating],
    kept: NDArray[np.integer],
    held: Held,
    positions: NDArray[np.floating] | None,
    times: int,
) -> Joint | None:
    """Return a Gaussian of the columns with the weights that are best beside a model, on rows that neither has seen."""
    rows = Rows.of(model, graph)
    levels = [np.asarray(model.points[v], float) for v in np.asarray(graph.node_type).tolist()]
    both = learn_joint(codes, levels, rows.prior.shape[1], table, kept, held, positions)
    if both is None:
        return None

    def beliefs(seen: NDArray[np.floating]) -> NDArray[np.floating]:
        parts = [seen[own] for own in blocks(len(seen), rows)]
        found = [settled_beliefs(rows, padded_evidence(rows, model, graph, one), len(one))[0] for one in parts]
        return np.concatenate(found, axis=1)

    of_some = weighed(both[0], codes[: len(codes) // times], levels, rows.local + rows.lengths, held, beliefs)
    return dataclasses.replace(both[1], power=of_some.power, heat=of_some.heat)


def _gaussian(codes: Sequence[Code], there: NDArray[np.bool_], edges: NDArray[np.integer]) -> bool:
    """Return whether there are numbers alone, and enough known values for a Gaussian of the graph."""
    numbers = all(isinstance(code, Numbers) for code in codes)
    return numbers and there.sum() >= VALUES * (len(edges) + len(codes)) and len(codes) <= NODES


def _landmarks(kernels: dict[int, Any], levels: dict[int, NDArray[Any]]) -> FixedLandmarks:
    """Return the rule with landmarks among the levels, of one number for types with as many levels: few programs."""
    messages, products = {}, {}
    for v, x in levels.items():
        points = _checks.to_jax(x)
        pivots = incomplete_cholesky(kernels[v], points, EPS, len(x))
        valid = np.arange(len(x)) < int(pivots.rank)
        messages[v] = _checks.to_jax(np.asarray(points)[np.asarray(pivots.indices)]), _checks.to_jax(valid)
        products[v] = (
            _checks.to_jax(x[:1]),
            _checks.to_jax(np.ones(1, bool)),
        )  # products are interpolated between the levels
    return FixedLandmarks(kbp.ConstantTime(), messages, products, {})
