"""Save and load models, solutions and graphs: one file each, written atomically and without executable code.

A file is a zip archive with a header, `kbpjax.json`, and one array per leaf. The header describes the object as nested
classes of this package. Loading executes no code from the file: classes are looked up by name, in the package and in
the argument `classes`. Training data are saved only if they are part of the model, for instance landmarks.
"""

import dataclasses
import importlib
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kbpjax import __version__, _checks
from kbpjax._misc import DAMAGE, replacing, warn
from kbpjax._public import public
from kbpjax.inference.diagnostics import KbpWarning

__all__ = ["describe", "load", "save"]

FORMAT = 1
"""Format version of written files; older versions can be read, newer versions cannot."""
HEADER = "kbpjax.json"
WRONG = (KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError)
"""Exceptions of a header that is not one of `save`."""
PLAIN = (bool, int, float, str, type(None))
NUMBERS = "biufc"
"""Kinds of NumPy dtypes that are saved as they are."""
DEEPEST, LONGEST = 300, 10_000
"""Largest depth of a header, in levels of JSON; largest number of bits of an integer."""
MODULES = {
    "acceleration": "inference.acceleration",
    "answers": "posterior.summaries",
    "arithmetic": "inference.operators",
    "beliefs": "posterior.beliefs",
    "diagnosis": "inference.diagnostics",
    "edges": "posterior.edge_beliefs",
    "evidence": "posterior.evidence",
    "graph": "graphs.graph",
    "loops": "inference.loopy",
    "marginals": "posterior.marginals",
    "mrf": "learning.model",
    "propagate": "inference.loopy",
    "rules": "learning.rules",
    "schedules": "inference.schedules",
    "settings": "tuning.hyperparameters",
    "sums": "learning.sums",
    "training": "learning.data",
    "tuning": "tuning.tune",
    "update": "inference.operators",
}
"""{module in files of kbpjax 0.1: module today}."""

GONE = ("kbpjax.graph.Tiles", "kbpjax.tree_schedule.Schedule")
"""Index tables of kbpjax 0.1, which graphs now compute."""

DROPPED = ("ResidualFirst", "AgreementDamping", "BPState")
"""Classes that kbpjax no longer has; `load` gives None in their place, and warns."""

FIELDS = {
    "Operators": {"positive": "nonnegative"},
    "Tuned": {"settings": "hyperparameters"},
    "Hyperparameters": {"positive": "nonnegative", "form": "evidence_model"},
    "Matern": {"smoothness": "nu"},
    "RationalQuadratic": {"mixture": "alpha"},
    "Sphere": {"sharpness": "concentration"},
    "Rotations": {"sharpness": "concentration"},
    "Mallows": {"sharpness": "concentration"},
}
"""{class: {field in files of kbpjax 0.1: field today}}."""

