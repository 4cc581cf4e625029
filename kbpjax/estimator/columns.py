"""Columns of a table as variables of a model: numbers as normal scores, angles, and finite sets of values.

The codes of numbers are standard normal scores: one increasing map for each column, through the ranks of its values
(a nonparanormal; Liu, Lafferty, Wasserman 2009). So all columns of numbers have one margin and one set of levels, a
belief about a code is one about the value, and filled values stay where values can be: between the smallest and the
largest, or a little beyond of numbers without ties.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import kbpjax as kbp
from kbpjax import _checks

KINDS = ("number", "positive", "count", "angle", "date", "category", "boolean", "text", "vector")
"""What a column may hold."""

KNOTS = 1000
"""Largest number of values through which the map to normal scores goes."""

FARTHEST = 4.5
"""Largest normal score."""

FEW = 12
"""Number of different values of counts up to which they are a finite set."""

ORDERED, NARROWEST = 5, 0.3
"""Of the kernel of few counts, in steps of their order: how many are a standard deviation, and the least bandwidth."""

MOST_LABELS = 64
"""Largest number of categories, and of texts or vectors that stand for all."""

NEARLY_ALL = 0.8
"""Share of numbers, or of dates, among the values of a column from which on the others are taken for mistakes."""

DATE = re.compile(r"\s*(\d{4}-\d\d?-\d\d?|\d\d?[./-]\d\d?[./-]\d{2,4}|\d{4}/\d\d?/\d\d?)([ T]\d\d?:\d\d.*)?\s*")
"""What a text looks like that is a date."""

YEAR = 365.2425
"""Days of a year."""

Values = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers as normal scores.

    Attributes:
        values, scores: the map, both increasing [knot]; a repeated value has the score of its middle rank.
        ends, at_ends: the inverse map [knot]: each value twice, and increasing scores. The two scores of a value that
            is repeated often are those of its first and last ranks; those of other values are almost equal.
        low, high: step of a value beyond the ends for a step of the score; 0 where an end is taken many times.
        logarithmic: whether the steps are of logarithms: of positive numbers.
        whole: whether values are integers.
    """

    finite: ClassVar[bool] = False
    values: NDArray[np.floating]
    scores: NDArray[np.floating]
    ends: NDArray[np.floating]
    at_ends: NDArray[np.floating]
    low: float
    high: float
    logarithmic: bool
    whole: bool

    @classmethod
    def of(cls, x: Values, kind: str) -> "Numbers":
        """Return the map of the values of a column, NaN where missing."""
        from scipy.special import ndtri

        known = np.sort(x[~np.isnan(x)])
        values, counts = np.unique(known, return_counts=True)
        above = np.cumsum(counts)
        scores = ndtri((above - counts / 2) / len(known))
        positive = kind == "positive" and values[0] > 0
        spread = float(np.std(np.log(known) if positive else known))
        low, high = (0.0 if kind == "count" or ties > 1 else spread for ties in (counts[0], counts[-1]))
        low = 0.0 if kind == "positive" and not positive else low
        if len(values) > KNOTS:
            at = np.unique(np.searchsorted(scores, np.linspace(scores[0], scores[-1], KNOTS)))
            tails = np.r_[:20, len(values) - 20 : len(values)]
            chosen = np.unique(np.concatenate([at, tails]))
            values, scores, counts = values[chosen], scores[chosen], np.diff(above, prepend=0)[chosen]
            above = above[chosen]
        tied = counts > max(len(known) / KNOTS, 1)
        below = ndtri(np.clip((above - counts) / len(known), 1e-9, 1))
        at_ends = np.stack([np.where(tied, below, scores), np.where(tied, ndtri(above / len(known)), scores)], axis=1)
        at_ends = np.clip(at_ends, scores[0] if not tied[0] else -9, scores[-1] if not tied[-1] else 9)
        ends, at_ends = np.repeat(values, 2), at_ends.reshape(-1)
        at_ends = np.maximum.accumulate(at_ends) + 1e-9 * np.arange(len(at_ends))
        return cls(values, scores, ends, at_ends, low, high, positive, kind == "count")

    def encode(self, x: Values) -> NDArray[np.floating]:
        """Return normal scores, NaN where values are."""
        scores = np.interp(x, self.values, self.scores)
        with np.errstate(invalid="ignore", divide="ignore"):
            at = (lambda v: np.log(np.maximum(v, 1e-300))) if self.logarithmic else (lambda v: v)
            below, above = at(x) - at(self.values[0]), at(x) - at(self.values[-1])
            scores = np.where(below < 0, self.scores[0] + (below / self.low if self.low else 0), scores)
            scores = np.where(above > 0, self.scores[-1] + (above / self.high if self.high else 0), scores)
        return np.where(np.isnan(x), np.nan, np.clip(scores, -FARTHEST, FARTHEST))

    def decode(self, scores: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the values of normal scores."""
        values = np.interp(scores, self.at_ends, self.ends)
        below, above = np.minimum(scores - self.scores[0], 0), np.maximum(scores - self.scores[-1], 0)
        if self.logarithmic:
            return values * np.exp(self.low * below + self.high * above)
        return values + self.low * below + self.high * above


@dataclasses.dataclass(frozen=True)
class Angles:
    """Angles as radians in [0, 2 pi): of a period, or the time of the year of dates in days since 1970.

    Attributes:
        period: the period of the values.
    """

    finite: ClassVar[bool] = False
    period: float

    def encode(self, x: Values) -> NDArray[np.floating]:
        """Return radians, NaN where values are."""
        return np.mod(x * (2 * np.pi / self.period), 2 * np.pi)

    def decode(self, radians: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the values of radians, in [0, period)."""
        return np.mod(radians, 2 * np.pi) * (self.period / (2 * np.pi))


@dataclasses.dataclass(frozen=True)
class Labels:
    """A finite set of values as codes 0, 1, 2, ...

    Attributes:
        labels: the values, sorted or in the order of their categories: texts, numbers, or rows of vectors.
        kernel: kernel of the codes.
        nearest: for other values than the labels: the code of the most similar label; None: they are refused.
    """

    finite: ClassVar[bool] = True
    labels: Values
    kernel: Any
    nearest: Callable[[Any], NDArray[np.integer]] | None = None

    def encode(self, x: Values, name: str) -> NDArray[np.floating]:
        """Return codes, NaN where values are missing."""
        if self.nearest is not None:
            there = ~missing(x) if x.ndim == 1 else ~np.isnan(x).any(axis=1)
            codes = np.full(len(x), np.nan)
            if there.any():
                codes[there] = self.nearest(x[there])
            return codes
        place = {label: i for i, label in enumerate(self.labels.tolist())}
        gone = missing(x)
        codes = np.array([np.nan if m else place.get(one, -1) for one, m in zip(x.tolist(), gone, strict=True)])
        new = [one for one, code in zip(x.tolist(), codes, strict=True) if code == -1]
        known = self.labels.tolist()[:5]
        fix = "Fit on rows that have all categories, or mark the cells as missing."
        rule = f"column {name!r} must have categories of fit, such as {known}"
        _checks.require(not new, "X", rule, f"{new[:3]} in {len(new)} rows", fix)
        return codes


Code = Numbers | Angles | Labels


def missing(x: Values) -> NDArray[np.bool_]:
    """Return which entries of a column are None, NaN, NaT or NA."""
    if x.dtype.kind in "fc":
        return np.isnan(x)
    if x.dtype.kind in "mM":
        return np.isnat(x)
    if x.dtype.kind != "O":
        return np.zeros(x.shape, bool)
    return np.array([_is_missing(one) for one in x.reshape(-1)], bool).reshape(x.shape)


def _is_missing(one: Any) -> bool:
    return one is None or type(one).__name__ in ("NAType", "NaTType") or (isinstance(one, float) and one != one)


def kind_of(x: Values) -> str:
    """Return the kind of a column from its dtype and values."""
    known = x[~missing(x)]
    if x.dtype.kind == "b" or (
        x.dtype.kind == "O" and len(known) and all(isinstance(i, bool | np.bool_) for i in known)
    ):
        return "boolean"
    if x.dtype.kind == "M":
        return "date"
    if x.dtype.kind in "OUS" and any(isinstance(one, str | bytes) for one in known.tolist()):
        return "category" if len(set(known.tolist())) <= MOST_LABELS else "text"
    if x.dtype.kind in "OUS":
        return (
            "category"
            if not len(known) or not all(isinstance(i, int | float | np.number) for i in known)
            else (kind_of(known.astype(float)))
        )
    if len(known) and bool(np.all(known >= 0)) and bool(np.all(known == np.round(known))):
        return "count"
    return "positive" if len(known) and bool(np.all(known > 0)) else "number"


def odd_among_numbers(x: Values) -> list[Any] | None:
    """Return the different values of a column that are not numbers; None unless nearly all values are.

    Texts such as "1.5" are numbers.
    """
    counts = Counter(x[~missing(x)].tolist())
    odd = [one for one in counts if not _is_number(one)]
    few = sum(counts[one] for one in odd) <= (1 - NEARLY_ALL) * counts.total()
    return odd if few and counts else None


def are_dates(x: Values) -> bool:
    """Return whether nearly all values of a column are texts that look like dates."""
    counts = Counter(x[~missing(x)].tolist())
    dates = sum(count for one, count in counts.items() if isinstance(one, str) and DATE.fullmatch(one))
    return dates > 0 and dates >= NEARLY_ALL * counts.total()


def _is_number(one: Any) -> bool:
    if isinstance(one, bool | np.bool_) or not isinstance(one, str | bytes | int | float | np.number):
        return False
    try:
        float(one)
    except ValueError:
        return False
    return True


def as_numbers(name: str, x: Values) -> NDArray[np.floating]:
    """Return a column of numbers or dates as floats, NaN where missing; dates as days since 1970."""
    if x.dtype.kind in "mM":
        return np.where(np.isnat(x), np.nan, x.astype("datetime64[s]").astype(np.int64) / 86400)
    gone = missing(x)
    try:
        values = np.where(gone, np.nan, np.where(gone, 0, x).astype(float))
    except (TypeError, ValueError):
        wrong = next(one for one in x[~gone].tolist() if not isinstance(one, int | float | np.number))
        fix = 'Correct it, mark the cell as missing, or pass kinds={...: "category"}.'
        _checks.require(False, "X", f"column {name!r} must have numbers", repr(wrong)[:40], fix)
        raise
    bad = int(np.sum(np.isinf(values)))
    fix = "Correct these values, or mark them as missing by NaN."
    _checks.require(bad == 0, "X", f"column {name!r} must be finite, or NaN where missing", f"{bad} infinities", fix)
    return values


def code_of(name: str, kind: str, x: Values, period: float, order: Sequence[Any] | None) -> Code:
    """Return how a column is coded.

    Args:
        name: the name of the column, for errors.
        kind: its kind.
        x: its values [row], or [row, coordinate] of vectors.
        period: period of an angle.
        order: the categories in their order; None: sorted.
    """
    if kind in ("angle", "date"):
        return Angles(YEAR if kind == "date" else period)
    if kind in ("number", "positive", "count"):
        numbers = as_numbers(name, x)
        known = numbers[~np.isnan(numbers)]
        if kind != "number":
            fix = 'Pass kinds={...: "number"}.'
            rule = f"column {name!r} must have values >= 0 of the kind {kind!r}"
            _checks.require(bool(np.all(known >= 0)), "X", rule, float(known.min()), fix)
        values = np.unique(known)
        if kind == "count" and len(values) <= FEW:
            width = max(len(known) ** (-1 / 6) * len(values) / ORDERED, NARROWEST)
            middle = (values[1:] + values[:-1]) / 2
            return Labels(values, kbp.RBF(width), partial(_nearest_number, middle))
        return Numbers.of(numbers, kind)
    if kind in ("category", "boolean"):
        known = x[~missing(x)].tolist()
        labels = list(dict.fromkeys(known)) if order is None else [one for one in order if one in set(known)]
        if order is None:
            labels = sorted(labels) if len({type(one) for one in labels}) == 1 else sorted(labels, key=str)
        many = len(labels) <= MOST_LABELS
        fix = 'Join rare categories, or pass kinds={...: "text"} for texts.'
        _checks.require(many, "X", f"column {name!r} must have at most {MOST_LABELS} categories", len(labels), fix)
        array = np.empty(len(labels), object)
        array[:] = labels
        return Labels(array, kbp.Delta())
    return _texts(x) if kind == "text" else _vectors(x)


def _texts(x: Values) -> Labels:
    """Return the codes of texts: some of them stand for all, by the cosine of their counts of three letters."""
    known = sorted({str(one) for one in x[~missing(x)].tolist()})
    vocabulary = {gram: i for i, gram in enumerate(sorted({g for one in known for g in _grams(one)}))}

    table = _counts(vocabulary, known)
    at = np.sort(_spread(table))
    chosen, labels = table[at], np.array([known[i] for i in at], object)
    similar = np.clip(chosen @ chosen.T, 0, 1)
    np.fill_diagonal(similar, 1)
    kernel = kbp.kernels.Precomputed(kbp.kernels.nearest_gram(similar))
    return Labels(labels, kernel, partial(_nearest_text, vocabulary, chosen))


def _grams(text: str) -> list[str]:
    padded = f" {text.lower()} "
    return [padded[i : i + 3] for i in range(max(len(padded) - 2, 1))]


def _vectors(x: Values) -> Labels:
    """Return the codes of vectors: some of them stand for all, by a Gaussian kernel of standardized coordinates."""
    known = x[~np.isnan(x).any(axis=1)]
    scale = np.where(known.std(axis=0) > 0, known.std(axis=0), 1)
    distinct = np.unique(known, axis=0)
    at = _spread(distinct / scale)
    chosen = distinct[np.sort(at)]
    squares = (((chosen[:, None] - chosen[None]) / scale) ** 2).sum(axis=-1)
    width = np.median(np.sqrt(squares[squares > 0])) / 4 if len(chosen) > 1 else 1.0
    kernel = kbp.kernels.Precomputed(np.exp(-squares / (2 * width**2)))
    return Labels(chosen, kernel, partial(_nearest_vector, chosen, scale))


def _counts(vocabulary: Mapping[str, int], texts: Sequence[Any]) -> NDArray[np.floating]:
    """Return normalized counts of the letters of texts, three at a time [text, gram]."""
    table = np.zeros((len(texts), len(vocabulary)))
    for row, text in zip(table, texts, strict=True):
        for gram in _grams(str(text)):
            if gram in vocabulary:
                row[vocabulary[gram]] += 1
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)


def _nearest_number(middle: Values, new: Values) -> NDArray[np.integer]:
    return np.searchsorted(middle, new)


def _nearest_text(vocabulary: Mapping[str, int], chosen: Values, new: Values) -> NDArray[np.integer]:
    return np.argmax(_counts(vocabulary, new.tolist()) @ chosen.T, axis=1)


def _nearest_vector(chosen: Values, scale: Values, new: Values) -> NDArray[np.integer]:
    return np.argmin((((new[:, None] - chosen[None]) / scale) ** 2).sum(axis=-1), axis=1)


def _spread(table: NDArray[np.floating]) -> NDArray[np.integer]:
    """Return up to `MOST_LABELS` rows that are far from each other (Gonzalez 1985)."""
    chosen, away = [0], np.full(len(table), np.inf)
    while len(chosen) < min(MOST_LABELS, len(table)):
        away = np.minimum(away, ((table - table[chosen[-1]]) ** 2).sum(axis=1))
        if away.max() <= 1e-12:
            break
        chosen.append(int(np.argmax(away)))
    return np.array(chosen)
