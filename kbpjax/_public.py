"""The layer that all public functions and classes have: arguments are checked against their annotations.

`public` decorates functions, and `Checked` is the base of classes. An argument of another kind raises a `ValueError`
that names it; lists become arrays where an array is annotated. Only a wrong number of arguments stays a `TypeError`.
"""

import contextlib
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.errors import ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError
from jaxtyping import AbstractArray, ScalarLike

from kbpjax import _checks

P = ParamSpec("P")
R = TypeVar("R")

UNKNOWN = (ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError)
"""The errors of JAX where the value of a tracer is needed."""
LIBRARIES = (
    "jax",
    "jaxlib",
    "numpy",
    "equinox",
    "jaxtyping",
    "beartype",
    "contextlib",
    "functools",
    "scipy",
    "sklearn",
    "dataclasses",
)
SCALARS, KEYS = frozenset(typing.get_args(ScalarLike)), ("prng_key",)
ARRAYS = (jax.Array, np.ndarray, np.generic)
FLOAT32 = float(np.finfo(np.float32).max)
FLAT = (int, float, complex, *ARRAYS)


class Kind(NamedTuple):
    """What an annotation accepts.

    Attributes:
        text: the kind in words, for example "a Graph".
        accepts: whether a value is of this kind, by its type alone.
        read: function from (argument, value) to the value, converted; it raises `ValueError` with the rule.
        require_finite: function from (argument, value) that raises `ValueError` for NaN and infinity, called if
            `Layer.is_strict`; None: they are accepted.
    """

    text: str
    accepts: Callable[[Any], bool]
    read: Callable[[str, Any], Any]
    require_finite: Callable[[str, Any], None] | None = None


def public(function: Callable[P, R], owner: type | None = None) -> Callable[P, R]:
    """Return a function, or a method of a class, whose arguments are checked against their annotations, by `Layer`."""
    layer = Layer(function, owner=owner)

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        return layer.call(function, args, options)

    checked.__dict__["__layer__"] = layer
    return checked


if TYPE_CHECKING:

    class Checked(eqx.Module):
        """A module whose arguments, and those of its public methods, are checked against their annotations."""

else:

    class _CheckedMeta(type(eqx.Module)):
        def __call__(cls, *args, **options):
            layer = vars(cls).get("__layer__")
            if layer is None:
                layer = cls.__layer__ = Layer(cls.__init__, cls)
            return layer.call(super().__call__, args, options)

    class Checked(eqx.Module, metaclass=_CheckedMeta):
        """A module whose arguments, and those of its public methods, are checked against their annotations."""

        holds_nan = False

        def __init_subclass__(cls, **options):
            super().__init_subclass__(**options)
            for name, value in list(vars(cls).items()):
                if name[0] != "_" or name in OPERATORS:
                    setattr(cls, name, _method(value, cls))


OPERATORS = ("__call__", "__pow__")
"""Special methods that users call with arguments; operators answer `NotImplemented` instead."""


def _method(value: Any, owner: type) -> Any:
    """Return a method with the layer; other attributes of a class, and abstract methods, are unchanged."""
    if isinstance(value, classmethod | staticmethod):
        inner: Any = value.__func__
        return value if hasattr(inner, "__layer__") else type(value)(public(inner, owner))
    plain = inspect.isfunction(value) and not hasattr(value, "__layer__") and not hasattr(value, "__isabstractmethod__")
    return public(value, owner) if plain else value