RENAMED = {
    "kbpjax.ep.oracles.Nearest": "kbpjax.ep.oracles.KLProjection",
    "kbpjax.features.cholesky.Greedy": "kbpjax.features.cholesky.PivotedCholesky",
    "kbpjax.features.cholesky.RandomPivots": "kbpjax.features.cholesky.RandomlyPivotedCholesky",
    "kbpjax.kernels.base.Normalised": "kbpjax.kernels.base.Normalized",
    "kbpjax.positivity.Clipped": "kbpjax.learning.nonnegative.Clipped",
    "kbpjax.positivity.ConstrainedFit": "kbpjax.learning.nonnegative.ConstrainedFit",
    "kbpjax.rules.Held": "kbpjax.learning.rules.FixedLandmarks",
    "kbpjax.settings.Settings": "kbpjax.tuning.hyperparameters.Hyperparameters",
    **{
        f"kbpjax.{old}": f"kbpjax.learning.observations.{old.rpartition('.')[2]}"
        for old in (
            *("evidence.Expectation", "posterior.evidence.Expectation", "mrf.ObservationModel"),
            *("evidence.DensityRatio", "posterior.evidence.DensityRatio", "learning.model.ObservationModel"),
        )
    },
} | {
    f"kbpjax.baselines.{old}": f"kbpjax.baselines.{new}"
    for old, new in {
        "clouds.ParticleSolution": "nonparametric.particle.ParticleSolution",
        "density.ConditionalDensity": "nonparametric.density.ConditionalDensity",
        "density.Regression": "nonparametric.density.RegressionLikelihood",
        "gaussian.GaussianSolution": "gaussian.message_passing.GaussianSolution",
        "gaussian_field.Factors": "gaussian.field.GaussianFactors",
        "gaussian_field.GaussianMRF": "gaussian.field.GaussianMRF",
        "gaussian_template.GaussianTemplate": "gaussian.template.GaussianTemplate",
        "mixture.Exact": "nonparametric.mixture_messages.ExactSampler",
        "mixture.Gibbs": "nonparametric.mixture_messages.GibbsSampler",
        "mixture.MixtureSolution": "nonparametric.mixture_messages.NonparametricSolution",
        "mixture.Multiscale": "nonparametric.mixture_messages.MultiscaleSampler",
        "mixtures.Mixture": "nonparametric.mixtures.GaussianMixture",
        "pairwise.PairwiseMRF": "nonparametric.pairwise.PairwiseMRF",
        "potentials.ConditionalEdge": "nonparametric.potentials.ConditionalEdge",
        "potentials.Conditionals": "nonparametric.potentials.Conditionals",
        "potentials.Flat": "nonparametric.potentials.Flat",
        "potentials.RatioEdge": "nonparametric.potentials.RatioEdge",
        "potentials.Ratios": "nonparametric.potentials.Ratios",
    }.items()
}
"""{class in files of kbpjax 0.1: class today}."""


@public
def save(path: str | Path, value: Any) -> None:
    """Save a model, solution, graph, belief or operator, or a tuple, list or dictionary of these, to a file.

    The file is written beside its place and moved there when it is complete: an interrupt or a full disk leaves the
    old file. Only files of `save` and empty files are replaced. The hidden file `.NAME.*.tmp` of a killed process is
    removed by the next `save` to the same path, except on Windows.

    Args:
        path: path of the file; an earlier file of `save` is replaced. The usual extension is `.kbp`.
        value: the object to save.

    Raises:
        ValueError: the object has functions or other parts that are not data, contains itself, or has arrays of text,
            dates, records or masked entries; the folder does not exist or cannot be written; or the path has a file
            that `save` has not written.
        OSError: the file cannot be written, for instance because the disk is full.

    Examples:
        >>> import os, tempfile, kbpjax as kbp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kbp.save(os.path.join(folder, "kernel.kbp"), kbp.RBF(2.0))
        ...     print(kbp.load(os.path.join(folder, "kernel.kbp")).bandwidth)
        2.0
    """
    file = _checks.path_to_write("path", path)
    fix = "Delete it first, or pass another path."
    rule = "must be new, or a file written by kbpjax.save"
    _checks.require(not file.exists() or _is_ours(file), "path", rule, f"{file}, another file", fix)
    arrays: dict[str, np.ndarray] = {}
    fix = "Save its parts, or leave out the reference to itself."
    try:
        root: Any = _describe(value, "value", arrays)
        deep = _is_deep(root)
    except RecursionError:
        root, deep = None, True
    _checks.require(not deep, "value", "must not contain itself or be deeply nested", type(value).__name__, fix)
    header = {"format": FORMAT, "kbpjax": __version__, "jax": jax.__version__, "root": root}
    with replacing(file) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEADER, json.dumps(header))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


