"""The layer that all public functions and classes have: arguments are checked against their annotations.

`public` decorates functions, and `Checked` is the base of classes. An argument of another kind raises a `ValueError`
that names it; lists become arrays where an array is annotated. Only a wrong number of arguments stays a `TypeError`.
"""

import contextlib
import functools
import inspect
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.errors import ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError
from jaxtyping import AbstractArray, ScalarLike

from kbpjax import _checks
from kbpjax._checks import ARRAYS, NUMBERS

P = ParamSpec("P")
R = TypeVar("R")

UNKNOWN = (ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError)
"""The errors of JAX where the value of a tracer is needed."""
LIBRARIES = ("jax", "numpy", "equinox", "jaxtyping", "beartype", "contextlib", "functools", "scipy", "sklearn")
SCALARS = frozenset(typing.get_args(ScalarLike))
OPERATORS = ("__call__", "__pow__")
"""Special methods that users call with arguments; operators answer `NotImplemented` instead."""


class Kind(NamedTuple):
    """What an annotation accepts: its name, whether it fits a value by its type, and a conversion that may refuse."""

    text: str
    accepts: Callable[[Any], bool]
    read: Callable[[str, Any], Any] = lambda argument, value: value
    numeric: bool = False


def public(function: Callable[P, R], *, finite: tuple[str, ...] = ()) -> Callable[P, R]:
    """Return a function or method whose arguments are checked against their annotations, and some to be finite."""
    layer = Layer(function)

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        return layer.call(function, args, options, finite)

    checked.__dict__["__layer__"] = layer
    return checked


