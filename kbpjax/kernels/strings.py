"""Kernels on strings of symbols, words or residues, based on common substrings; `Alphabet` encodes the strings.

- `Spectrum`: contiguous substrings of one length (Leslie, Eskin and Noble 2002).
- `Mismatch`: contiguous substrings with a few mismatched symbols (Leslie et al. 2004).
- `Subsequence`: subsequences with penalized gaps (Lodhi et al. 2002).
- `LocalAlignment`: local alignments with a substitution matrix (Vert, Saigo and Akutsu 2004).

A point is an array of codes 1, 2, ... padded with 0; values do not depend on the amount of padding. Sums of kernels
combine several lengths. Values grow with the length of strings: use `Normalized` for cosines (`LocalAlignment` is
already normalized). A pair costs thousands of operations or more: `gram(..., block_size=)` bounds the memory, and
`PivotedCholesky` landmarks the number of pairs.
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
    """The spectrum kernel: the inner product of the counts of all contiguous substrings of one length.

    It counts pairs of equal substrings, one from each string, and is 0 for shorter strings. The alphabet may have any
    size. A pair of strings costs order * length^2 operations.

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
        """Raise ValueError unless points are encoded strings."""
        check_codes(argument, points)


class Mismatch(Kernel):
    r"""The (k, m)-mismatch kernel $\langle \phi(x), \phi(y) \rangle$.

    Feature $\phi_b$ counts the substrings within m mismatches of b, for all strings b of length k = order over the
    alphabet. The number I(d) of strings b within m mismatches of two substrings depends only on their Hamming distance
    d. The kernel is therefore the sum of I(d) over pairs of substrings. A pair of strings costs order * length^2
    operations, independent of the alphabet (Leslie et al. 2004). The kernel is 0 for strings shorter than order, and
    equals `Spectrum` for 0 mismatches.

    Args:
        order: length k of the substrings, >= 1.
        mismatches: maximum number m of mismatched symbols, from 0 to order.
        num_symbols: size of the alphabet, >= 1.

    Raises:
        ValueError: an argument is out of range.

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
        integer = isinstance(mismatches, int | np.integer) and not isinstance(mismatches, bool)
        rule = f"must be an integer from 0 to order = {order}"
        ok = integer and 0 <= mismatches <= order
        _checks.require(ok, "mismatches", rule, repr(mismatches), "Use 1 or 2.")
        self.order, self.mismatches, self.num_symbols = int(order), int(mismatches), int(num_symbols)
        self.table = _common_neighbors(self.order, self.mismatches, self.num_symbols)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return <phi(x), phi(y)>."""
        return _count_windows(*_codes(x, y), self.order, self.table, as_floats(x).dtype)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are encoded strings over the alphabet."""
        check_codes(argument, points, self.num_symbols)


class Subsequence(Kernel):
    """The subsequence kernel: the sum over common subsequences of one length of decay^(span in x + span in y).

    The span of a subsequence at positions i_1 < ... < i_n of x is i_n - i_1 + 1, with n = order. Every pair of
    occurrences counts (Lodhi et al. 2002, definition 1). The kernel is 0 for strings shorter than order, and if
    decay^(2 order) underflows. A pair costs order * length^3 operations, all in matrix products.

    Args:
        order: length of the subsequences, >= 1.
        decay: factor per symbol of the span, in (0, 1]; a trainable parameter. Near 0 only contiguous substrings
            count; at 1 gaps have no penalty.

    Raises:
        ValueError: order is not an integer >= 1, or decay is out of range.

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
        """Raise ValueError unless points are encoded strings."""
        check_codes(argument, points)


class LocalAlignment(Kernel):
    """The normalized local alignment kernel, k(x, y) / sqrt(k(x, x) k(y, y)), with k the sum of exp(beta score).

    The sum is over all alignments. An alignment pairs symbols of x with symbols of y, in order. Its score is the sum of
    the scores of its pairs, minus gap_open + gap_extend (n - 1) per gap of n unpaired symbols between two pairs.
    Unpaired ends have no penalty, and the empty alignment has score 0 (Vert, Saigo and Akutsu 2004). k grows
    exponentially with length, so it is computed and normalized in logarithms; do not apply `Normalized`. Values that
    underflow are 0; a smaller beta makes dissimilar strings more similar. A pair costs about 10 length^2 logarithms.

    Args:
        scores: symmetric matrix of the scores of pairs of symbols [symbol, symbol] in the order of their codes, for
            instance BLOSUM62, or 2 on the diagonal and -1 off it. exp(beta scores) must be positive semidefinite.
        gap_open: penalty of the first symbol of a gap, >= 0, in units of the scores.
        gap_extend: penalty of each further symbol, >= 0.
        beta: inverse temperature of alignment scores, > 0; a trainable parameter, valid while exp(beta scores) is
            positive semidefinite. The paper uses 0.5 for BLOSUM62 with gap penalties 11 and 1.

    Raises:
        ValueError: scores are not square, symmetric and finite, exp(beta scores) is not positive semidefinite, or a
            number is out of range.

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
        """Return the cosine of the alignment features of two strings."""
        beta = self.beta.astype(as_floats(x).dtype)
        options = self.scores, self.gap_open, self.gap_extend
        x, y = _codes(x, y)
        logs = [_with_slope(_log_alignments, options, beta, *pair) for pair in ((x, y), (x, x), (y, y))]
        return jnp.exp(logs[0] - 0.5 * (logs[1] + logs[2]))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are encoded strings over the symbols of `scores`."""
        check_codes(argument, points, len(self.scores))