@public
def load(path: str | Path, *, classes: Iterable[type] = ()) -> Any:
    """Return the object in a file written by `save`, bitwise equal.

    Args:
        path: path of the file.
        classes: custom kernels and other custom classes in the file; classes of kbpjax are found automatically.

    Returns:
        The object. Arrays in another byte order come back in the order of the machine.

    Raises:
        ValueError: the file does not exist, is damaged, or has another or a newer format; a class is missing; or the
            file has double precision and `jax_enable_x64` is off.

    Examples:
        >>> import os, tempfile, jax.numpy as jnp, kbpjax as kbp
        >>> class Angle(kbp.Kernel):
        ...     def __call__(self, x, y):
        ...         return jnp.cos(x - y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "both.kbp")
        ...     kbp.save(path, {"kernel": Angle(), "graph": kbp.chain_graph(3)})
        ...     loaded = kbp.load(path, classes=[Angle])
        >>> loaded["kernel"], loaded["graph"].num_nodes
        (Angle(), 3)
    """
    file = _checks.as_path("path", path)
    found: tuple[Any, ...] = tuple(classes) if isinstance(classes, Iterable) else (classes,)
    ok = isinstance(classes, Iterable) and all(isinstance(cls, type) for cls in found)
    _checks.require(ok, "classes", "must be a list of classes", repr(classes)[:80], "Pass classes=[MyKernel].")
    header, arrays = _read(file)
    custom = {_name_of(cls): cls for cls in found}
    try:
        return _build(header["root"], arrays, custom)
    except WRONG as error:
        raise ValueError(_not_ours(file, error)) from error


@public
def describe(path: str | Path) -> dict[str, Any]:
    """Return the format, versions, class, and numbers of arrays and bytes of a file, without loading the object.

    Raises:
        ValueError: as `load`, except for missing classes.

    Examples:
        >>> import os, tempfile, kbpjax as kbp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kbp.save(os.path.join(folder, "kernel.kbp"), kbp.RBF(2.0))
        ...     about = kbp.io.describe(os.path.join(folder, "kernel.kbp"))
        >>> about["class"], about["arrays"]
        ('kbpjax.kernels.euclidean.RBF', 1)
    """
    header, arrays = _read(_checks.as_path("path", path))
    root = header["root"]
    sizes = {"arrays": len(arrays), "array_bytes": sum(array.nbytes for array in arrays.values())}
    versions = {name: header.get(name) for name in ("format", "kbpjax", "jax")}
    return {**versions, **_kind_of(root), **sizes}


def _kind_of(root: Any) -> dict[str, str]:
    """Return the class of the root object, or the type of a collection."""
    if isinstance(root, dict):
        return {"class": str(root.get("class", next(iter(root), None)))}
    return {"class": type(root).__name__}


def _describe(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a JSON description of a value, and add its arrays to `arrays`; errors name `path`."""
    if isinstance(value, jax.Array | np.ndarray | np.generic) and not isinstance(value, str):
        return _describe_array(value, path, arrays)
    if isinstance(value, PLAIN):
        size = value.bit_length() if isinstance(value, int) else 0
        fix = "Save it as text."
        _checks.require(size <= LONGEST, path, f"must have at most {LONGEST} bits", f"{size}", fix)
        return {"float": repr(value)} if isinstance(value, float) else value
    fields_of = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields_of is not None:
        fields = {name: _describe(getattr(value, name), f"{path}.{name}", arrays) for name in fields_of}
        return {"class": _name_of(type(value)), "fields": fields}
    if isinstance(value, tuple | list):
        items = [_describe(one, f"{path}[{i}]", arrays) for i, one in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping):
        pairs = [[_describe(k, path, arrays), _describe(v, f"{path}[{k!r}]", arrays)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, np.dtype):
        known = value.kind in NUMBERS or _is_extended(value)
        _checks.require(known and value.isnative, path, "must be a dtype of numbers", value, "Save its name.")
        return {"dtype": value.name}
    if isinstance(value, type):
        return {"type": _name_of(value)}
    data = isinstance(value, eqx.Module) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    fix = "Save the parts that are data, and add the functions again after loading."
    if hasattr(value, "get_params"):  # of an estimator of scikit-learn
        fix = "Keep estimators with pickle or joblib, as those of scikit-learn."
    _checks.require(data, path, "must be data: arrays, numbers, text and classes of these", repr(value)[:80], fix)
    names = [field.name for field in dataclasses.fields(value) if field.name in vars(value)]
    fields = {name: _describe(getattr(value, name), f"{path}.{name}", arrays) for name in names}
    return {"class": _name_of(type(value)), "fields": fields}


def _describe_array(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a JSON description of an array, and add it to `arrays`; dtypes unknown to NumPy are saved as integers."""
    fix = "Save outside of jax.jit and jax.vmap."
    _checks.require(not _checks.is_traced(value), path, "must be an array with values", "a tracer", fix)
    name = f"a{len(arrays)}"
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        arrays[name] = np.asarray(jax.random.key_data(value))
        return {"array": name, "kind": "key", "dtype": str(jax.random.key_impl(value))}
    kind = "jax" if isinstance(value, jax.Array) else ("numpy" if isinstance(value, np.ndarray) else "number")
    array = np.asarray(value)
    if not _is_extended(array.dtype) and array.dtype != np.float16:  # which `as_numpy` makes wider
        array = np.asarray(_checks.as_numpy(path, value))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    fix = "Save numbers only: text as a list, dates as numbers, each column of a record by itself."
    extended = _is_extended(array.dtype)
    ok = array.dtype.kind in NUMBERS or extended
    _checks.require(ok, path, "must be an array of numbers", f"dtype {array.dtype}", fix)
    arrays[name] = array.view(f"u{array.dtype.itemsize}") if extended else array
    return {"array": name, "kind": kind, "dtype": array.dtype.name}


def _is_extended(dtype: np.dtype) -> bool:
    """Return whether a dtype is one that JAX adds to NumPy, such as bfloat16."""
    return dtype.type.__module__.startswith("ml_dtypes")


def _is_deep(root: Any) -> bool:
    """Return whether a description has more levels than can be read."""
    level = [root]
    for _ in range(DEEPEST):
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in nested for item in items]
    return bool(level)


