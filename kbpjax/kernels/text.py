"""Strings as arrays: each symbol of an alphabet has a code 1, 2, ..., and 0 pads all strings to one length.

The kernels of `kbpjax.kernels.strings` know where a string ends, so that their values do not depend on the padding.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from kbpjax import _checks


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """The symbols that strings are made of; each is a single Unicode character, and its code its place, from 1.

    Attributes:
        symbols: the symbols, each once.

    Raises:
        ValueError: no symbol, or one twice.

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
        twice = sorted({symbol for symbol in given if given.count(symbol) > 1})
        _checks.require(not twice, "symbols", "must hold each symbol once", f"{twice} more than once", fix)

    @classmethod
    def of(cls, strings: Any) -> "Alphabet":
        """Return the alphabet of the symbols that occur in a list of strings, sorted.

        Raises:
            ValueError: not a list of strings, or an empty one.

        Examples:
            >>> from kbpjax.kernels.text import Alphabet
            >>> Alphabet.of(["cat", "car"]).symbols
            'acrt'
        """
        return cls("".join(sorted(set().union(*_listed(strings)))))

    @property
    def num_symbols(self) -> int:
        """The number of symbols, the largest code."""
        return len(self.symbols)

    def encode(self, strings: Any, length: int | None = None) -> Int[Array, "string length"]:
        """Return the codes of strings, with 0 after the end of each.

        Args:
            strings: a list of strings, none of them empty.
            length: of the arrays, at least that of the longest string; None: just that.

        Returns:
            Codes [string, length].

        Raises:
            ValueError: not a list of strings; an empty string, a symbol outside the alphabet, a string beyond length.
        """
        listed = _listed(strings)
        longest = max(map(len, listed))
        if length is not None:
            _checks.require_count("length", length)
            long = next((i for i, string in enumerate(listed) if len(string) > length), None)
            got = long is not None and f"{len(listed[long])} symbols in string {long}"
            _checks.require(
                long is None, "strings", f"must have at most length = {length} symbols", got, "Raise length."
            )
        place = {symbol: code for code, symbol in enumerate(self.symbols, 1)}
        codes = np.zeros((len(listed), longest if length is None else length), np.int32)
        for i, string in enumerate(listed):
            strange = next((symbol for symbol in string if symbol not in place), None)
            fix = "Use Alphabet.of(all strings), or replace the symbol."
            got = f"{strange!r} in string {i}, {string[:40]!r}"
            _checks.require(strange is None, "strings", "must have symbols of the alphabet", got, fix)
            codes[i, : len(string)] = [place[symbol] for symbol in string]
        return jnp.asarray(codes)

    def decode(self, codes: Shaped[Array, "string length"]) -> list[str]:
        """Return the strings that `encode` made these codes of.

        Raises:
            ValueError: codes of no strings over this alphabet.
        """
        check_codes("codes", codes, self.num_symbols)
        return ["".join(self.symbols[int(code) - 1] for code in row if code > 0) for row in np.asarray(codes)]


def mask(codes: Shaped[Array, "*dim"]) -> Bool[Array, "*dim"]:
    """Return where codes are symbols, and not padding.

    Examples:
        >>> from kbpjax.kernels import Alphabet, mask
        >>> mask(Alphabet("ACGT").encode(["GATT", "CA"])).sum(axis=1).tolist()  # lengths of the strings
        [4, 2]
    """
    return codes > 0


def check_codes(argument: str, points: Shaped[Array, "sample *dim"], num_symbols: int | None = None) -> None:
    """Raise ValueError unless points are encoded strings [sample, length]; values of tracers are not looked at."""
    fix = "Encode the strings with kbpjax.kernels.Alphabet."
    _checks.require(points.ndim == 2, argument, "must be strings [sample, length]", f"shape {points.shape}", fix)
    if _checks.is_traced(points):
        return
    known = np.asarray(points)
    real = np.issubdtype(known.dtype, np.number) and not np.issubdtype(known.dtype, np.complexfloating)
    whole = real and bool(np.all((known >= 0) & (known == np.floor(known)) & np.isfinite(known)))
    got = f"dtype {known.dtype}, " + (f"values from {known.min()} to {known.max()}" if known.size else "none")
    _checks.require(whole, argument, "must be whole codes >= 0", got, fix)
    inside = known > 0
    empty = np.flatnonzero(~inside.any(axis=1))
    _checks.require(len(empty) == 0, argument, "must have at least one symbol", f"none in string {empty[:5]}", fix)
    late = np.flatnonzero((inside[:, 1:] & ~inside[:, :-1]).any(axis=1))
    rule = "must have padding (0) after the last symbol only"
    _checks.require(len(late) == 0, argument, rule, f"0 before a symbol in string {late[:5]}", fix)
    if num_symbols is not None and known.size:
        rule = f"must be codes of {num_symbols} symbols"
        fix = "Make the kernel with the alphabet's num_symbols."
        _checks.require(known.max() <= num_symbols, argument, rule, f"a code {known.max()}", fix)


def _listed(strings: Any) -> list[str]:
    """Return strings as a list, if they are several, none of them empty."""
    several = isinstance(strings, Sequence | np.ndarray) and not isinstance(strings, str)
    fix = "Pass for instance ['GATTACA', 'CAT']."
    _checks.require(several, "strings", "must be a list of strings", type(strings).__name__, fix)
    listed = list(strings)
    _checks.require(bool(listed), "strings", "must hold at least one string", "none", fix)
    other = next((i for i, string in enumerate(listed) if not isinstance(string, str)), None)
    got = other is not None and f"{type(listed[other]).__name__} at {other}"
    _checks.require(other is None, "strings", "must be a list of strings", got, fix)
    empty = next((i for i, string in enumerate(listed) if not string), None)
    _checks.require(empty is None, "strings", "must have at least one symbol", f"none in string {empty}", "Drop it.")
    return listed