class Layer:
    """The checks of a function or class; its annotations are read at the first call."""

    def __init__(self, function: Callable[..., Any], cls: type | None = None, *, owner: type | None = None):
        self.function, self.cls, self.owner = function, cls, owner

    @functools.cached_property
    def name(self) -> str:
        """The name that the user calls."""
        target: Any = self.cls or self.function
        home, name = target.__module__, target.__qualname__
        parts, first = home.split("."), name.partition(".")[0]
        for path in (".".join(parts[: i + 1]) for i in range(len(parts))):  # the shortest that has it
            if getattr(getattr(sys.modules.get(path), first, None), "__module__", None) == home:
                return f"{path}.{name}"
        return f"{home}.{name}"

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each parameter, in order."""
        signature, hints = inspect.signature(self.function), _hints(inspect.unwrap(self.function))
        if self.cls is not None and any(hint is Any for hint in hints.values()):  # as of fields with a converter
            fields = _hints(self.cls)
            hints = {name: fields.get(name, Any) if hint is Any else hint for name, hint in hints.items()}
        names = list(signature.parameters)[self.cls is not None :]
        hints = {name: self.owner or Any if _is_self(hint) else hint for name, hint in hints.items()}
        kinds = {name: kind_of(hints.get(name, Any), self.cls is not None) for name in names}
        fields = _hints(self.cls) if self.cls is not None else {}
        for name in fields.keys() & kinds.keys():
            if kinds[name] is NUMBERS:  # arrays of any kind that become a field, and are finite if that is
                kinds[name] = NUMBERS._replace(require_finite=kind_of(fields[name], True).require_finite)
        return kinds

    @functools.cached_property
    def is_factory(self) -> bool:
        """Whether this is a class method, such as `from_moments`, whose results must be finite."""
        return isinstance(vars(self.owner or object).get(self.function.__name__), classmethod)

    @functools.cached_property
    def needs_finite(self) -> bool:
        """Whether there is anything in which NaN and infinity can be refused."""
        return self.is_factory or any(kind.require_finite for kind in self.kinds.values())

    @functools.cached_property
    def places(self) -> list[str]:
        """The names of positional parameters; none if their number is variable."""
        parameters = inspect.signature(self.function).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [one.name for one in parameters if one.kind in positional][self.cls is not None :]
        return [] if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters) else names

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return the result of a function for checked arguments; name the argument whose value must be known."""
        places, strict = self.places, self.is_strict()
        args = (*(self.read(n, x, strict) for n, x in zip(places, args)), *args[len(places) :])
        options = {n: self.read(n, x, strict) if n in self.kinds else x for n, x in options.items()}
        try:
            result = function(*args, **options)
        except UNKNOWN as error:
            if not _is_ours(error):
                raise
            given = dict(zip(places, args)) | options
            traced = [name for name, value in given.items() if _checks.is_traced(value)]
            what, got = ", ".join(traced) or self.name, "a traced array"
            fix = f"Call {self.name} outside jax.jit, jax.vmap and jax.grad, or make it a constant."
            raise ValueError(f"{what}: must be known; got {got}. {fix}") from error
        if strict and self.is_factory:
            self.require_finite_result(result, [*places[1 : len(args)], *options])
        return result

    def require_finite_result(self, result: Any, names: Sequence[str]) -> None:
        """Raise ValueError if the object that a class method made of the named arguments has NaN or infinity."""
        if _checks.is_unread(result):
            return
        arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        numbers = [np.asarray(array) for array in arrays if jnp.issubdtype(array.dtype, np.floating)]
        bad = sum(int(np.sum(~np.isfinite(array))) for array in numbers)
        rule, got = f"must give a finite {type(result).__name__}", f"{bad} parameters that are NaN or infinite"
        _checks.require(bad == 0, ", ".join(names), rule, got, "Check their range; rescale them if they are extreme.")

    def is_strict(self) -> bool:
        """Return whether to refuse NaN and infinity: if a user calls and the class does not have `holds_nan`.

        The package itself makes objects of results that may not be finite, for instance of updates that diverge. It
        has checked its arguments, so its own calls do not read them from the device again.
        """
        if getattr(self.cls or self.owner, "holds_nan", False) or not self.needs_finite:
            return False
        frame: Any = sys._getframe(1)
        while frame is not None and _is_between(frame.f_globals.get("__name__", "")):
            frame = frame.f_back
        return frame is None or _home(frame.f_globals.get("__name__", "")) != "kbpjax"

    def read(self, name: str, value: Any, strict: bool = False) -> Any:
        """Return an argument, converted; raise ValueError if it is of another kind, or if `strict`, not finite."""
        kind = self.kinds[name]
        if kind.accepts(value):
            value = kind.read(name, value)
            if strict and kind.require_finite is not None:
                kind.require_finite(name, value)
            return value
        fix = f"See help({self.name})."
        others = [n for n, kind in self.kinds.items() if isinstance(value, eqx.Module) and kind.accepts(value)]
        if others and self.kinds[others[0]].text != "anything":
            fix = f"It fits {others[0]}: are the arguments in their order? {fix}"
        elif kind.text.startswith("a random key"):
            fix = "Pass jax.random.key(0)."
        elif inspect.isclass(value):
            fix = f"Pass an object of the class, {value.__name__}(...)."
        raise ValueError(f"{name}: must be {kind.text}; got {describe(value)}. {fix}")