def _is_ours(path: Path) -> bool:
    """Return whether a file is empty or an archive written by `save`."""
    if path.stat().st_size == 0:
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return HEADER in archive.namelist()
    except DAMAGE:
        return False


def _not_ours(path: Path, error: Exception) -> str:
    rule, fix = "must be a file written by kbpjax.save", "Save it again: it is damaged or from another program."
    return f"path: {rule}; got {path.name}: {type(error).__name__}. {fix}"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and arrays of a file; zipfile verifies their checksums."""
    _checks.require(path.is_file(), "path", "must be a file", str(path), "Save one with kbpjax.save.")
    header: Any = None
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
            if not (isinstance(header["format"], int) and header["format"] >= 1 and "root" in header):
                raise KeyError("format")
            newer = header["format"] > FORMAT
            names = [] if newer else [n for n in archive.namelist() if n.endswith(".npy")]
            for name in names:
                with archive.open(name) as entry:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(entry, allow_pickle=False)
    except DAMAGE as error:
        raise ValueError(_not_ours(path, error)) from None
    rule, got = f"must have format {FORMAT} or older", f"format {header['format']} of kbpjax {header.get('kbpjax')}"
    _checks.require(header["format"] <= FORMAT, "path", rule, got, "Update kbpjax to read it.")
    return header, arrays


def _build(description: Any, arrays: dict[str, np.ndarray], custom: dict[str, type]) -> Any:
    """Return the value of a description, the inverse of `_describe`."""
    if not isinstance(description, dict):
        return description
    if "array" in description:
        return _build_array(description, arrays)
    if "class" in description:
        return _build_object(description, arrays, custom)
    builders = {
        "float": lambda text: _converted(float, text),
        "dtype": lambda name: _converted(jnp.dtype, name),
        "type": lambda name: _class_of(name, custom),
        "tuple": lambda items: tuple(_build(item, arrays, custom) for item in _plain(items, list)),
        "list": lambda items: [_build(item, arrays, custom) for item in _plain(items, list)],
        "dict": lambda pairs: _converted(
            dict, [[_build(one, arrays, custom) for one in _plain(pair, list)] for pair in _plain(pairs, list)]
        ),
    }
    kind = ", ".join(description)
    _checks.require(kind in builders, "path", "must have a supported layout", kind, "Update kbpjax, or save it again.")
    return builders[kind](description[kind])


def _plain(content: Any, kind: type) -> Any:
    if not isinstance(content, kind):
        raise TypeError(f"{content!r} is no {kind.__name__}")
    return content


def _converted(function: Callable[[Any], Any], content: Any) -> Any:
    """Return the result of a conversion; raise TypeError for content that `save` does not write."""
    try:
        return function(content)
    except ValueError as error:
        raise TypeError(str(error)) from error


def _build_array(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    fix, name = "Save it again: it is damaged.", description["array"]
    _checks.require(name in arrays, "path", "must have all of its arrays", f"none named {name}", fix)
    array = arrays[name]
    if description["kind"] == "key":
        return _converted(lambda data: jax.random.wrap_key_data(data, impl=description["dtype"]), jnp.asarray(array))
    dtype = _converted(jnp.dtype, description["dtype"])
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    array = array if array.dtype == dtype else _converted(array.view, dtype)
    if description["kind"] == "numpy":
        return array
    if description["kind"] == "number":
        return array[()]
    made = _checks.to_jax(array)
    fix = 'Call jax.config.update("jax_enable_x64", True) first.'
    _checks.require(made.dtype == dtype, "path", f"must fit the precision of {made.dtype}", dtype.name, fix)
    return made


def _build_object(description: dict[str, Any], arrays: dict[str, np.ndarray], custom: dict[str, type]) -> Any:
    """Return an object from its fields, with its checks but without its constructor; missing fields have defaults."""
    if description["class"] in GONE:
        return None
    package, _, name = description["class"].rpartition(".")
    if name in DROPPED and package.startswith("kbpjax.") and description["class"] not in custom:
        warn(f"path: has a {name}, which kbpjax no longer has: it is None. See CHANGELOG.md.", KbpWarning)
        return None
    cls = _class_of(description["class"], custom)
    fields = {name: _build(value, arrays, custom) for name, value in description["fields"].items()}
    if issubclass(cls, tuple):
        return cls(**fields)
    names: dict[str, str] = FIELDS.get(cls.__name__, {}) if cls.__module__.startswith("kbpjax.") else {}
    fields: dict[str, Any] = {names.get(name, name): value for name, value in fields.items()}
    upgrade = getattr(cls, "_upgrade", None)  # of the fields of an older version
    fields = fields if upgrade is None else upgrade(fields)
    declared = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(fields) - set(declared))
    fix = "Load it with the version of kbpjax that wrote it."
    _checks.require(not unknown, "path", f"must have fields of {cls.__name__}", unknown, fix)
    for name, field in declared.items():
        if name not in fields and field.default is not dataclasses.MISSING:
            fields[name] = field.metadata.get("converter", lambda value: value)(field.default)
        elif name not in fields and field.default_factory is not dataclasses.MISSING:
            fields[name] = field.default_factory()
    missing = sorted(set(declared) - set(fields))
    _checks.require(not missing, "path", f"must have all fields of {cls.__name__}", f"no {missing}", fix)
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    for base in cls.__mro__:  # as Equinox does after a constructor
        if "__check_init__" in vars(base):
            vars(base)["__check_init__"](instance)
    return instance


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of(name: str, custom: dict[str, type]) -> Any:
    """Return the class of a qualified name, from custom classes or from this package."""
    if name in custom:
        return custom[name]
    name = RENAMED.get(name, name)
    module, _, qualname = name.rpartition(".")
    package, _, rest = module.partition(".")
    module = f"{package}.{MODULES.get(rest, rest)}" if package == "kbpjax" else module
    fix = "Pass custom classes: load(path, classes=(MyKernel,))."
    found: Any = None
    if module.split(".")[0] == "kbpjax":
        try:
            found = getattr(importlib.import_module(module), qualname, None)
        except (ImportError, ValueError):
            found = None
    _checks.require(
        isinstance(found, type), "classes", "must include all custom classes of the file", f"no {name}", fix
    )
    data = dataclasses.is_dataclass(found) or issubclass(found, tuple)
    _checks.require(data, "path", "must hold data", name, "Save it again: it is damaged.")
    return found
