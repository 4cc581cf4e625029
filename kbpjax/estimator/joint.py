r"""A joint Gaussian of the codes of all columns, whose answers are combined with those of the messages.

Messages on a dense graph of strongly dependent columns are approximate, and where single columns nearly follow from
several others (three blood values and their sum) far from right. A Gaussian of the normal scores answers there exactly.
What is bent, or depends on labels, it does not see. So beliefs are combined,

$$b(x) \propto \left( p(x)^w \; m(x)^{1 - w} \right)^{1 / T},$$

with p of the Gaussian, m of the messages, and the weight w of a column and the temperature T chosen by the scores of
cells of held-out rows: a logarithmic opinion pool (Genest and Zidek 1986).

Labels are indicators in the Gaussian, whose conditional means, between 0 and 1, are their probabilities; angles are
their cosines and sines, and their beliefs are those of the messages.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.estimator.columns import Angles, Code, Labels

Floats = NDArray[np.floating]

LABELS = 24
"""Largest number of labels that are indicators; columns of more are no part of the Gaussian."""

COORDINATES = 600
"""Largest number of coordinates; a larger Gaussian is not made."""

ROUNDS = 16
"""Rounds of expectation maximization; half as many where another shrinkage starts from its result."""

SHRUNK = (0.3, 0.1, 0.03, 0.003)
"""Shares of the independent covariance that are compared."""

DRAWN = 0.1
"""What a share of the independent covariance must gain: it draws all relations to 0, which single cells hardly show."""

TOWARDS = (0.9, 0.6, 0.3, 0.1)
"""Shares of the covariance of the places that are compared."""

SPANS = tuple(0.1 * 1.3**k for k in range(20))
"""Ranges of the correlation of the places that are compared, in median distances."""

NUGGETS = (0.001, 0.01, 0.03, 0.06, *(0.05 * k for k in range(2, 13)))
"""Shares of the variance that places near each other do not have in common."""

LEAST = 1e-3
"""Smallest probability of a label, and share of a variance that is added to it: indicators add up to 1."""

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the Gaussian that are compared."""

HEATS = (0.7, 0.85, 1.0, 1.2, 1.45, 1.75)
"""Temperatures that are compared."""

PRICE = 0.005
"""What a step of the temperature away from 1 must gain, as a share of the score."""

SHARED = 200
"""Number of cells of all columns that count as much as those of a column in the choice of its weight."""

TINY = 1e-30
"""What is added to probabilities before their logarithm."""

HELD = 1000
"""Largest number of rows on which powers and temperatures are compared."""

CELLS = 3000
"""Number of hidden cells up to which cells of the same rows are hidden again."""

SHARE = 0.2
"""Share of the known cells of these rows that is hidden."""

BATCH = 64
"""Number of rows whose conditionals are computed at once."""


class Coordinates(eqx.Module):
    """Coordinates of nodes in a Gaussian: of a number itself, of an angle cosine and sine, of labels indicators.

    Attributes:
        places: numbers of the coordinates of a node [node, slot]; padding holds the number of coordinates.
        at_levels: coordinates of a node at its levels [node, level, slot].
        numbers: whether the answer for a node is a density of its coordinate [node].
        labels: whether it is the means of its indicators [node].
        spacing: distance of the levels of numbers [node].
        num_levels: numbers of levels [node].
        size: number of coordinates.
    """

    places: Array
    at_levels: Float[Array, "node level slot"]
    numbers: Array
    labels: Array
    spacing: Float[Array, " node"]
    num_levels: Int[Array, " node"]
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, codes: Sequence[Code], levels: Sequence[Floats], num_levels: int) -> "Coordinates":
        """Return the coordinates of nodes with some codes and levels."""
        widths = np.array([_width(code) for code in codes])
        first, size = np.cumsum(widths) - widths, int(widths.sum())
        slots = np.arange(max(widths.max(initial=1), 1))
        places = np.where(slots < widths[:, None], first[:, None] + slots, size)
        at_levels = np.zeros((len(codes), num_levels, len(slots)))
        for i, (code, x) in enumerate(zip(codes, levels, strict=True)):
            at_levels[i, : len(x), : widths[i]] = _at(code, x)
        answered = (widths > 0) & ~np.array([isinstance(code, Angles) for code in codes])
        labels = np.array([isinstance(code, Labels) for code in codes])
        spacing = [np.ptp(x) / max(len(x) - 1, 1) if len(x) else 1.0 for x in levels]
        dtype = jnp.result_type(float)
        return cls(
            _checks.to_jax(places, np.int32),
            _checks.to_jax(at_levels, dtype),
            _checks.to_jax(~labels & answered),
            _checks.to_jax(labels & answered),
            _checks.to_jax(np.array(spacing), dtype),
            _checks.to_jax(np.array([max(len(x), 1) for x in levels]), np.int32),
            size,
        )

    def of_codes(self, codes: Sequence[Code], table: Floats) -> Floats:
        """Return the coordinates of the codes of a table [row, coordinate], NaN where they are missing."""
        found = np.full((len(table), self.size), np.nan)
        for i, code in enumerate(codes):
            own = np.asarray(self.places[i])
            own = own[own < self.size]
            there = ~np.isnan(table[:, i])
            if len(own):
                found[np.ix_(there, own)] = _at(code, table[there, i])
        return found