def _codes(x: Array, y: Array) -> tuple[Int[Array, " length"], Int[Array, " length"]]:
    """Return the codes of two points as integers."""
    ok = x.ndim == 1 and x.shape == y.shape
    got = f"shapes {x.shape}, {y.shape}"
    _checks.require(ok, "x, y", "must be two encoded strings of one length", got, "Encode all strings together.")
    return x.astype(jnp.int32), y.astype(jnp.int32)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _count_windows(
    x: Int[Array, " length"], y: Int[Array, " length"], order: int, table: tuple[int, ...], dtype: Any
) -> Float[Array, ""]:
    """Return the sum of table[Hamming distance] over pairs of windows, one per string; 0 beyond the table."""
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


def _common_neighbors(order: int, mismatches: int, num_symbols: int) -> tuple[int, ...]:
    """Return the number of strings within `mismatches` of two strings, for each Hamming distance d of the two.

    At the order - d positions where the two agree, a string differs in `same` of them. At the d positions where they
    differ, it agrees with the first string in a, with the second in b, and with neither in the rest.
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
    """Return function(*options, parameter, x, y), differentiated in forward mode to avoid storing its scan."""
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
    """Return the sum of decay^(spans) over common subsequences of one length.

    Let s_p(i, j) be the sum over subsequences of length p that end at i in x and at j in y, without the factors decay
    of their own symbols. Then

        s_p(i, j) = [x_i = y_j] sum_{i' < i, j' < j} decay^(i - i' - 1) decay^(j - j' - 1) s_{p-1}(i', j').

    The scan along x carries the sum over i' for p < order [order - 1, length]; a triangular matrix sums over j'.
    """
    positions = jnp.arange(len(y))
    gaps = positions[None] - positions[:, None] - 1
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

        M(i, j) = exp(beta S(x_i, y_j)) (1 + M + X + Y)(i - 1, j - 1)       ends with the pair (i, j)
        X(i, j) = exp(-beta open) M(i - 1, j) + exp(-beta extend) X(i - 1, j)              skips x_i
        Y(i, j) = exp(-beta open) (M + X)(i, j - 1) + exp(-beta extend) Y(i, j - 1)        skips y_j

    and k = 1 + sum M. Cells with i + j = d depend only on diagonals d - 1 and d - 2, so the scan is over diagonals d.
    """
    low = jnp.finfo(beta.dtype).min / 4  # a finite log(0), so that differences are finite
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
    """Return values shifted by one position."""
    return jnp.pad(values[:-1], (1, 0), constant_values=first)


def _antidiagonals(y: Int[Array, " length"]) -> Int[Array, "diagonal length"]:
    """Return y_{d - i} for d = 0, 1, ... and all i, or 0 if the index is out of range."""
    length = len(y)
    indices = jnp.arange(2 * length - 1)[:, None] - jnp.arange(length)[None]
    return jnp.where((indices >= 0) & (indices < length), y[jnp.clip(indices, 0, length - 1)], 0)


def _checked_scores(scores: Numbers, beta: ScalarLike) -> tuple[tuple[float, ...], ...]:
    """Return a substitution matrix as tuples; raise ValueError unless exp(beta scores) is positive semidefinite."""
    _checks.require_finite("scores", scores, "Pass a finite score for each pair of symbols.")
    matrix = np.asarray(_checks.as_numpy("scores", scores), np.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    fix = "Pass one row and one column per symbol."
    _checks.require(square, "scores", "must be a matrix [symbol, symbol]", f"shape {matrix.shape}", fix)
    gap = np.abs(matrix - matrix.T).max()
    _checks.require(gap == 0, "scores", "must be symmetric", f"entries that differ by {gap}", "Average with .T.")
    if not _checks.is_traced(beta):
        spectrum = np.linalg.eigvalsh(np.exp(np.asarray(beta, np.float64) * (matrix - matrix.max())))
        ratio = spectrum[0] / spectrum[-1]
        rule = "must have exp(beta scores) positive semidefinite"
        got = f"a smallest eigenvalue of {ratio:.2g} times the largest"
        fix = "Increase beta, or the scores of equal symbols."
        _checks.require(ratio >= -1e-12, "scores", rule, got, fix)
    return tuple(map(tuple, matrix.tolist()))