def finite(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator `public`, with arguments that must be finite."""
    return lambda function: public(function, finite=names)


if TYPE_CHECKING:

    class Checked(eqx.Module):
        """A module whose arguments, and those of its public methods, are checked against their annotations."""

        @classmethod
        def trusted(cls, *args: Any, **options: Any) -> typing.Self:
            """Return an object of results, which may be NaN or infinite."""
            ...

else:

    class _CheckedMeta(type(eqx.Module)):
        def __call__(cls, *args, **options):
            return cls.layer().call(super().__call__, args, options, cls.layer().kinds if cls.requires_finite else ())

        def trusted(cls, *args, **options):
            return cls.layer().call(super().__call__, args, options)

        def layer(cls):
            if "__layer__" not in vars(cls):
                cls.__layer__ = Layer(cls.__init__, cls)
            return cls.__layer__

    class Checked(eqx.Module, metaclass=_CheckedMeta):
        """A module whose arguments, and those of its public methods, are checked against their annotations.

        Classes with `requires_finite = True` refuse NaN and infinity. Inside the package, `trusted` makes objects of
        these classes from results, which may not be finite.
        """

        requires_finite = False

        def __init_subclass__(cls, **options):
            super().__init_subclass__(**options)
            for name, value in list(vars(cls).items()):
                if name[0] != "_" or name in OPERATORS:
                    setattr(cls, name, _method(value, cls))


def _method(value: Any, owner: type) -> Any:
    """Return a method with the layer; other attributes of a class, and abstract methods, are unchanged."""
    if isinstance(value, classmethod | staticmethod):
        return type(value)(_method(value.__func__, owner))
    if inspect.isfunction(value) and not hasattr(value, "__isabstractmethod__"):
        value = value if hasattr(value, "__layer__") else public(value)
        value.__layer__.owner = value.__layer__.owner or owner
    return value


class Layer:
    """The checks of a function or class; its annotations are read at the first call."""

    def __init__(self, function: Callable[..., Any], cls: type | None = None):
        self.function, self.cls = function, cls
        self.owner: type | None = None  # the class of a method

    @functools.cached_property
    def name(self) -> str:
        """The name that the user calls, by the shortest path."""
        target: Any = self.cls or self.function
        home, name = target.__module__, target.__qualname__
        parts, first = home.split("."), name.partition(".")[0]
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        here = lambda path: getattr(getattr(sys.modules.get(path), first, None), "__module__", None) == home
        return f"{next(filter(here, paths), home)}.{name}"

    @functools.cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters, without the `self` of a class."""
        return list(inspect.signature(self.function).parameters.values())[self.cls is not None :]

    @functools.cached_property
    def places(self) -> list[str]:
        """The names of positional parameters; none if their number is variable."""
        several = any(one.kind is one.VAR_POSITIONAL for one in self.parameters)
        return [] if several else [one.name for one in self.parameters if one.kind < one.VAR_POSITIONAL]

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each parameter, in order."""
        hints = _hints(inspect.unwrap(self.function))
        if self.cls is not None and any(hint is Any for hint in hints.values()):  # as of fields with a converter
            hints |= {name: hint for name, hint in _hints(self.cls).items() if hints.get(name) is Any}
        of_self = [name for name, hint in hints.items() if getattr(hint, "__name__", None) == "Self"]
        hints |= dict.fromkeys(of_self, self.owner or Any)
        return {one.name: kind_of(hints.get(one.name, Any), self.cls is not None) for one in self.parameters}

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], finite: Collection[str] = ()
    ) -> Any:
        """Return the result of a function for checked arguments, some of them finite; name one that must be known."""
        places, read = self.places, self.read
        args = (*[read(name, value, name in finite) for name, value in zip(places, args)], *args[len(places) :])
        options = {name: read(name, value, name in finite) for name, value in options.items()}
        try:
            return function(*args, **options)
        except UNKNOWN as error:
            if not _is_ours(error):
                raise
            given = dict(zip(places, args)) | options
            what = ", ".join(name for name, value in given.items() if _checks.is_traced(value)) or self.name
            fix = f"Call {self.name} outside jax.jit, jax.vmap and jax.grad, or make it a constant."
            raise ValueError(f"{what}: must be known; got a traced array. {fix}") from error

    def read(self, name: str, value: Any, finite: bool = False) -> Any:
        """Return an argument, converted; raise ValueError if it is of another kind, or has NaN but must be finite."""
        kind = self.kinds.get(name, ANYTHING)
        if kind.accepts(value):
            value = kind.read(name, value)
            if finite and kind.numeric:
                _require_finite(name, value)
            return value
        fix = f"See help({self.name})."
        others = [n for n, kind in self.kinds.items() if isinstance(value, eqx.Module) and kind.accepts(value)]
        if others and self.kinds[others[0]] is not ANYTHING:
            fix = f"It fits {others[0]}: are the arguments in their order? {fix}"
        elif kind.text.startswith("a random key"):
            fix = "Pass jax.random.key(0)."
        elif inspect.isclass(value):
            fix = f"Pass an object of the class, {value.__name__}(...)."
        raise ValueError(f"{name}: must be {kind.text}; got {describe(value)}. {fix}")


def _require_finite(name: str, value: Any) -> None:
    """Raise ValueError if numbers, or the values of a mapping, are NaN or infinite."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            _require_finite(f"{name}[{key}]", one)
    elif _is_array_like(value):
        _checks.require_finite(name, value)


def _hints(target: Any) -> dict[str, Any]:
    """Return annotations; none if they name what cannot be found, as imports for type checkers only in user's code."""
    try:
        return typing.get_type_hints(target)
    except NameError:
        return {}


def _is_ours(error: BaseException) -> bool:
    """Return whether the code that raised an error of JAX is of this package, not a user's function that it calls."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    homes = [name.partition(".")[0] for name in names]
    return [home for home in homes if home not in LIBRARIES][-1:] == ["kbpjax"]


def describe(value: Any) -> str:
    """Return the kind of a value in words, without its data."""
    if isinstance(value, ARRAYS):
        shape = f"[{','.join(map(str, np.shape(value)))}]"
        return f"{'a traced' if isinstance(value, Tracer) else 'an'} array {value.dtype}{shape}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value[:40] if isinstance(value, str | bytes) else value)[:80]
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"the class {value.__name__}" if inspect.isclass(value) else "a function"
    size = f" of length {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return _with_article(type(value).__name__) + size


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


@functools.cache
def kind_of(hint: Any, batch: bool = False) -> Kind:
    """Return what an annotation accepts; with `batch`, as of fields, arrays may have more axes in front."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    cls = origin or hint
    if origin in (typing.Union, types.UnionType):
        return _union(args, batch)
    if origin is typing.Literal:
        return _literal(args)
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return _array(hint, batch)
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        return kind_of(hint.__bound__)
    if cls in SIMPLE:
        return SIMPLE[cls]
    if cls is Callable or cls is typing.Callable:  # a class is one only where it need not return an array
        of_arrays = args and args[1] is jax.Array
        return Kind("a function", lambda value: callable(value) and not (of_arrays and inspect.isclass(value)))
    if cls is Any or not inspect.isclass(cls):  # such as a type variable
        return ANYTHING
    if issubclass(cls, Mapping):
        return _mapping(*args) if args else _instance("a dict", Mapping)
    if args and cls in (tuple, list, Sequence):
        return _sequence(cls, args)
    static = getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False)
    return _instance(_with_article(cls.__name__), object if static else cls)


