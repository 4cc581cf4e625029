"""`GraphImputer`: tables with holes, filled with what their columns say about each other."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

import kbpjax as kbp
from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.estimator import reports
from kbpjax.estimator.columns import Angles, Labels
from kbpjax.estimator.dependence import learned_graph
from kbpjax.estimator.joint import conditional_draws, pooled_beliefs
from kbpjax.estimator.potentials import EFFORTS, learn
from kbpjax.estimator.rows import (
    Rows,
    blocks,
    interval_ends,
    padded_evidence,
    row_draws,
    settled_beliefs,
)
from kbpjax.estimator.tables import Table, warn_of_gaps
from kbpjax.estimator.variables import ByColumn, Variables

Floats = NDArray[np.floating]

NEAREST = 8
"""Number of nearest places that each column is joined to."""

MOST_LAGS = 5
"""Largest number of rows before, and after, that are seen."""

SWEEPS = 10
"""Number of sweeps of joint draws."""


class GraphImputer(TransformerMixin, BaseEstimator):
    """Fill the holes of a table, with uncertainty: each column is a node of a graph, each row a case.

    `fit` learns what neighboring columns say about each other, from rows that may have holes. `transform` passes
    messages on each row from the cells that are there to those that are missing, and combines what they say with the
    answers of a joint Gaussian of the normal scores, each to a power that is chosen on held-out rows. All columns are
    filled together; `interval`, `probabilities` and `sample` say how certain that is. A filled value of numbers is the
    mean of its belief, of labels the most probable one.

    Tables are arrays, or frames of pandas or polars, whose types, index and categories are kept. Kinds of columns are
    found from their types and values, and can be given:

    - "number", and "positive" for numbers > 0: any margin, by ranks. Values beyond the ends continue them, of
      positive numbers in logarithms;
    - "count": integers >= 0, filled with means, which are rounded in columns of integers;
    - "angle": of period 360; ("angle", p): of period p;
    - "date": the time of the year says something about other columns; missing dates are not filled. Dates of the kind
      "number" are points in time, which are filled;
    - "category" (up to 64 labels) and "boolean";
    - "text": up to 64 of the texts of `fit` stand for all, by similarity of their letters;
    - "vector", of several columns, {("x", "y"): "vector"}: one variable of which 64 vectors stand for all; a vector of
      which one entry is missing counts as missing.

    Args:
        kinds: {name of a column, or number in an array: kind}; the kinds of other columns are found.
        graph: pairs of names of columns that are joined, or a `kbpjax.Graph` with a node for each column. None: it is
            learned, all pairs of up to 16 columns, or a spanning tree of the largest dependences and more edges while
            the error on held-out rows falls.
        positions: places of the columns [column, dim]: nearest ones are joined first. None: no places.
        lags: number of rows before, and after, that are seen, too: rows are successive times. 0: each row alone.
        effort: "low": no potentials are trained; "auto": from 400 rows on, up to a minute of training through
            inference (`kbpjax.train`); "high": up to some minutes, from 60 rows on.
        random_state: seed of the rows that are held out in learning, and of draws.
        progress: whether to show progress bars if standard error is a terminal (and tqdm is installed).

    Attributes:
        model_: the model, a `KernelMRF` whose variables are codes of the values: normal scores, radians and labels.
        graph_: its graph, one node for each column, and for each of its neighbors in time.
        kinds_: {name: kind} of the columns that have values.
        empty_: names of the columns that have none, which stay as they are.
        dependence_: dependence of each pair of columns, in [0, 1] [column, column].
        holes_: columns whose holes depend on values of other columns (see `report`).
        selection_: what was tried in training, with scores and seconds; None without training.
        gaussian_weights_: {name: power of the Gaussian in the beliefs of the column, in [0, 1]}.
        n_features_in_, feature_names_in_: number and names of the columns.

    Examples:
        >>> import numpy as np
        >>> from kbpjax.estimator import GraphImputer
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=(200, 3))
        >>> x[rng.random(x.shape) < 0.2] = np.nan
        >>> imputer = GraphImputer(effort="low").fit(x)
        >>> bool(np.isnan(imputer.transform(x)).any())
        False
        >>> low, high = imputer.interval([[1.0, 1.1, np.nan]], 0.9)
        >>> bool(low[0, 2] < 1 < high[0, 2])
        True
    """

    model_: kbp.KernelMRF
    graph_: kbp.Graph
    kinds_: dict[Any, str]
    dependence_: Floats
    holes_: "list[reports.Holes]"
    selection_: Any
    gaussian_weights_: dict[Any, float]

    def __init__(
        self,
        *,
        kinds: Mapping[Any, Any] | None = None,
        graph: Any = None,
        positions: Any = None,
        lags: int = 0,
        effort: str = "auto",
        random_state: int = 0,
        progress: bool = False,
    ):
        self.kinds = kinds
        self.graph = graph
        self.positions = positions
        self.lags = lags
        self.effort = effort
        self.random_state = random_state
        self.progress = progress

    @public
    def fit(self, X: Any, y: Any = None) -> "GraphImputer":
        """Learn from the rows of a table, and return the estimator.

        Args:
            X: the table [row, column], with holes.
            y: ignored.

        Raises:
            ValueError: no rows, no values, infinite values, names that are not different, a text in a
                column of numbers, or an option out of range.

        Warns:
            HolesWarning: whether cells of a column are missing depends on values of other columns.
            MissingWarning: columns have no values, or a few words among numbers, which make them categories or texts;
                or, with lags, dates are left out of the index.
        """
        del y
        fix = f"Pass one of {tuple(EFFORTS)}."
        known = isinstance(self.effort, str) and self.effort in EFFORTS
        _checks.require(known, "effort", "must be a known word", repr(self.effort), fix)
        ok = _checks.is_whole(self.random_state) and 0 <= self.random_state < 2**32
        rule, fix = "must be an integer >= 0 and < 2^32", "Pass for instance 0."
        _checks.require(ok, "random_state", rule, repr(self.random_state), fix)
        fix = 'Pass for instance {"height": "positive"}.'
        ok = self.kinds is None or isinstance(self.kinds, Mapping)
        _checks.require(ok, "kinds", "must be {name of a column: kind}", repr(self.kinds)[:40], fix)
        fix = "Pass for instance 1: the row before and the row after."
        ok = _checks.is_whole(self.lags) and 0 <= self.lags <= MOST_LAGS
        _checks.require(ok, "lags", f"must be an integer in 0 .. {MOST_LAGS}", repr(self.lags), fix)
        table = Table.of(X)
        if self.lags:
            warn_of_gaps(X)
        self.n_features_in_ = len(table.names)
        if table.program != "numpy":
            self.feature_names_in_ = np.array(table.names, object)
        self._variables = variables = Variables.of(table, self.kinds or {})
        self.kinds_, self.empty_, count = variables.kinds, variables.empty, len(variables.codes)
        codes = variables.encode(table)
        lagged = _with_lags(codes, self.lags)
        spread = [*variables.codes] * (1 + 2 * self.lags)
        edges, dependence = self._edges(lagged, len(spread))
        self.dependence_ = dependence[:count, :count]
        learned = learn(
            spread,
            lagged,
            edges,
            effort=self.effort,
            seed=self.random_state,
            progress=self.progress,
            positions=None if self.positions is None else np.asarray(self.positions, float)[variables.kept],
            times=1 + 2 * self.lags,
        )
        self.model_, self.graph_, self.selection_ = learned.model, learned.graph, learned.selection
        self._joint = learned.joint
        powers = np.zeros(count) if self._joint is None else np.asarray(self._joint.power)
        self.gaussian_weights_ = {name: float(one) for name, one in zip(variables.names, powers, strict=False)}
        self._rows = Rows.of(self.model_, self.graph_)
        fix = "Look for columns of which nearly all values are equal, and leave them out."
        finite = all(np.isfinite(np.asarray(one)).all() for one in (self._rows.tables, self._rows.local))
        _checks.require(finite, "X", "must give finite relations of its columns", "NaN", fix)
        self.holes_ = reports.holes(variables.names, codes, variables.words)
        if self.holes_:
            found = "; ".join(f"{one.column!r} with {one.other!r}" for one in self.holes_[:3])
            text = f"whether cells are missing depends on values of other columns: {found}"
            warn(
                f"{text}. That is taken into account. A dependence on the missing value itself cannot be seen: if there"
                " may be one, say how, and compare (see docs/tables.md).",
                kbp.HolesWarning,
            )
        return self

    @public
    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Return the table with its holes filled.

        Args:
            X: rows of a table with the columns of `fit`.
            return_std: whether to return the uncertainty of the filled cells, too.

        Returns:
            The table, of the same program and types. With `return_std`, the table and a table of floats: standard
            deviations of numbers and angles (in their units), probabilities that labels are others, 0 where a cell was
            there.

        Raises:
            ValueError: other columns than in `fit`, infinite values, or a new category.

        Warns:
            ConvergenceWarning: the messages of some rows have not converged.

        Examples:
            >>> import numpy as np
            >>> from kbpjax.estimator import GraphImputer
            >>> rng = np.random.default_rng(0)
            >>> x = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=(200, 3))
            >>> filled, std = GraphImputer(effort="low").fit(x).transform([[1.0, 1.1, np.nan]], return_std=True)
            >>> filled[0, :2].tolist(), bool(abs(filled[0, 2] - 1) < 0.3), bool(0.2 < std[0, 2] < 0.6)
            ([1.0, 1.1], True, True)
        """
        table, codes, fills = self._filled(X)
        values = {name: (mask, value) for name, (mask, value, _) in fills.items()}
        done = table.filled(values)
        if not return_std:
            return done
        std = np.zeros((len(codes), self.n_features_in_))
        for name, (mask, _, spread) in fills.items():
            std[mask, table.names.index(name)] = spread
        return done, table.numbers(std)

    @public
    def interval(self, X: Any, coverage: float = 0.9) -> tuple[Any, Any]:
        """Return the ends of central credible intervals of the missing numbers, as two tables.

        Args:
            X: as in `transform`.
            coverage: nominal coverage in (0, 1).

        Returns:
            Lower and upper ends [row, column]: both are the value where a cell is there, and NaN for labels (see
            `probabilities`). Of angles, the shortest way from the lower to the upper end holds the value. All are
            floats, but dates of the kind "number" in frames; in arrays, these are days since 1970.

        Raises:
            ValueError: as `transform`, or the coverage is out of range.
        """
        _checks.require_number("coverage", coverage, above=0, below=1)
        table, codes = self._read(X)
        variables = self._variables
        ends = np.full((2, len(codes), self.n_features_in_), np.nan)
        numbers = [
            (i, code, name, variables.places(name)[0])
            for i, (name, code) in enumerate(zip(variables.names, variables.codes, strict=True))
            if not isinstance(code, Labels)
        ]
        for i, code, name, place in numbers:
            dates = self.kinds_[name] == "date"
            ends[:, :, place] = code.decode(codes[:, i]) if dates else variables.values(table, name)
        tail = (1 - coverage) / 2
        for rows, weights, _ in self._beliefs(codes):
            for i, code, _, place in numbers:
                gone = np.isnan(codes[rows, i])
                if not gone.any():
                    continue
                found = interval_ends(self._levels(i), weights[i][gone], (tail, 1 - tail), isinstance(code, Angles))
                for end, scores in zip(ends, found, strict=True):
                    end[np.arange(len(codes))[rows][gone], place] = code.decode(scores)
        dated = [name for name in variables.names if self.kinds_[name] in ("number", "positive", "count")]
        dated = [name for name in dated if table.columns[name].dtype.kind == "M"]
        low, high = (table.numbers(one, dated) for one in ends)
        return low, high

    @public
    def probabilities(self, X: Any) -> dict[Any, tuple[Any, np.ndarray]]:
        """Return the probabilities of the labels of each column of categories, booleans, few counts or texts.

        Args:
            X: as in `transform`.

        Returns:
            {name: (labels [label], probabilities [row, label])}; known cells have probability 1. Other columns are not
            in it: a `KeyError` names their kind. See `interval`.

        Raises:
            ValueError: as `transform`.

        Examples:
            >>> import numpy as np
            >>> from kbpjax.estimator import GraphImputer
            >>> x = np.random.default_rng(0).normal(size=100)
            >>> table = np.array([[one, "large" if one > 0 else "small"] for one in x], object)
            >>> labels, found = GraphImputer(effort="low").fit(table).probabilities([[1.5, None], [0.2, "large"]])[1]
            >>> labels.tolist(), bool(found[0, 0] > 0.9), found[1].tolist()
            (['large', 'small'], True, [1.0, 0.0])
        """
        _, codes = self._read(X)
        labels = {i: code.labels for i, code in enumerate(self._variables.codes) if isinstance(code, Labels)}
        found = {i: np.zeros((len(codes), len(own))) for i, own in labels.items()}
        for rows, weights, _ in self._beliefs(codes):
            for i, one in found.items():
                one[rows] = weights[i][:, : one.shape[1]]
        for i, one in found.items():
            there = ~np.isnan(codes[:, i])
            one[there] = np.eye(one.shape[1])[codes[there, i].astype(int)]
        return ByColumn({self._variables.names[i]: (labels[i], one) for i, one in found.items()}, self.kinds_)

    @public
    def sample(self, X: Any, n: int = 10, *, num_sweeps: int = SWEEPS) -> list[Any]:
        """Return tables whose holes are filled with joint draws: multiple imputation.

        The cells of a row are drawn together: each in turn from its belief given all others, the first time from that
        given what is there. Values between levels are drawn, too.

        Args:
            X: as in `transform`.
            n: number of tables, >= 1.
            num_sweeps: number of sweeps over the columns, >= 1.

        Raises:
            ValueError: as `transform`, or a number is out of range.

        Examples:
            >>> import numpy as np
            >>> from kbpjax.estimator import GraphImputer
            >>> rng = np.random.default_rng(0)
            >>> x = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=(200, 3))
            >>> tables = GraphImputer(effort="low").fit(x).sample([[1.0, 1.1, np.nan]], n=200)
            >>> len(tables), bool(abs(np.mean([table[0, 2] for table in tables]) - 1) < 0.3)
            (200, True)
        """
        _checks.require_count("n", n)
        _checks.require_count("num_sweeps", num_sweeps)
        table, codes = self._read(X)
        key = jax.random.key(self.random_state)
        rng = np.random.default_rng(self.random_state)
        drawn = np.repeat(codes[None], n, axis=0)
        lagged = _with_lags(codes, self.lags)
        for number, rows in enumerate(blocks(len(codes), self._rows, more=n)):
            alone, evidence = self._weights(lagged[rows])[0], self._evidence(lagged[rows])[:, : rows.stop - rows.start]
            z = jnp.asarray(np.repeat(np.asarray(self._coordinates(lagged[rows])), n, axis=0))
            beliefs, evidence = (jnp.asarray(np.repeat(np.asarray(one), n, axis=1)) for one in (alone, evidence))
            part = np.repeat(lagged[rows], n, axis=0)
            hidden = _checks.to_jax(np.isnan(part).T)
            first, own = jax.random.split(jax.random.fold_in(key, number))
            z = z if self._joint is None else conditional_draws(self._joint, z, first)
            levels = np.asarray(row_draws(self._rows, self._joint, evidence, beliefs, z, hidden, own, num_sweeps))
            for i in range(codes.shape[1]):
                found = self._variables.between(i, self._levels(i), levels[i], rng).reshape(-1, n).T
                drawn[:, rows, i] = np.where(np.isnan(codes[rows, i]), found, codes[rows, i])
        gone = np.isnan(codes)
        return [table.filled(self._variables.decode(table, one, gone)) for one in drawn]

    @public
    def posterior(self, X: Any) -> kbp.Posterior:
        """Return the posterior of all rows, with one batch axis, which all summaries of kbpjax take.

        Its values are codes: normal scores of numbers, radians of angles, and numbers of labels. It is that of the
        messages alone, without the joint Gaussian.

        Args:
            X: as in `transform`.
        """
        _, codes = self._read(X)
        lagged = _with_lags(codes, self.lags)
        y = {}
        for v, *_ in self.graph_.node_types:
            dtype = self._rows.tables.dtype
            y[v] = _checks.to_jax(lagged[:, np.asarray(self.graph_.nodes_of_type(v))], dtype)
        return jax.vmap(lambda row: kbp.infer(self.model_, self.graph_, row))(y)

    @public
    def report(self, X: Any, share: float = 0.2) -> list["reports.Report"]:
        """Return how good answers are on cells that are hidden on purpose, a row for each column.

        Args:
            X: rows that `fit` has not seen, for a figure that holds for other rows.
            share: share of the known cells that is hidden, in (0, 1).

        Returns:
            For each column: its kind, the number of hidden cells, the error, the CRPS (of labels: the probability
            score) relative to that of the column's own distribution, and which shares of the cells are within the 50 %
            and 90 % intervals (of labels: sets of labels).

        Raises:
            ValueError: as `transform`, or the share is out of range.
        """
        _checks.require_number("share", share, above=0, below=1)
        _, codes = self._read(X)
        rng = np.random.default_rng(self.random_state)
        asked = ~np.isnan(codes) & (rng.random(codes.shape) < share)
        left = np.where(asked, np.nan, codes)
        found = []
        beliefs = np.zeros((codes.shape[1], len(codes), self._rows.prior.shape[1]))
        for rows, weights, _ in self._beliefs(left):
            beliefs[:, rows] = weights
        for i, (name, code) in enumerate(zip(self._variables.names, self._variables.codes, strict=True)):
            own = code, self._levels(i), self._marginal(i)
            found.append(reports.report(name, self.kinds_[name], *own, beliefs[i], codes[:, i], asked[:, i]))
        return found

    @public
    def score(self, X: Any, y: Any = None) -> float:
        """Return the skill on cells hidden on purpose: 0 of the columns' own distributions, 1 of exact answers.

        Args:
            X: as in `report`.
            y: ignored.

        Returns:
            1 minus the mean over columns of the relative CRPS of `report`.
        """
        del y
        ratios = [one.relative_crps for one in self.report(X) if one.relative_crps == one.relative_crps]
        return float(1 - np.mean(ratios)) if ratios else float("nan")

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the output columns, which scikit-learn requires of transformers."""
        del input_features
        check_is_fitted(self, "model_")
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])
        return np.array([str(name) for name in names], object)

    def _read(self, X: Any) -> tuple[Table, Floats]:
        """Return a table and its codes; raise ValueError for other columns than in `fit`."""
        check_is_fitted(self, "model_")
        if self.lags:
            warn_of_gaps(X)
        return self._variables.read(X)

    def _edges(self, codes: Floats, num_nodes: int) -> tuple[NDArray[np.integer], Floats]:
        """Return the edges of the graph [edge, 2], and the dependence of all pairs."""
        variables = self._variables
        words = variables.words * (1 + 2 * self.lags)
        start = None
        count = len(variables.codes)
        fix = "Pass one of them."
        both = self.graph is not None and self.positions is not None
        _checks.require(not both, "graph, positions", "must not both be given", "both", fix)
        if self.positions is not None:
            places = np.asarray(_checks.as_numpy("positions", self.positions))
            _checks.require_real("positions", places)
            places = places.astype(float)
            fix = "Pass coordinates [column, dim]."
            every = count + len(self.empty_)
            _checks.require(len(places) == every, "positions", f"must be of {every} columns", len(places), fix)
            places = places[variables.kept]
            start = kbp.neighbor_graph(places, NEAREST)
            half = start.num_edges // 2
            pairs = np.stack([start.senders[:half], start.receivers[:half]], axis=1)
            start = kbp.Graph.from_edges(self._in_time(pairs), num_nodes)
        learned, dependence = learned_graph(codes, words, start, self.random_state)
        if self.graph is None:
            return learned, dependence
        if isinstance(self.graph, kbp.Graph):
            fix = "Pass a graph with a node for each column."
            ok = self.graph.num_nodes == count
            _checks.require(ok, "graph", f"must have {count} nodes", self.graph.num_nodes, fix)
            half = self.graph.num_edges // 2
            pairs = np.stack([self.graph.senders[:half], self.graph.receivers[:half]], axis=1)
        else:
            place = {name: i for i, name in enumerate(variables.names)}
            fix = "Pass pairs of names of columns."
            ok = isinstance(self.graph, Iterable) and not isinstance(self.graph, str)
            ok = ok and all(isinstance(pair, Sequence | np.ndarray) and len(pair) == 2 for pair in self.graph)
            _checks.require(ok, "graph", "must be pairs of names, or a Graph", repr(self.graph)[:40], fix)
            unknown = [one for pair in self.graph for one in pair if one not in place]
            rule = f"must join columns among {variables.names[:5]} ..."
            _checks.require(not unknown, "graph", rule, unknown[:3], fix)
            pairs = np.array([[place[a], place[b]] for a, b in self.graph], int).reshape(-1, 2)
        return self._in_time(pairs), dependence

    def _in_time(self, pairs: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return edges at each time of a window, and between successive times of each column."""
        count, times = len(self._variables.codes), 1 + 2 * self.lags
        own = np.arange(count)
        order = [*range(1, 1 + self.lags)][::-1], [*range(1 + self.lags, times)]  # blocks: now, before, after
        chain = [*order[0], 0, *order[1]]
        links = [np.stack([a * count + own, b * count + own], 1) for a, b in itertools.pairwise(chain)]
        return np.concatenate([*(pairs + t * count for t in range(times)), *links]) if times > 1 else pairs

    def _levels(self, column: int) -> Floats:
        """Return the levels of the codes of a column."""
        return np.asarray(self.model_.points[int(self.graph_.node_type[column])], float)

    def _marginal(self, column: int) -> Floats:
        """Return the weights of the levels in the distribution of a column."""
        return np.asarray(np.exp(self._rows.local[column] + self._rows.lengths[column]), float)

    def _beliefs(self, codes: Floats) -> Iterator[tuple[slice, Floats, NDArray[np.floating]]]:
        """Yield blocks of rows, their beliefs [column, row, level] and residuals; warn of those not converged."""
        lagged, failed, count = _with_lags(codes, self.lags), 0, codes.shape[1]
        for rows in blocks(len(codes), self._rows):
            part = lagged[rows]
            weights, residual = self._weights(part)
            failed += int(np.sum(residual > 1e-2))
            yield rows, weights[:count].astype(float), residual
        if failed:
            text = f"the messages of {failed} of {len(codes)} rows have not converged"
            warn(f"{text}: their answers are rough. Learn from more rows, or with fewer edges.", kbp.ConvergenceWarning)

    def _weights(self, part: Floats) -> tuple[Floats, Floats]:
        """Return beliefs [node, row, level] and residuals [row] of a block of rows."""
        evidence = self._evidence(part)
        weights, residual = settled_beliefs(self._rows, evidence, len(part))
        if self._joint is None:
            return weights, residual
        padded = np.zeros((len(weights), evidence.shape[1], weights.shape[2]), weights.dtype)
        padded[:, : len(part)] = weights
        z = np.full((evidence.shape[1], self._joint.coordinates.size), np.nan, weights.dtype)
        z[: len(part)] = self._coordinates(part)
        base = self._rows.local + self._rows.lengths
        found = pooled_beliefs(self._joint, jnp.asarray(z), base, jnp.asarray(padded))
        return np.asarray(found)[:, : len(part)], residual

    def _coordinates(self, part: Floats) -> jax.Array:
        """Return the coordinates of rows in the Gaussian [row, coordinate]; without one, none."""
        codes = [*self._variables.codes] * (1 + 2 * self.lags)
        found = np.zeros((len(part), 0)) if self._joint is None else self._joint.coordinates.of_codes(codes, part)
        return _checks.to_jax(found, self._rows.tables.dtype)

    def _evidence(self, lagged: Floats) -> jax.Array:
        """Return the evidence of a block of rows, padded to one of few sizes."""
        return padded_evidence(self._rows, self.model_, self.graph_, lagged)

    def _filled(self, X: Any) -> tuple[Table, Floats, dict[Any, tuple[NDArray[np.bool_], NDArray[Any], Floats]]]:
        """Return the table, its codes, and {column: (mask of its holes, values, spreads)}."""
        table, codes = self._read(X)
        gone = np.isnan(codes)
        found: dict[int, tuple[list, list]] = {i: ([], []) for i in range(codes.shape[1])}
        for rows, weights, _ in self._beliefs(codes):
            for i in found:
                holes = gone[rows, i]
                if holes.any():
                    value, spread = self._variables.summary(i, self._levels(i), weights[i][holes])
                    found[i][0].append(value)
                    found[i][1].append(spread)
        fills = {}
        for i, (values, spreads) in found.items():
            if values and self.kinds_[self._variables.names[i]] != "date":
                value, spread = np.concatenate(values), np.concatenate(spreads)
                for name, mask, one, own in self._variables.cells(table, i, gone[:, i], value, spread):
                    fills[name] = mask, one, own
        return table, codes, fills

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _with_lags(codes: Floats, lags: int) -> Floats:
    """Return rows beside those before and after [row, (1 + 2 lags) column]: now, before from near to far, after."""
    if not lags:
        return codes
    parts = [codes]
    for step in (*range(1, lags + 1), *range(-1, -lags - 1, -1)):
        moved = np.full_like(codes, np.nan)
        if step > 0:
            moved[step:] = codes[:-step]
        else:
            moved[:step] = codes[-step:]
        parts.append(moved)
    return np.concatenate(parts, axis=1)