def _width(code: Code) -> int:
    """Return the number of coordinates of a code."""
    if isinstance(code, Labels):
        return len(code.labels) if len(code.labels) <= LABELS else 0
    return 2 if isinstance(code, Angles) else 1


def _at(code: Code, x: Floats) -> Floats:
    """Return the coordinates of codes [value, slot]."""
    if isinstance(code, Labels):
        return np.eye(_width(code))[x.astype(int)] if _width(code) else np.zeros((len(x), 0))
    return np.stack([np.cos(x), np.sin(x)], axis=1) if isinstance(code, Angles) else x[:, None]


class Joint(eqx.Module):
    """A Gaussian of the coordinates of nodes, and how much it counts.

    Attributes:
        coordinates: the coordinates.
        mean: [coordinate].
        covariance: [coordinate, coordinate].
        root: R with covariance R R'.
        precision: rows of the inverse of the covariance [node, slot, coordinate]; of padding 0.
        blocks: covariance of the coordinates of a node given all others [node, slot, slot].
        power: weight w of the Gaussian [node].
        heat: temperature T [node].
    """

    coordinates: Coordinates
    mean: Float[Array, " coordinate"]
    covariance: Float[Array, "coordinate coordinate"]
    root: Float[Array, "coordinate coordinate"]
    precision: Float[Array, "node slot coordinate"]
    blocks: Float[Array, "node slot slot"]
    power: Float[Array, " node"]
    heat: Float[Array, " node"]

    @classmethod
    def of(cls, coordinates: Coordinates, mean: Floats, covariance: Floats) -> "Joint":
        """Return the Gaussian with some moments, which does not count yet."""
        places, size = np.asarray(coordinates.places), coordinates.size
        inverse = np.pad(np.linalg.inv(covariance), ((0, 1), (0, 0)))
        inside = places < size
        blocks = np.pad(inverse, ((0, 0), (0, 1)))[places[:, :, None], places[:, None]]
        blocks = (
            np.linalg.inv(blocks + np.eye(places.shape[1]) * ~inside[:, None]) * inside[:, None] * inside[..., None]
        )
        count, dtype = len(places), jnp.result_type(float)
        parts = (
            mean,
            covariance,
            np.linalg.cholesky(covariance),
            inverse[places],
            blocks,
            np.zeros(count),
            np.ones(count),
        )
        return cls(coordinates, *(_checks.to_jax(np.asarray(one), dtype) for one in parts))

    def answers(
        self,
        mean: Float[Array, "row slot"],
        variance: Float[Array, "row slot"],
        node: Array,
        base: Float[Array, " level"],
    ) -> Float[Array, "row level"]:
        """Return the logarithms of the answers for a node with some means and variances; 0 of nodes without any.

        The density of a number is relative to the Gaussian of its column: without evidence the answer is the marginal.

        Args:
            mean: means of the coordinates of the node.
            variance: their variances.
            node: its number.
            base: logarithms of its marginal at the levels.
        """
        of = self.coordinates
        x, k = of.at_levels[node, :, 0][None], jnp.minimum(of.places[node, 0], max(of.size - 1, 0))
        narrow = jnp.maximum(variance[:, :1], (of.spacing[node] / 2) ** 2)
        of_number = (x - self.mean[k]) ** 2 / (2 * self.covariance[k, k]) - (x - mean[:, :1]) ** 2 / (2 * narrow)
        shares = jnp.where((of.places[node] < of.size)[None], jnp.maximum(mean, LEAST), 0)
        of_labels = jnp.log(jnp.pad(shares, ((0, 0), (0, len(base) - shares.shape[1]))) + TINY)
        return jnp.where(of.numbers[node], base[None] + of_number, jnp.where(of.labels[node], of_labels, 0))

    def pooled(self, logs: Float[Array, "row level"], beliefs: Array, node: Array) -> Float[Array, "row level"]:
        """Return the logarithms of beliefs of messages combined with the answers of the Gaussian."""
        return (self.power[node] * logs + (1 - self.power[node]) * beliefs) / self.heat[node]

    def given_others(
        self, z: Float[Array, "row coordinate"], node: Array, base: Float[Array, " level"]
    ) -> Float[Array, "row level"]:
        """Return the logarithms of the answers for a node given the coordinates of all others."""
        places = jnp.minimum(self.coordinates.places[node], self.coordinates.size - 1)
        away = matmul(z - self.mean[None], self.precision[node].T)
        mean = z[:, places] - matmul(away, self.blocks[node])
        variance = jnp.broadcast_to(jnp.diagonal(self.blocks[node])[None], mean.shape)
        return self.answers(mean, variance, node, base)

    def with_numbers(self, state: Int[Array, "node row"], z: Float[Array, "row coordinate"]) -> Int[Array, "node row"]:
        """Return levels, those of numbers for which the Gaussian counts nearest to their coordinates."""
        of = self.coordinates
        x = of.at_levels[:, :, 0]
        at = z[:, jnp.minimum(of.places[:, 0], of.size - 1)].T
        steps = jnp.round((at - x[:, :1]) / jnp.maximum(of.spacing[:, None], TINY))
        nearest = jnp.clip(steps.astype(jnp.int32), 0, (of.num_levels - 1)[:, None]).astype(state.dtype)
        return jnp.where((of.numbers & (self.power > 0))[:, None], nearest, state)

    def with_state(self, z: Array, node: Array, levels: Int[Array, " row"], hidden: Bool[Array, " row"]) -> Array:
        """Return coordinates with those of a node at its drawn levels, where it is hidden."""
        places = self.coordinates.places[node]
        old = z[:, jnp.minimum(places, self.coordinates.size - 1)]
        new = jnp.where(hidden[:, None], self.coordinates.at_levels[node, levels], old)
        return z.at[:, places].set(new, mode="drop")