def _instance(text: str, cls: Any) -> Kind:
    return Kind(text, lambda value: isinstance(value, cls))


def _literal(values: tuple[Any, ...]) -> Kind:
    def read(argument: str, value: Any) -> Any:
        if value not in values:
            _checks.require(False, argument, f"must be {text}", describe(value), "Pass one of them.")
        return value

    text = " or ".join(map(repr, values))
    return Kind(text, lambda value: isinstance(value, (str, int)), read)


def _float(argument: str, value: Any) -> float:
    if isinstance(value, Tracer):
        fix = "Call it outside jax.jit, jax.vmap and jax.grad."
        _checks.require(False, argument, "must be a known number", describe(value), fix)
    return float(_checks.number(argument, value))


def _is_array_like(value: Any) -> bool:
    """Return whether a value may be an array: an array, a number, a list or tuple, or a frame."""
    if isinstance(value, (*NUMBERS, list, tuple, range)):
        return True
    foreign = hasattr(value, "to_numpy") or hasattr(value, "__array__")
    return foreign and not inspect.isclass(value) and not isinstance(value, eqx.Module)


def _numbers(argument: str, values: Any) -> Any:
    """Return array-like values unchanged; raise ValueError unless they are real numbers."""
    if isinstance(values, ARRAYS) and values.dtype != object:
        _checks.require_real(argument, values)
    elif not isinstance(values, (int, float)) and not _checks.is_traced(values):
        _checks.require_real(argument, _checks.read(argument, values)[0])
    return values


ANYTHING = Kind("anything", lambda value: True)
ANY_NUMBERS = Kind("an array", _is_array_like, _numbers, numeric=True)
SCALAR = Kind("a real number", lambda value: isinstance(value, (*NUMBERS, list, tuple)), _checks.number)
SIMPLE: dict[Any, Kind] = {
    None: Kind("None", lambda value: value is None),
    type(None): Kind("None", lambda value: value is None),
    int: Kind("an integer", _checks.is_whole, lambda argument, value: int(value)),
    float: Kind("a real number", lambda value: isinstance(value, NUMBERS), _float),
    bool: Kind("True or False", lambda value: isinstance(value, bool | np.bool_), lambda _, value: bool(value)),
    str: _instance("a string", str),
    type: _instance("a class", type),
    os.PathLike: _instance("a path", os.PathLike),
    Iterable: Kind("an iterable", lambda value: hasattr(value, "__iter__") and not isinstance(value, str)),
    jax.Array: Kind("an array", _is_array_like, _checks.as_array),
    np.ndarray: Kind("an array", _is_array_like, _checks.as_numpy),
}


def _array(hint: Any, batch: bool) -> Kind:
    """Return the kind of an array of JAX with a dtype and axes; lists and arrays of NumPy are converted."""
    names, axes = _dtypes(hint), [axis.lstrip("_") for axis in hint.dim_str.split()]  # _: of any size
    if _is_key(hint):
        read_key = _checks.random_key if hint.dims == () else lambda key: key
        return Kind("a random key", lambda value: hasattr(value, "dtype"), lambda argument, key: read_key(key))
    floats = bool(names) and all("float" in name for name in names)
    several = any(axis.startswith(("*", "...")) for axis in axes)
    least = len(axes) - several
    rule = f"must be a {hint.__name__.partition('[')[0].lower()} array [{', '.join(axes)}]"
    fine: set[tuple[Any, int]] = set()  # dtypes and numbers of axes of arrays of JAX that need no more

    def read(argument: str, value: Any) -> Any:
        if not isinstance(value, jax.Array):
            value = _checks.as_array(argument, _numbers(argument, value))
        if (value.dtype, value.ndim) in fine:
            return value
        if floats and not jnp.issubdtype(value.dtype, np.floating):
            value = _numbers(argument, value).astype(jnp.result_type(float))
        ranked = value.ndim >= least if several or batch else value.ndim == least
        if not ranked or (names and value.dtype.name not in names):
            _checks.require(False, argument, rule, describe(value), "Check its dtype and shape.")
        fine.add((value.dtype, value.ndim))
        return value

    return Kind("an array", _is_array_like, read, numeric=True)