def _home(module: str) -> str:
    """Return the package of a module."""
    return module.partition(".")[0]


def _is_between(module: str) -> bool:
    """Return whether code of a module stands between the function with the layer and who calls it."""
    return module == __name__ or _home(module) in LIBRARIES


def _is_self(hint: Any) -> bool:
    """Return whether an annotation is `Self`, or the type variable that stands for it at run time."""
    return hint is typing.Self or (isinstance(hint, TypeVar) and hint.__name__ == "Self")


def _hints(target: Any) -> dict[str, Any]:
    """Return annotations; none if they name what cannot be found, as imports for type checkers only in user's code."""
    try:
        return typing.get_type_hints(target)
    except NameError:
        return {}


def _is_ours(error: BaseException) -> bool:
    """Return whether the code that raised an error of JAX is of this package, not a user's function that it calls."""
    trace, last = error.__traceback__, ""
    while trace is not None:
        home = _home(trace.tb_frame.f_globals.get("__name__", ""))
        last = last if home in LIBRARIES else home
        trace = trace.tb_next
    return last == "kbpjax"


def describe(value: Any) -> str:
    """Return the kind of a value in words, without its data."""
    if isinstance(value, ARRAYS):
        shape = f"[{','.join(map(str, np.shape(value)))}]"
        return f"{'a traced' if isinstance(value, Tracer) else 'an'} array {value.dtype}{shape}"
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)[:80]
    if isinstance(value, str | bytes):
        return repr(value[:40])
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return "a function"
    size = f" of length {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"{_with_article(type(value).__name__)}{size}"


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