def log_answers(joint: Joint, z: Float[Array, "row coordinate"], base: Float[Array, "node level"]) -> Array:
    """Return the logarithms of the Gaussian's answers for the nodes of rows [node, row, level].

    Args:
        joint: the Gaussian.
        z: coordinates of the values, NaN where they are missing.
        base: logarithms of the marginals at the levels.
    """
    return _log_answers(joint, *conditionals(joint.mean, joint.covariance, z), base)


@jax.jit
def _log_answers(joint: Joint, mean: Array, variance: Array, base: Array) -> Float[Array, "node row level"]:
    nodes = jnp.arange(len(base), dtype=jnp.int32)
    places = jnp.minimum(joint.coordinates.places, joint.coordinates.size - 1)
    each = lambda node, own: joint.answers(mean[:, own], variance[:, own], node, base[node])
    return jax.vmap(each)(nodes, places)


def pooled_beliefs(joint: Joint, z: Array, base: Array, beliefs: Float[Array, "node row level"]) -> Array:
    """Return the beliefs of messages combined with the answers of the Gaussian."""
    return _pooled(joint, log_answers(joint, z, base), beliefs)


@jax.jit
def _pooled(joint: Joint, logs: Array, beliefs: Array) -> Float[Array, "node row level"]:
    nodes = jnp.arange(len(logs), dtype=jnp.int32)
    return jax.nn.softmax(jax.vmap(joint.pooled)(logs, jnp.log(beliefs + TINY), nodes), axis=-1)


def conditionals(mean: Any, covariance: Any, z: Any) -> tuple[Array, Array]:
    """Return means and variances of all coordinates given those that are there [row, coordinate]."""
    found, (variance, _) = _filled(mean, covariance, z)
    return found, variance


