"""Kernels on strings, of symbols, words or residues, encoded by `Alphabet`: by the substrings that two have in common.

- `Spectrum`: contiguous substrings of one length (Leslie, Eskin and Noble 2002).
- `Mismatch`: the same, a few symbols of which may differ (Leslie et al. 2004).
- `Subsequence`: subsequences with gaps, each gap at a price (Lodhi et al. 2002).
- `LocalAlignment`: alignments of parts of two strings by a substitution matrix (Vert, Saigo and Akutsu 2004).

A point is an array of codes 1, 2, ... with 0 after its end; values do not depend on how many 0 follow. Sums of kernels
blend several lengths. Long strings have more of everything: `Normalized` makes cosines (`LocalAlignment` is one).
A pair costs some thousand operations or more: `gram(..., block_size=)` bounds the memory of many, and
`PivotedCholesky` landmarks their number.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax.kernels.base import Kernel, as_floats, positive_number
from kbpjax.kernels.text import Alphabet as Alphabet
from kbpjax.kernels.text import check_codes
from kbpjax.kernels.text import mask as mask


class Spectrum(Kernel):
    """The number of pairs of equal contiguous substrings of one length, one of each string; 0 for shorter strings.

    The inner product of the counts of all substrings of that length, over any alphabet. A pair costs
    order * length^2 operations.

    Args:
        order: length of the substrings, >= 1.

    Raises:
        ValueError: order is not an integer >= 1.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.kernels.strings import Alphabet, Spectrum
        >>> x = Alphabet("abn").encode(["banana", "band"[:3]])
        >>> float(Spectrum(2)(x[0], x[0])), float(Spectrum(2)(x[0], x[1]))  # ba, an twice, na twice
        (9.0, 3.0)
    """

    order: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        _checks.require_count("order", self.order)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the number of pairs of equal substrings."""
        return _count_windows(*_codes(x, y), self.order, (1,), as_floats(x).dtype)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Ask for encoded strings."""
        check_codes(argument, points)


class Mismatch(Kernel):
    r"""The (k, m)-mismatch kernel $\langle \phi(x), \phi(y) \rangle$.

    Feature $\phi_b$ counts the substrings within m mismatches of b, and b runs through all strings of length k = order
    over the alphabet. How many are within m of two substrings depends on the number d of places where these differ
    only, so the kernel is the sum of I(d) over pairs of substrings, and a pair of strings costs order * length^2
    operations whatever the alphabet (Leslie et al. 2004). 0 for strings shorter than order; without mismatches it is
    `Spectrum`.

    Args:
        order: length k of the substrings, >= 1.
        mismatches: most symbols m that may differ, from 0 to order.
        num_symbols: size of the alphabet, >= 1.

    Raises:
        ValueError: a number out of range.

    Examples:
        >>> from kbpjax.kernels.strings import Alphabet, Mismatch
        >>> dna = Alphabet("ACGT")
        >>> x = dna.encode(["AC", "AG", "TT"])
        >>> kernel = Mismatch(2, 1, dna.num_symbols)
        >>> [float(kernel(x[0], y)) for y in x]  # AC and 6 others are within 1 of AC, and 4 of these of AG
        [7.0, 4.0, 2.0]
    """

    order: int = eqx.field(static=True, converter=_checks.whole)
    mismatches: int = eqx.field(static=True, converter=_checks.whole)
    num_symbols: int = eqx.field(static=True, converter=_checks.whole)
    table: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, order: int, mismatches: int, num_symbols: int):
        _checks.require_count("order", order)
        _checks.require_count("num_symbols", num_symbols)
        whole = isinstance(mismatches, int | np.integer) and not isinstance(mismatches, bool)
        rule = f"must be an integer from 0 to order = {order}"
        ok = whole and 0 <= mismatches <= order
        _checks.require(ok, "mismatches", rule, repr(mismatches), "Take 1 or 2.")
        self.order, self.mismatches, self.num_symbols = int(order), int(mismatches), int(num_symbols)
        self.table = _common_neighbours(self.order, self.mismatches, self.num_symbols)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return <phi(x), phi(y)>."""
        return _count_windows(*_codes(x, y), self.order, self.table, as_floats(x).dtype)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Ask for strings over the alphabet."""
        check_codes(argument, points, self.num_symbols)


class Subsequence(Kernel):
    """The subsequence kernel: the sum over common subsequences of one length of decay^(span in x + span in y).

    A subsequence u of length `order` that x has at places i_1 < ... < i_n spans i_n - i_1 + 1 symbols; every pair of
    occurrences counts (Lodhi et al. 2002, definition 1). 0 for strings shorter than order, and where decay^(2 order)
    is below the smallest float. A pair costs order * length^3 operations, all of them in matrix products.

    Args:
        order: length of the subsequences, >= 1.
        decay: price of each symbol spanned, in (0, 1]; a parameter that can be learned. Near 0 only contiguous
            substrings count, at 1 gaps are free.

    Raises:
        ValueError: order is not an integer >= 1; decay out of range.

    Examples:
        >>> from kbpjax.kernels.strings import Alphabet, Subsequence
        >>> x = Alphabet("acrt").encode(["cat", "car"])
        >>> kernel = Subsequence(2, 0.5)
        >>> float(kernel(x[0], x[1])), float(kernel(x[0], x[0]))  # decay^4, and 2 decay^4 + decay^6
        (0.0625, 0.140625)
    """

    order: int = eqx.field(static=True, converter=_checks.whole)
    decay: Float[Array, ""]

    def __init__(self, order: int, decay: ScalarLike):
        _checks.require_count("order", order)
        _checks.require_number("decay", decay, above=0, most=1)
        self.order = int(order)
        self.decay = positive_number("decay", decay)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the sum over common subsequences."""
        return _with_slope(_subsequences, (self.order,), self.decay.astype(as_floats(x).dtype), *_codes(x, y))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Ask for encoded strings."""
        check_codes(argument, points)


class LocalAlignment(Kernel):
    """The local alignment kernel k, the sum of exp(beta score) over all alignments: k(x, y) / sqrt(k(x, x) k(y, y)).

    An alignment pairs some symbols of x with as many of y, in order. Its score is the sum of the pairs' scores, less
    gap_open + gap_extend (n - 1) for each n symbols left out between two pairs in either string; leaving out the ends
    is free, and pairing nothing scores 0 (Vert, Saigo and Akutsu 2004). As k grows exponentially with the length it is
    computed, and normalized, in logarithms: `Normalized` has nothing to add. Values below the smallest float are 0: a
    smaller beta brings unlike strings nearer to each other. A pair costs some 10 length^2 logarithms of sums.

    Args:
        scores: symmetric matrix of the scores of pairs of symbols [symbol, symbol] in the order of their codes, such
            as BLOSUM62, or 2 on the diagonal and -1 beside it. exp(beta scores) must be positive semidefinite.
        gap_open: price of the first symbol of a gap, >= 0, in units of the scores.
        gap_extend: price of each further symbol, >= 0.
        beta: how much good alignments count for more, > 0; a parameter that can be learned, within the range where
            exp(beta scores) stays positive semidefinite. The paper has 0.5 for BLOSUM62 with gaps of 11 and 1.

    Raises:
        ValueError: scores not square, symmetric and finite, or not positive semidefinite; a number out of range.

    Examples:
        >>> import numpy as np
        >>> from kbpjax.kernels.strings import Alphabet, LocalAlignment
        >>> x = Alphabet("ACGT").encode(["GATTACA", "GATACA", "CCC"])
        >>> kernel = LocalAlignment(3 * np.eye(4) - 1, gap_open=1.0, gap_extend=0.5, beta=0.5)
        >>> [round(float(kernel(x[0], y)), 2) for y in x]
        [1.0, 0.74, 0.06]
    """

    scores: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    gap_open: float = eqx.field(static=True)
    gap_extend: float = eqx.field(static=True)
    beta: Float[Array, ""]

    def __init__(self, scores: Numbers, gap_open: float, gap_extend: float, beta: ScalarLike):
        self.beta = positive_number("beta", beta)
        _checks.require_number("gap_open", gap_open, least=0)
        _checks.require_number("gap_extend", gap_extend, least=0)
        self.scores = _checked_scores(scores, beta)
        self.gap_open, self.gap_extend = float(gap_open), float(gap_extend)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the cosine of the strings' alignment features."""
        beta = self.beta.astype(as_floats(x).dtype)
        options = self.scores, self.gap_open, self.gap_extend
        x, y = _codes(x, y)
        logs = [_with_slope(_log_alignments, options, beta, *pair) for pair in ((x, y), (x, x), (y, y))]
        return jnp.exp(logs[0] - 0.5 * (logs[1] + logs[2]))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Ask for strings of the symbols that have scores."""
        check_codes(argument, points, len(self.scores))


def _codes(x: Array, y: Array) -> tuple[Int[Array, " length"], Int[Array, " length"]]:
    """Return two points as integers."""
    ok = x.ndim == 1 and x.shape == y.shape
    got = f"shapes {x.shape}, {y.shape}"
    _checks.require(ok, "x, y", "must be two encoded strings of one length", got, "Encode all strings together.")
    return x.astype(jnp.int32), y.astype(jnp.int32)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _count_windows(
    x: Int[Array, " length"], y: Int[Array, " length"], order: int, table: tuple[int, ...], dtype: Any
) -> Float[Array, ""]:
    """Sum over pairs of windows, one of each string, table[number of places where they differ]; 0 beyond the table."""
    windows = len(x) - order + 1
    if windows < 1:
        return jnp.zeros((), dtype)

    def step(carried: Array, window: Array) -> tuple[Array, None]:
        distances = sum((y[i : i + windows] != window[i]).astype(jnp.int32) for i in range(order))
        weights = sum(jnp.where(distances == d, jnp.asarray(w, dtype), 0) for d, w in enumerate(table))
        return carried + jnp.where(mask(window[-1]) & mask(y[order - 1 :]), weights, 0), None

    of_x = jnp.stack([x[i : i + windows] for i in range(order)], axis=1)
    counts, _ = jax.lax.scan(step, jnp.zeros(windows, dtype), of_x)
    return jnp.sum(counts)


def _common_neighbours(order: int, mismatches: int, num_symbols: int) -> tuple[int, ...]:
    """Return, for each distance d of two strings, how many strings are within `mismatches` of both.

    Where the two are equal, such a string may have any of num_symbols - 1 others; of the d places where they differ it
    agrees with the first in a, with the second in b, and has another symbol in the rest.
    """

    def count(d: int) -> int:
        return sum(
            math.comb(order - d, same)
            * (num_symbols - 1) ** same
            * math.comb(d, a)
            * math.comb(d - a, b)
            * max(num_symbols - 2, 0) ** (d - a - b)
            for same in range(order - d + 1)
            for a in range(d + 1)
            for b in range(d - a + 1)
            if same + d - min(a, b) <= mismatches
        )

    return tuple(count(d) for d in range(min(2 * mismatches, order) + 1))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _with_slope(
    function: Callable[..., Array],
    options: tuple[Any, ...],
    parameter: Float[Array, ""],
    x: Int[Array, " length"],
    y: Int[Array, " length"],
) -> Float[Array, ""]:
    """Evaluate a function of one number; its slope is computed forwards, as backwards would keep all of a scan."""
    return function(*options, parameter, x, y)


@_with_slope.defjvp
def _slope(function: Any, options: Any, primals: Any, tangents: Any) -> Any:
    parameter, x, y = primals
    value, slope = jax.jvp(lambda p: function(*options, p, x, y), (parameter,), (jnp.ones_like(parameter),))
    return value, slope * tangents[0]


@partial(jax.jit, static_argnums=0)
def _subsequences(
    order: int, decay: Float[Array, ""], x: Int[Array, " length"], y: Int[Array, " length"]
) -> Float[Array, ""]:
    """Sum decay^(spans) over common subsequences of one length.

    With s_p(i, j) the sum over those of length p that end at i in x and at j in y, less decay for their own symbols,

        s_p(i, j) = [x_i = y_j] sum_{i' < i, j' < j} decay^(i - i' - 1) decay^(j - j' - 1) s_{p-1}(i', j').

    The scan along x carries the sum over i' for p < order [order - 1, length]; a triangular matrix does that over j'.
    """
    places = jnp.arange(len(y))
    gaps = places[None] - places[:, None] - 1
    reach = jnp.where(gaps >= 0, decay ** jnp.maximum(gaps, 0).astype(decay.dtype), 0)

    def step(carried: Array, symbol: Array) -> tuple[Array, Array]:
        equal = ((y == symbol) & mask(symbol)).astype(decay.dtype)[None]
        ended = jnp.concatenate([equal, equal * matmul(carried, reach)])
        return decay * carried + ended[:-1], jnp.sum(ended[-1])

    _, sums = jax.lax.scan(step, jnp.zeros((order - 1, len(y)), decay.dtype), x)
    return jnp.sum(sums) * decay ** (2 * order)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _log_alignments(
    scores: tuple[tuple[float, ...], ...],
    gap_open: float,
    gap_extend: float,
    beta: Float[Array, ""],
    x: Int[Array, " length"],
    y: Int[Array, " length"],
) -> Float[Array, ""]:
    """Return log k, the logarithm of the sum over alignments, by the recursions of Vert, Saigo and Akutsu (2004).

        M(i, j) = exp(beta S(x_i, y_j)) (1 + M + X + Y)(i - 1, j - 1)       ends with the pair i, j
        X(i, j) = exp(-beta open) M(i - 1, j) + exp(-beta extend) X(i - 1, j)              skips x_i
        Y(i, j) = exp(-beta open) (M + X)(i, j - 1) + exp(-beta extend) Y(i, j - 1)        skips y_j

    and k = 1 + sum M. Cells with i + j = d need those of d - 1 and d - 2 only, so the scan is along d, all i at a time.
    """
    low = jnp.finfo(beta.dtype).min / 4  # the logarithm of 0: finite, so that differences are
    first, further = beta * gap_open, beta * gap_extend
    pairs = beta * jnp.asarray(np.array(scores), beta.dtype)
    pairs = jnp.pad(pairs, ((1, 0), (1, 0)), constant_values=low)[x]
    nothing = jnp.full(len(x), low, beta.dtype)

    def step(carried: tuple[Array, ...], opposite: Array) -> tuple[tuple[Array, ...], None]:
        match, skip_x, either, skip_y, start, total = carried
        start_next = _shift(_log_add(_log_add(either, skip_y), jnp.zeros_like(either)), 0)
        skip_x = _log_add(_shift(match, low) - first, _shift(skip_x, low) - further)
        skip_y = _log_add(either - first, skip_y - further)
        match = jnp.take_along_axis(pairs, opposite[:, None], axis=1)[:, 0] + start
        return (match, skip_x, _log_add(match, skip_x), skip_y, start_next, _log_add(total, match)), None

    carried = (nothing, nothing, nothing, nothing, jnp.zeros_like(nothing), nothing)
    (*_, total), _ = jax.lax.scan(step, carried, _antidiagonals(y))
    return jnp.logaddexp(jax.nn.logsumexp(total), 0)


def _log_add(a: Float[Array, " length"], b: Float[Array, " length"]) -> Float[Array, " length"]:
    """Return log(exp(a) + exp(b)) of finite numbers."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