@functools.cache
def kind_of(hint: Any, batch: bool = False) -> Kind:
    """Return what an annotation accepts; with `batch`, as of fields, arrays may have more axes in front."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return Kind("None", lambda value: value is None, _same)
    if origin in (typing.Union, types.UnionType):
        return _union(args, batch)
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return _array(hint, batch)
    if origin is typing.Literal:
        return _literal(args)
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        return kind_of(hint.__bound__)
    if hint in SIMPLE:
        return SIMPLE[hint]
    cls = origin or hint
    if cls is jax.Array:
        return Kind("an array", is_array_like, _checks.as_array)
    if cls is np.ndarray:
        return Kind("an array", is_array_like, _checks.as_numpy)
    if cls is type:
        return _instance("a class", type)
    if cls is Callable or cls is typing.Callable:
        return _function(args)
    if cls is Any or not inspect.isclass(cls):  # such as a type variable
        return Kind("anything", lambda value: True, _same)
    if issubclass(cls, Mapping):
        return _mapping(*args) if args else _instance("a dict", Mapping)
    if args and (cls is tuple or cls is list or cls is Sequence):
        return _sequence(cls, args)
    if cls is Iterable:
        return Kind("an iterable", lambda value: hasattr(value, "__iter__") and not isinstance(value, str), _same)
    return _instance(_with_article(cls.__name__), cls)


def _same(argument: str, value: Any) -> Any:
    del argument
    return value


def _instance(text: str, cls: Any) -> Kind:
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        return Kind(text, lambda value: True, _same)
    return Kind(text, lambda value: isinstance(value, cls), _same)


def _function(args: tuple[Any, ...]) -> Kind:
    """Return the kind of a function; a class is one only where it need not return an array."""
    if args and args[1] is jax.Array:
        return Kind("a function", lambda value: callable(value) and not inspect.isclass(value), _same)
    return Kind("a function", callable, _same)


def _literal(values: tuple[Any, ...]) -> Kind:
    def read(argument: str, value: Any) -> Any:
        if value not in values:
            _checks.require(False, argument, f"must be {text}", describe(value), "Pass one of them.")
        return value

    text = " or ".join(map(repr, values))
    return Kind(text, lambda value: isinstance(value, (str, int)), read)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(argument: str, value: Any) -> Any:
    """Return a single real number, or an array of shape () of one."""
    if type(value) is float and -FLOAT32 <= value <= FLOAT32:
        return value
    if isinstance(value, (list, tuple)):
        value = _checks.read(argument, value)[0]
    if np.ndim(value) > 0:
        _checks.require(False, argument, "must be a single number", f"shape {np.shape(value)}", "Pass a scalar.")
    if isinstance(value, complex) or (isinstance(value, ARRAYS) and not _checks.is_real(value.dtype)):
        _checks.require(False, argument, "must be a real number", describe(value), "Pass a float.")
    if isinstance(value, np.ndarray):
        return _checks.as_array(argument, value)
    if isinstance(value, int | np.integer) and not -(2**31) <= int(value) < 2**31:
        value = float(value) if abs(int(value)) < FLOAT32 else np.inf
    if isinstance(value, (float, np.floating)):
        _checks.require_range(argument, np.asarray(value))
    return value


def _float(argument: str, value: Any) -> float:
    if isinstance(value, Tracer):
        fix = "Call it outside jax.jit, jax.vmap and jax.grad."
        _checks.require(False, argument, "must be a known number", describe(value), fix)
    return float(_number(argument, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, FLAT)


SIMPLE: dict[Any, Kind] = {
    int: Kind("an integer", _is_whole, lambda argument, value: int(value)),
    float: Kind("a real number", _is_number, _float),
    bool: Kind("True or False", lambda value: isinstance(value, bool | np.bool_), lambda _, value: bool(value)),
    str: _instance("a string", str),
    os.PathLike: _instance("a path", os.PathLike),
}
NUMBER = Kind("a real number", lambda value: isinstance(value, (*FLAT, list, tuple)), _number)


def is_array_like(value: Any) -> bool:
    """Return whether a value may be an array: an array, a number, a list or tuple, or a frame."""
    if isinstance(value, (*FLAT, list, tuple, range)):
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


NUMBERS = Kind("an array", is_array_like, _numbers)


def _array(hint: Any, batch: bool) -> Kind:
    """Return the kind of an array of JAX with a dtype and axes; lists and arrays of NumPy are converted."""
    if _dtypes(hint) == KEYS:
        return Kind("a random key", lambda value: hasattr(value, "dtype"), _key if hint.dims == () else _same)
    names, axes = _dtypes(hint), hint.dim_str.split()
    floats = bool(names) and all("float" in name for name in names)
    several = any(axis.startswith(("*", "...")) for axis in axes)
    least = len(axes) - several
    rule = f"must be a {hint.__name__.partition('[')[0].lower()} array [{', '.join(axes)}]"

    def read(argument: str, value: Any) -> Any:
        if not isinstance(value, jax.Array):
            value = _checks.as_array(argument, _numbers(argument, value))
        if floats and not jnp.issubdtype(value.dtype, np.floating):
            value = _numbers(argument, value).astype(jnp.result_type(float))
        ranked = value.ndim >= least if several or batch else value.ndim == least
        if not ranked or (names and value.dtype.name not in names):
            _checks.require(False, argument, rule, describe(value), "Check its dtype and shape.")
        return value

    return Kind("an array", is_array_like, read, _require_finite)


def _require_finite(argument: str, value: Any) -> None:
    """Raise ValueError unless values are finite; logarithms may be those of 0."""
    if argument.startswith("log_") and not _checks.is_unread(value):
        value = np.where(np.isneginf(value), 0, value)
    fix = "Drop or correct these values." if np.ndim(value) else "Pass a finite number."
    _checks.require_finite(argument, value, fix)


def _dtypes(hint: Any) -> tuple[str, ...]:
    """Return the names of the dtypes of an annotation; () of `Shaped`, which has any."""
    return tuple(map(str, hint.dtypes)) if isinstance(hint.dtypes, (list, tuple)) else ()


def _key(argument: str, value: Any) -> Any:
    del argument
    return _checks.random_key(value)


def _union(hints: Iterable[Any], batch: bool) -> Kind:
    """Return the kind of a union, in which `ScalarLike` and `Numbers` are one kind each."""
    rest = set(hints)
    kinds = []
    if np.ndarray in rest and jax.Array in rest:
        kinds.append(NUMBERS)
        rest -= SCALARS | {jax.Array, np.ndarray, np.generic, float, int, Sequence[Any], _checks.Frame}
    elif rest >= SCALARS:
        kinds.append(NUMBER)
        rest -= SCALARS
    arrays = [hint for hint in rest if inspect.isclass(hint) and issubclass(hint, AbstractArray)]
    if any(_dtypes(hint) == KEYS for hint in arrays):
        kinds.append(Kind("a random key", lambda value: hasattr(value, "dtype"), _raw_key))
        rest -= set(arrays)
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

    def require_finite(argument: str, value: Any) -> None:
        for kind in choose(value):
            if kind.require_finite is not None:
                kind.require_finite(argument, value)

    texts = [kind.text for kind in kinds if kind.text != "None"] + ["None"] * (kinds != [] and type(None) in rest)
    text = ", ".join(texts[:-1]) + " or " + texts[-1]
    finite = any(kind.require_finite for kind in kinds)
    return Kind(text, lambda value: bool(choose(value)), read, require_finite if finite else None)


def _raw_key(argument: str, value: Any) -> Any:
    del argument
    _checks.require_key(value)
    return value


def _item(kind: Kind, argument: str, value: Any) -> Any:
    """Return one item of a sequence or mapping, read."""
    if not kind.accepts(value):
        _checks.require(False, argument, f"must be {kind.text}", describe(value), "Check the others too.")
    return kind.read(argument, value)


def _sequence(cls: Any, args: tuple[Any, ...]) -> Kind:
    """Return the kind of a list or tuple; the items of a `Sequence` are not converted."""
    any_length = cls is not tuple or args[1:] == (...,)
    kinds = [kind_of(hint) for hint in (args[:1] if any_length else args)]
    text = f"a sequence, each {kinds[0].text}" if any_length else f"a tuple of {len(kinds)}"

    def read(argument: str, values: Any) -> Any:
        if not any_length and len(values) != len(kinds):
            got = f"{len(values)}"
            _checks.require(False, argument, f"must have {len(kinds)} items", got, "Pass all of them.")
        of_items = kinds * len(values) if any_length else kinds
        items = [_item(kind, f"{argument}[{i}]", x) for i, (kind, x) in enumerate(zip(of_items, values))]
        return cls(items)

    def look(argument: str, values: Any) -> Any:
        wrong = next((i for i, value in enumerate(values) if not kinds[0].accepts(value)), None)
        return values if wrong is None else _item(kinds[0], f"{argument}[{wrong}]", values[wrong])

    some = (list, tuple, np.ndarray) if text.endswith("anything") else (list, tuple)  # such as an array of axes
    return Kind(text, lambda value: isinstance(value, some), look if cls is Sequence else read)


def _mapping(key: Any, hint: Any) -> Kind:
    kind, keys = kind_of(hint), kind_of(key)
    rule, fix = f"must have {'integers >= 0' if key is int else 'other kinds'} as keys", "Number the types from 0."

    def read(argument: str, values: Any) -> Any:
        wrong = [one for one in values if not keys.accepts(one) or (key is int and one < 0)]
        if wrong:
            _checks.require(False, argument, rule, f"{wrong[:3]}", fix)
        return {one: _item(kind, f"{argument}[{one}]", value) for one, value in values.items()}

    name = "integer" if key is int else keys.text
    finite = None if kind.require_finite is None else _each_finite(kind.require_finite)
    return Kind(f"{{{name}: {kind.text}}}", lambda value: isinstance(value, Mapping), read, finite)


def _each_finite(check: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    """Return a function that checks each value of a mapping."""

    def require_finite(argument: str, values: Any) -> None:
        for one, value in values.items():
            check(f"{argument}[{one}]", value)

    return require_finite
