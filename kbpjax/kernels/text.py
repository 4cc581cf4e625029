"""Encoding of strings as arrays: symbols of an alphabet have codes 1, 2, ..., and 0 pads strings to one length.

The kernels in `kbpjax.kernels.strings` ignore padding.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from kbpjax import _checks
from kbpjax._public import public


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """An alphabet of Unicode characters; the code of a symbol is its position, counted from 1.

    Attributes:
        symbols: the symbols, without repetition.

    Raises:
        ValueError: there is no symbol, or a symbol is repeated.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.kernels.text import Alphabet
        >>> dna = Alphabet("ACGT")
        >>> dna.encode(["GATTACA", "CAT"]).tolist()
        [[3, 1, 4, 4, 1, 2, 1], [2, 1, 4, 0, 0, 0, 0]]
        >>> dna.decode(dna.encode(["GATTACA", "CAT"]))
        ['GATTACA', 'CAT']
    """

    symbols: str

    def __post_init__(self) -> None:
        given: Any = self.symbols
        fix = "Pass for instance 'ACGT', or use Alphabet.of(strings)."
        _checks.require(isinstance(given, str), "symbols", "must be a str", type(given).__name__, fix)
        _checks.require(len(given) > 0, "symbols", "must hold at least one symbol", repr(given), fix)
        repeated = sorted({symbol for symbol in given if given.count(symbol) > 1})
        _checks.require(not repeated, "symbols", "must hold each symbol once", f"{repeated} more than once", fix)

    @classmethod
    @public
    def of(cls, strings: Any) -> "Alphabet":
        """Return the sorted alphabet of the symbols in a list of strings.

        Raises:
            ValueError: the argument is not a list of strings, or is empty.

        Examples:
            >>> from kbpjax.kernels.text import Alphabet
            >>> Alphabet.of(["cat", "car"]).symbols
            'acrt'
        """
        return cls("".join(sorted(set().union(*_listed(strings)))))

    @property
    def num_symbols(self) -> int:
        """The number of symbols, equal to the largest code."""
        return len(self.symbols)

    @public
    def encode(self, strings: Any, length: int | None = None) -> Int[Array, "string length"]:
        """Return the codes of strings, padded with 0.

        Args:
            strings: list of nonempty strings.
            length: length of the arrays; None: the length of the longest string.

        Returns:
            Codes [string, length].

        Raises:
            ValueError: the argument is not a list of strings, or a string is empty, longer than `length`, or has
                symbols outside the alphabet.
        """
        listed = _listed(strings)
        longest = max(map(len, listed))
        if length is not None:
            _checks.require_count("length", length)
            long = next((i for i, string in enumerate(listed) if len(string) > length), None)
            got = long is not None and f"{len(listed[long])} symbols in string {long}"
            rule = f"must have at most length = {length} symbols"
            _checks.require(long is None, "strings", rule, got, "Increase length.")
        code_of = {symbol: code for code, symbol in enumerate(self.symbols, 1)}
        codes = np.zeros((len(listed), longest if length is None else length), np.int32)
        for i, string in enumerate(listed):
            unknown = next((symbol for symbol in string if symbol not in code_of), None)
            fix = "Use Alphabet.of(all strings), or replace the symbol."
            got = f"{unknown!r} in string {i}, {string[:40]!r}"
            _checks.require(unknown is None, "strings", "must have symbols of the alphabet", got, fix)
            codes[i, : len(string)] = [code_of[symbol] for symbol in string]
        return _checks.to_jax(codes)

    @public
    def decode(self, codes: Shaped[Array, "string length"]) -> list[str]:
        """Return the strings of codes, the inverse of `encode`.

        Raises:
            ValueError: the codes are not strings over this alphabet.
        """
        check_codes("codes", codes, self.num_symbols)
        return ["".join(self.symbols[int(code) - 1] for code in row if code > 0) for row in np.asarray(codes)]


@public
def mask(codes: Shaped[Array, "*dim"]) -> Bool[Array, "*dim"]:
    """Return a mask that is True for symbols and False for padding.

    Examples:
        >>> from kbpjax.kernels import Alphabet, mask
        >>> mask(Alphabet("ACGT").encode(["GATT", "CA"])).sum(axis=1).tolist()  # lengths of the strings
        [4, 2]
    """
    return codes > 0


def check_codes(argument: str, points: Shaped[Array, "sample *dim"], num_symbols: int | None = None) -> None:
    """Raise ValueError unless points are encoded strings [sample, length]; values of tracers are not checked."""
    fix = "Encode the strings with kbpjax.kernels.Alphabet."
    _checks.require(points.ndim == 2, argument, "must be strings [sample, length]", f"shape {points.shape}", fix)
    if _checks.is_traced(points):
        return
    codes = np.asarray(points)
    real = np.issubdtype(codes.dtype, np.number) and not np.issubdtype(codes.dtype, np.complexfloating)
    integers = real and bool(np.all((codes >= 0) & (codes == np.floor(codes)) & np.isfinite(codes)))
    got = f"dtype {codes.dtype}, " + (f"values from {codes.min()} to {codes.max()}" if codes.size else "none")
    _checks.require(integers, argument, "must be integer codes >= 0", got, fix)
    inside = codes > 0
    empty = np.flatnonzero(~inside.any(axis=1))
    _checks.require(len(empty) == 0, argument, "must have at least one symbol", f"none in string {empty[:5]}", fix)
    late = np.flatnonzero((inside[:, 1:] & ~inside[:, :-1]).any(axis=1))
    rule = "must have padding (0) after the last symbol only"
    _checks.require(len(late) == 0, argument, rule, f"0 before a symbol in string {late[:5]}", fix)
    if num_symbols is not None and codes.size:
        rule = f"must be codes of {num_symbols} symbols"
        fix = "Create the kernel with num_symbols of the alphabet."
        _checks.require(codes.max() <= num_symbols, argument, rule, f"a code {codes.max()}", fix)


def _listed(strings: Any) -> list[str]:
    """Return strings as a list; raise ValueError unless they are a nonempty list of nonempty strings."""
    is_list = isinstance(strings, Sequence | np.ndarray) and not isinstance(strings, str)
    fix = "Pass for instance ['GATTACA', 'CAT']."
    _checks.require(is_list, "strings", "must be a list of strings", type(strings).__name__, fix)
    listed = list(strings)
    _checks.require(bool(listed), "strings", "must hold at least one string", "none", fix)
    other = next((i for i, string in enumerate(listed) if not isinstance(string, str)), None)
    got = other is not None and f"{type(listed[other]).__name__} at {other}"
    _checks.require(other is None, "strings", "must be a list of strings", got, fix)
    empty = next((i for i, string in enumerate(listed) if not string), None)
    _checks.require(empty is None, "strings", "must have at least one symbol", f"none in string {empty}", "Drop it.")
    return listed