def _shift(values: Float[Array, " length"], first: ScalarLike) -> Float[Array, " length"]:
    """Move values on by one place."""
    return jnp.pad(values[:-1], (1, 0), constant_values=first)


def _antidiagonals(y: Int[Array, " length"]) -> Int[Array, "diagonal length"]:
    """Return y_{d - i} for d = 0, 1, ... and all i, and 0 where there is none."""
    length = len(y)
    places = jnp.arange(2 * length - 1)[:, None] - jnp.arange(length)[None]
    return jnp.where((places >= 0) & (places < length), y[jnp.clip(places, 0, length - 1)], 0)


def _checked_scores(scores: Numbers, beta: ScalarLike) -> tuple[tuple[float, ...], ...]:
    """Return a substitution matrix as numbers, if exp(beta scores) is positive semidefinite."""
    _checks.require_finite("scores", scores, "Pass a finite score for each pair of symbols.")
    matrix = np.asarray(scores, np.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    fix = "Pass one row and one column for each symbol."
    _checks.require(square, "scores", "must be a matrix [symbol, symbol]", f"shape {matrix.shape}", fix)
    gap = np.abs(matrix - matrix.T).max()
    _checks.require(gap == 0, "scores", "must be symmetric", f"entries that differ by {gap}", "Average with .T.")
    if not _checks.is_traced(beta):
        spectrum = np.linalg.eigvalsh(np.exp(np.asarray(beta, np.float64) * (matrix - matrix.max())))
        share = spectrum[0] / spectrum[-1]
        rule = "must have exp(beta scores) positive semidefinite"
        got = f"a least eigenvalue of {share:.2g} times the largest"
        fix = "Raise beta, or the scores of equal symbols."
        _checks.require(share >= -1e-12, "scores", rule, got, fix)
    return tuple(map(tuple, matrix.tolist()))