def _filled(mean: Any, covariance: Any, z: Any) -> tuple[Array, tuple[Array, Array]]:
    """Return rows filled with conditional means, conditional variances, and the sum of conditional covariances.

    The systems are of the missing coordinates or of the others, whichever are fewer at most.
    """
    gone = np.isnan(np.asarray(z))
    dtype = jnp.result_type(float)
    most = [int(mask.sum(axis=1).max(initial=0)) for mask in (gone, ~gone)]
    by_missing = most[0] <= most[1]
    size = min(1 << max(min(most) - 1, 0).bit_length(), gone.shape[1])
    chosen = np.argsort(gone if not by_missing else ~gone, axis=1, kind="stable")[:, :size]
    there = np.take_along_axis(gone if by_missing else ~gone, chosen, axis=1)
    places = np.where(there, chosen, gone.shape[1])
    count = len(gone)
    extra = ((0, BATCH * (1 << max(-(-count // BATCH) - 1, 0).bit_length()) - count), (0, 0))  # few sizes are compiled
    rows = _checks.to_jax(np.pad(places, extra, constant_values=gone.shape[1]), np.int32)
    z = np.pad(np.asarray(z), extra)
    matrix = np.asarray(covariance, float)
    matrix = np.linalg.inv(matrix) if by_missing else matrix
    given = (_checks.to_jax(np.asarray(one), dtype) for one in (mean, np.pad(matrix, (0, 1)), z))
    found, variance, total = _given_few(*given, rows, jnp.asarray(np.arange(len(z)) < count), by_missing)
    return found[:count], (variance[:count], total)


@partial(jax.jit, static_argnames="by_missing")
def _given_few(
    mean: Float[Array, " coordinate"],
    matrix: Float[Array, "padded padded"],
    z: Float[Array, "row coordinate"],
    places: Int[Array, "row few"],
    real: Bool[Array, " row"],
    by_missing: bool,
) -> tuple[Array, Array, Array]:
    """Return what `_filled` does.

    Args:
        mean: the mean.
        matrix: the precision, or the covariance, with a row and a column of zeros.
        z: coordinates, NaN where they are missing.
        places: numbers of the missing coordinates, or of the others; padding holds the number of coordinates.
        real: which rows are no padding.
        by_missing: which of the two.
    """
    size = len(mean)

    def one(case: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row, own, counts = case
        x = jnp.where(jnp.isnan(row), 0, row - mean)
        inside = (own < size).astype(x.dtype)
        block = matrix[own[:, None], own[None]] + jnp.diag(1 - inside)
        if by_missing:
            spread = jnp.linalg.inv(block) * inside[:, None] * inside[None]
            pushed = matrix[own, :size] @ x
            found = x.at[own].set(-spread @ pushed, mode="drop")
            variance = jnp.zeros(size, x.dtype).at[own].set(jnp.diagonal(spread), mode="drop")
            spread = jnp.zeros((size, size), x.dtype).at[own[:, None], own[None]].add(spread, mode="drop")
        else:
            gain = jnp.linalg.solve(block, matrix[own, :size])
            spread = matrix[:size, :size] - matrix[:size, own] @ gain
            found = jnp.pad(x, (0, 1))[own] @ gain
            variance = jnp.diagonal(spread)
        found = jnp.where(jnp.isnan(row), found + mean, row)
        return jnp.where(counts, spread, 0), found, jnp.maximum(variance, 0)

    def block_of(total: Array, cases: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        spread, found, variance = jax.vmap(one)(cases)
        return total + jnp.sum(spread, axis=0), (found, variance)

    zero = jnp.zeros((size, size), mean.dtype)
    blocked = lambda rows: rows.reshape(-1, BATCH, *rows.shape[1:])
    total, (found, variance) = jax.lax.scan(block_of, zero, (blocked(z), blocked(places), blocked(real)))
    return found.reshape(-1, size), variance.reshape(-1, size), total


def conditional_draws(joint: Joint, z: Float[Array, "row coordinate"], key: Array) -> Array:
    """Return joint draws of all coordinates given those that are there, which stay (Matheron's rule)."""
    free = _free(joint, z, key)
    moved = _filled(np.zeros(z.shape[1], z.dtype), joint.covariance, z - free)[0]
    return jnp.where(jnp.isnan(z), free + moved, z)


@jax.jit
def _free(joint: Joint, z: Float[Array, "row coordinate"], key: Array) -> Float[Array, "row coordinate"]:
    """Return draws of all coordinates, given nothing."""
    return joint.mean[None] + jax.random.normal(key, z.shape, z.dtype) @ joint.root.T


class Held(NamedTuple):
    """Rows that nothing was learned from, of which cells are hidden.

    Attributes:
        table: their codes [row, node].
        asked: what is hidden [row, node].
    """

    table: Floats
    asked: NDArray[np.bool_]

    @classmethod
    def of(cls, table: Floats, seed: int) -> "Held":
        """Return rows of a table with cells hidden at random, each row as often as there are few of them."""
        rng, table = np.random.default_rng(seed + 2), table[:HELD]
        cells = max(int(SHARE * np.sum(~np.isnan(table))), 1)
        table = np.concatenate([table] * int(np.clip(CELLS // cells, 1, 10)))
        return cls(table, ~np.isnan(table) & (rng.random(table.shape) < SHARE))

    @property
    def seen(self) -> Floats:
        """What is left [row, node]."""
        return np.where(self.asked, np.nan, self.table)


def learn_joint(
    codes: Sequence[Code],
    levels: Sequence[Floats],
    num_levels: int,
    table: Floats,
    kept: NDArray[np.integer],
    held: Held,
    positions: Floats | None,
) -> tuple[Joint, Joint] | None:
    """Return the Gaussian of some rows and of all, shrunk as is best on the others; None of too many coordinates.

    Args:
        codes: how each node is coded.
        levels: levels of each node.
        num_levels: the number that levels are padded to.
        table: codes [row, node].
        kept: the rows that shrinkages are compared from.
        held: the other rows.
        positions: places of the columns, whose blocks follow each other [column, dim]; None: not known.
    """
    coordinates = Coordinates.of(codes, levels, num_levels)
    if not 0 < coordinates.size <= COORDINATES:
        return None
    z = coordinates.of_codes(codes, table)
    seen, truth = (coordinates.of_codes(codes, one) for one in (held.seen, held.table))
    numbers = np.asarray(coordinates.places)[np.asarray(coordinates.numbers), 0]
    targets = [np.diag(np.nanvar(z, axis=0) + LEAST)]
    compared = [(0, share) for share in SHRUNK]
    if positions is not None and len(numbers) == coordinates.size:
        targets.append(_of_places(z, positions))
        compared = [(1, share) for share in TOWARDS] + compared
    known = ~np.isnan(z[kept]).all(axis=0)  # a column may have values in the other rows alone
    some = np.where(known, z[kept], 0)
    mean = np.where(known, np.nanmean(some, axis=0), np.nanmean(z, axis=0))
    found = mean, targets[0]
    best = np.inf, 0, SHRUNK[-2], found
    for target, share in compared:
        found = moments(z[kept], targets[target], share, found)
        score = _score(*found, seen, truth, numbers)
        score *= 1 if target else 1 + DRAWN * share
        if score < best[0]:
            best = score, target, share, found
    _, target, share, found = best
    return Joint.of(coordinates, *found), Joint.of(coordinates, *moments(z, targets[target], share, found))


def moments(
    z: Floats, target: Floats, share: float, start: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats]:
    """Return mean and covariance by expectation maximization, shrunk to a target in each round."""
    there = ~np.isnan(z)
    mean, covariance = (np.nanmean(z, axis=0), target) if start is None else start
    for _ in range(ROUNDS if start is None else ROUNDS // 2):
        filled, (_, spread) = _filled(mean, covariance, z)
        rows = np.asarray(filled, float)
        mean = rows.mean(axis=0)
        moment = ((rows - mean).T @ (rows - mean) + np.asarray(spread, float)) / len(rows)
        covariance = (1 - share) * moment + share * target + LEAST * np.diag(np.diag(target))
        if there.all():
            break
    return mean, (covariance + covariance.T) / 2


def _score(mean: Floats, covariance: Floats, seen: Floats, truth: Floats, numbers: NDArray[np.integer]) -> float:
    """Return the mean CRPS of the conditionals of numbers that are hidden; 1 if there are none."""
    from scipy.stats import norm

    found, variance = (np.asarray(one, float)[:, numbers] for one in conditionals(mean, covariance, seen))
    asked = (np.isnan(seen) & ~np.isnan(truth))[:, numbers]
    if not asked.any():
        return 1.0
    std = np.sqrt(np.maximum(variance, 1e-6))[asked]
    away = (truth[:, numbers][asked] - found[asked]) / std
    return float(np.mean(std * (away * (2 * norm.cdf(away) - 1) + 2 * norm.pdf(away) - 1 / np.sqrt(np.pi))))


def _of_places(z: Floats, positions: Floats) -> Floats:
    """Return the covariance of kriging: an exponential correlation of places times that of times."""
    count = len(positions)
    times = z.shape[1] // count
    std = np.sqrt(np.nanvar(z, axis=0) + LEAST)
    x = np.nan_to_num((z - np.nanmean(z, axis=0)) / std)
    there = (~np.isnan(z)).astype(float)
    pairs = there.T @ there
    measured = x.T @ x / np.maximum(pairs, 1)
    in_time = np.eye(times)
    for a, b in itertools.combinations(range(times), 2):
        own = np.diagonal(measured[a * count : (a + 1) * count, b * count : (b + 1) * count])
        in_time[a, b] = in_time[b, a] = np.clip(np.mean(own), -0.98, 0.98)
    values, vectors = np.linalg.eigh(in_time)
    in_time = (vectors * np.maximum(values, LEAST)) @ vectors.T
    distance = np.sqrt(((positions[:, None] - positions[None]) ** 2).sum(axis=-1))
    unit = np.median(distance[distance > 0]) if (distance > 0).any() else 1.0
    weight, first = pairs[:count, :count] * (1 - np.eye(count)), measured[:count, :count]

    def correlation(length: float, nugget: float) -> Floats:
        return (1 - nugget) * np.exp(-distance / (length * unit)) + nugget * np.eye(count)

    misfit = lambda options: np.sum(weight * (correlation(*options) - first) ** 2)
    chosen = min(itertools.product(SPANS, NUGGETS), key=misfit)
    return np.kron(in_time, correlation(*chosen)) * std[:, None] * std


def weighed(
    joint: Joint,
    codes: Sequence[Code],
    levels: Sequence[Floats],
    base: Array,
    held: Held,
    beliefs: Callable[[Floats], Floats],
) -> Joint:
    """Return the Gaussian with the weights and the temperature that are best on held-out rows.

    Args:
        joint: the Gaussian of other rows.
        codes: how each column is coded; nodes of other times come after them, and have their weights.
        levels: levels of each column.
        base: logarithms of the marginals of nodes at the levels.
        held: rows that neither has been learned from.
        beliefs: a function from codes to the beliefs of the messages [node, row, level].
    """
    of, count = joint.coordinates, len(codes)
    z = of.of_codes([*codes] * (len(base) // count), held.seen)
    logs = np.asarray(log_answers(joint, _checks.to_jax(z, base.dtype), base))[:count]
    messages = np.log(beliefs(held.seen)[:count] + TINY)
    counts = held.asked[:, :count].sum(axis=0)
    scores = np.zeros((count, len(POWERS), len(HEATS)))
    for i in range(count):
        asked = held.asked[:, i]
        if not asked.any():
            continue
        truth, own = held.table[asked, i], len(levels[i])
        both = logs[i][asked, :own], messages[i][asked, :own]
        for a, b in itertools.product(range(len(POWERS)), range(len(HEATS))):
            mixed = (POWERS[a] * both[0] + (1 - POWERS[a]) * both[1]) / HEATS[b]
            weights = np.exp(mixed - mixed.max(axis=1, keepdims=True))
            scores[i, a, b] = _energy(codes[i], levels[i], weights / weights.sum(axis=1, keepdims=True), truth)
    power, heat = np.zeros(count), np.ones(count)
    steps = np.abs(np.arange(len(HEATS)) - HEATS.index(1.0))
    words = np.asarray(of.numbers)[:count] + 2 * np.asarray(of.labels)[:count]
    for word in np.unique(words):
        group = np.flatnonzero(words == word)
        total = counts[group].sum()
        if not total:
            continue
        common = np.einsum("i,iab->ab", counts[group] / total, scores[group])
        for i in group:
            curve = (counts[i] * scores[i] + SHARED * common) / (counts[i] + SHARED) * (1 + PRICE * steps)
            if not word:
                curve[1:] = np.inf  # no answer of the Gaussian
            a, b = np.unravel_index(np.argmin(curve), curve.shape)
            power[i], heat[i] = POWERS[a], HEATS[b]
    times = len(base) // count
    dtype = base.dtype
    new = _checks.to_jax(np.tile(power, times), dtype), _checks.to_jax(np.tile(heat, times), dtype)
    return eqx.tree_at(lambda one: (one.power, one.heat), joint, new)


def _energy(code: Code, levels: Floats, weights: Floats, truth: Floats) -> float:
    """Return the mean CRPS of beliefs on levels; of labels half the probability score."""
    if isinstance(code, Labels):
        return float(np.mean(((weights - np.eye(len(levels))[truth.astype(int)]) ** 2).sum(axis=1)) / 2)
    if isinstance(code, Angles):
        distance = lambda d: np.abs((d + np.pi) % (2 * np.pi) - np.pi)
    else:
        distance = np.abs
    spread = np.einsum("rp,pq,rq->r", weights, distance(levels[:, None] - levels[None]), weights) / 2
    return float(np.mean((weights * distance(levels[None] - truth[:, None])).sum(axis=1) - spread))