def _dtypes(hint: Any) -> tuple[str, ...]:
    """Return the names of the dtypes of an annotation; () of `Shaped`, which has any."""
    return tuple(map(str, hint.dtypes)) if isinstance(hint.dtypes, (list, tuple)) else ()


def _is_key(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, AbstractArray) and _dtypes(hint) == ("prng_key",)


def _union(hints: Iterable[Any], batch: bool) -> Kind:
    """Return the kind of a union, in which `ScalarLike` and `Numbers` are one kind each."""
    rest = set(hints)
    kinds = []
    if np.ndarray in rest and jax.Array in rest:
        kinds.append(ANY_NUMBERS)
        rest -= SCALARS | {jax.Array, np.ndarray, np.generic, float, int, Sequence[Any], _checks.Frame}
    elif rest >= SCALARS:
        kinds.append(SCALAR)
        rest -= SCALARS
    if any(map(_is_key, rest)):  # a typed or a raw one
        raw = lambda argument, key: _checks.require_key(key)
        kinds.append(Kind("a random key", lambda value: hasattr(value, "dtype"), raw))
        rest = {hint for hint in rest if not (inspect.isclass(hint) and issubclass(hint, AbstractArray))}
    kinds = [kind_of(hint, batch) for hint in hints if hint in rest] + kinds  # arrays last: they accept most
    if len(kinds) == 1:
        return kinds[0]
    chosen: dict[type, list[Kind]] = {}  # by the type of the value, because that decides alone

    def choose(value: Any) -> list[Kind]:
        if type(value) not in chosen:
            chosen[type(value)] = [kind for kind in kinds if kind.accepts(value)]
        return chosen[type(value)]

    def read(argument: str, value: Any) -> Any:
        *others, last = choose(value)
        for kind in others:
            with contextlib.suppress(ValueError):
                return kind.read(argument, value)
        return last.read(argument, value)

    texts = [kind.text for kind in kinds if kind.text != "None"] + ["None"] * (kinds != [] and type(None) in rest)
    text = ", ".join(texts[:-1]) + " or " + texts[-1]
    return Kind(text, lambda value: bool(choose(value)), read, any(kind.numeric for kind in kinds))


def _items(kinds: Iterable[Kind], argument: str, values: Mapping[Any, Any]) -> list[Any]:
    """Return the items of a sequence or mapping, read."""
    for kind, (place, value) in zip(kinds, values.items()):
        if not kind.accepts(value):
            fix = "Check the others too."
            _checks.require(False, f"{argument}[{place}]", f"must be {kind.text}", describe(value), fix)
    return [kind.read(f"{argument}[{place}]", value) for kind, (place, value) in zip(kinds, values.items())]


def _sequence(cls: Any, args: tuple[Any, ...]) -> Kind:
    """Return the kind of a list or tuple; the items of a `Sequence` are not converted."""
    any_length = cls is not tuple or args[1:] == (...,)
    kinds = [kind_of(hint) for hint in (args[:1] if any_length else args)]
    text = f"a sequence, each {kinds[0].text}" if any_length else f"a tuple of {len(kinds)}"

    def read(argument: str, values: Any) -> Any:
        if cls is Sequence and all(map(kinds[0].accepts, values)):
            return values
        if not any_length and len(values) != len(kinds):
            _checks.require(False, argument, f"must have {len(kinds)} items", f"{len(values)}", "Pass all of them.")
        return make(_items(kinds * len(values) if any_length else kinds, argument, dict(enumerate(values))))

    make: Any = list if cls is Sequence else cls
    some = (list, tuple, np.ndarray) if text.endswith("anything") else (list, tuple)  # such as an array of axes
    return Kind(text, lambda value: isinstance(value, some), read)


def _mapping(key: Any, hint: Any) -> Kind:
    kind, keys = kind_of(hint), kind_of(key)
    name, rule = ("integer", "integers >= 0") if key is int else (keys.text, "other kinds")

    def read(argument: str, values: Any) -> Any:
        wrong = [one for one in values if not keys.accepts(one) or (key is int and one < 0)]
        if wrong:
            _checks.require(False, argument, f"must have {rule} as keys", f"{wrong[:3]}", "Number the types from 0.")
        return dict(zip(values, _items([kind] * len(values), argument, values)))

    return Kind(f"{{{name}: {kind.text}}}", lambda value: isinstance(value, Mapping), read, kind.numeric)
