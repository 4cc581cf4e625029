"""Models, solutions and graphs in files: one file each, no code in it, written whole or not at all.

A file is a zip archive of `kbpjax.json`, which says how the object is built of classes of this package, and an array
for each of its leaves. Nothing in it is run when it is loaded; classes are looked up by name, in the package and among
those that the reader passes. Training data are in it only where they are part of the model, as landmarks are.
"""

import dataclasses
import importlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kbpjax import __version__, _checks
from kbpjax._misc import replacing

FORMAT = 1
"""Of the files that are written; older ones are read, newer ones refused."""
HEADER = "kbpjax.json"
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, json.JSONDecodeError, UnicodeError, EOFError, OSError),
    *(KeyError, ValueError, TypeError, NotImplementedError, SyntaxError, RuntimeError, MemoryError, OverflowError),
)
"""What readers of zip archives, arrays and JSON raise where bytes are not what they should be."""
PLAIN = (bool, int, float, str, type(None))
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
    "update": "inference.operators",
}
"""Modules of kbpjax 0.1 whose classes have moved."""

GONE = ("kbpjax.graph.Tiles", "kbpjax.tree_schedule.Schedule")
"""Index tables of kbpjax 0.1, which graphs make anew."""

FIELDS = {
    "Operators": {"positive": "nonnegative"},
    "Hyperparameters": {"positive": "nonnegative", "form": "evidence_model"},
    "Matern": {"smoothness": "nu"},
    "RationalQuadratic": {"mixture": "alpha"},
    "Sphere": {"sharpness": "concentration"},
    "Rotations": {"sharpness": "concentration"},
    "Mallows": {"sharpness": "concentration"},
}
"""Fields that had other names in kbpjax 0.1."""

RENAMED = {
    "kbpjax.features.cholesky.Greedy": "kbpjax.features.cholesky.PivotedCholesky",
    "kbpjax.features.cholesky.RandomPivots": "kbpjax.features.cholesky.RandomlyPivotedCholesky",
    "kbpjax.positivity.Clipped": "kbpjax.learning.nonnegative.Clipped",
    "kbpjax.positivity.ConstrainedFit": "kbpjax.learning.nonnegative.ConstrainedFit",
    "kbpjax.rules.Held": "kbpjax.learning.rules.FixedLandmarks",
    "kbpjax.settings.Settings": "kbpjax.tuning.hyperparameters.Hyperparameters",
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
"""{name of a class in files of kbpjax 0.1: its name today}."""


def save(path: str | Path, value: Any) -> None:
    """Write a model, solution, graph, belief, operator, or a tuple, list or dictionary of these, to a file.

    Args:
        path: of the file, which is replaced; any ending, `.kbp` by custom.
        value: what to write.

    Raises:
        ValueError: functions or other objects in it that are no data; a folder that does not exist.

    Examples:
        >>> import os, tempfile, kbpjax as kbp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kbp.save(os.path.join(folder, "kernel.kbp"), kbp.RBF(2.0))
        ...     print(kbp.load(os.path.join(folder, "kernel.kbp")).bandwidth)
        2.0
    """
    file = Path(path)
    _checks.require(
        file.parent.is_dir(), "path", "must be in a folder that exists", str(file), "Make the folder first."
    )
    arrays: dict[str, np.ndarray] = {}
    root = _describe(value, "value", arrays)
    header = {"format": FORMAT, "kbpjax": __version__, "jax": jax.__version__, "root": root}
    with replacing(file) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEADER, json.dumps(header))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def load(path: str | Path, *, classes: Iterable[type] = ()) -> Any:
    """Read what `save` has written, bit by bit the same.

    Args:
        path: of the file.
        classes: kernels and other classes of your own that are in it; those of kbpjax are found by themselves.

    Raises:
        ValueError: no such file, a damaged one, one of another program or of a newer format; classes not known;
            double precision where `jax_enable_x64` is off.

    Examples:
        >>> import os, tempfile, jax.numpy as jnp, kbpjax as kbp
        >>> class Angle(kbp.Kernel):
        ...     def __call__(self, x, y):
        ...         return jnp.cos(x - y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "both.kbp")
        ...     kbp.save(path, {"kernel": Angle(), "graph": kbp.chain_graph(3)})
        ...     found = kbp.load(path, classes=[Angle])
        >>> found["kernel"], found["graph"].num_nodes
        (Angle(), 3)
    """
    header, arrays = _read(Path(path))
    known = {_name_of(cls): cls for cls in classes}
    return _build(header["root"], arrays, known)


def describe(path: str | Path) -> dict[str, Any]:
    """Return what a file holds, without building it: format, versions, class, and numbers of arrays and bytes.

    Raises:
        ValueError: as `load`, but classes need not be known.

    Examples:
        >>> import os, tempfile, kbpjax as kbp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kbp.save(os.path.join(folder, "kernel.kbp"), kbp.RBF(2.0))
        ...     found = kbp.io.describe(os.path.join(folder, "kernel.kbp"))
        >>> found["class"], found["arrays"]
        ('kbpjax.kernels.euclidean.RBF', 1)
    """
    header, arrays = _read(Path(path))
    root = header["root"]
    sizes = {"arrays": len(arrays), "array_bytes": sum(array.nbytes for array in arrays.values())}
    return {"format": header["format"], "kbpjax": header["kbpjax"], "jax": header["jax"], **_kind_of(root), **sizes}


def _kind_of(root: Any) -> dict[str, str]:
    """Return the class of the whole, or the kind of collection."""
    if isinstance(root, dict):
        return {"class": str(root.get("class", next(iter(root))))}
    return {"class": type(root).__name__}


def _describe(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Turn a value into what JSON can hold, and put its arrays aside."""
    if isinstance(value, PLAIN):
        return {"float": repr(value)} if isinstance(value, float) else value
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _describe_array(value, place, arrays)
    fields_of = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields_of is not None:
        fields = {name: _describe(getattr(value, name), f"{place}.{name}", arrays) for name in fields_of}
        return {"class": _name_of(type(value)), "fields": fields}
    if isinstance(value, tuple | list):
        inside = [_describe(one, f"{place}[{i}]", arrays) for i, one in enumerate(value)]
        return {type(value).__name__: inside}
    if isinstance(value, Mapping):
        pairs = [[_describe(k, place, arrays), _describe(v, f"{place}[{k!r}]", arrays)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, type):
        return {"type": _name_of(value)}
    data = isinstance(value, eqx.Module) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    fix = "Save the parts that are data, and put the functions in again after loading."
    _checks.require(data, place, "must be data: arrays, numbers, text and classes of these", repr(value)[:80], fix)
    names = [field.name for field in dataclasses.fields(value) if field.name in vars(value)]
    fields = {name: _describe(getattr(value, name), f"{place}.{name}", arrays) for name in names}
    return {"class": _name_of(type(value)), "fields": fields}


def _describe_array(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put an array aside under a number; kinds that NumPy's files do not know go as integers of their size."""
    fix = "Save outside of jax.jit and jax.vmap."
    _checks.require(not _checks.is_traced(value), place, "must be an array with values", "a tracer", fix)
    name = f"a{len(arrays)}"
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        arrays[name] = np.asarray(jax.random.key_data(value))
        return {"array": name, "kind": "key", "dtype": str(jax.random.key_impl(value))}
    kind = "jax" if isinstance(value, jax.Array) else ("numpy" if isinstance(value, np.ndarray) else "number")
    array = np.asarray(value)
    fix = "Save numbers only."
    _checks.require(array.dtype.kind not in "OM", place, "must be an array of numbers", f"dtype {array.dtype}", fix)
    foreign = array.dtype.kind == "V"
    arrays[name] = array.view(f"u{array.dtype.itemsize}") if foreign else array
    return {"array": name, "kind": kind, "dtype": array.dtype.name}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of a file, each checked against its sum."""
    _checks.require(path.is_file(), "path", "must be a file", str(path), "Save one with kbpjax.save.")
    fix = "Save it again: it is damaged, or of another program."
    header: Any = None
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
            newer = header["format"] > FORMAT
            names = [] if newer else [n for n in archive.namelist() if n.endswith(".npy")]
            for name in names:
                with archive.open(name) as entry:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(entry, allow_pickle=False)
    except DAMAGE as error:
        got = f"{path.name}: {type(error).__name__}"
        raise ValueError(f"path: must be a file that kbpjax.save has written; got {got}. {fix}") from None
    rule, got = f"must be of format {FORMAT} or older", f"format {header['format']} of kbpjax {header.get('kbpjax')}"
    _checks.require(header["format"] <= FORMAT, "path", rule, got, "Update kbpjax to read it.")
    return header, arrays


def _build(what: Any, arrays: dict[str, np.ndarray], known: dict[str, type]) -> Any:
    """Invert `_describe`."""
    if not isinstance(what, dict):
        return what
    if "array" in what:
        return _build_array(what, arrays)
    if "class" in what:
        return _build_object(what, arrays, known)
    ((kind, inside),) = what.items()
    makers = {
        "float": float,
        "dtype": jnp.dtype,
        "type": lambda name: _class_of(name, known),
        "tuple": lambda parts: tuple(_build(part, arrays, known) for part in parts),
        "list": lambda parts: [_build(part, arrays, known) for part in parts],
        "dict": lambda pairs: {_build(k, arrays, known): _build(v, arrays, known) for k, v in pairs},
    }
    _checks.require(kind in makers, "path", "must be of a known layout", kind, "Update kbpjax, or save it again.")
    return makers[kind](inside)


def _build_array(what: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    fix = "Save it again: it is damaged."
    _checks.require(what["array"] in arrays, "path", "must hold all of its arrays", f"none named {what['array']}", fix)
    array = arrays[what["array"]]
    if what["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=what["dtype"])
    dtype = jnp.dtype(what["dtype"])
    array = array if array.dtype == dtype else array.view(dtype)
    if what["kind"] == "numpy":
        return array
    if what["kind"] == "number":
        return array[()]
    made = jnp.asarray(array)
    fix = 'Call jax.config.update("jax_enable_x64", True) first.'
    _checks.require(made.dtype == dtype, "path", f"must fit the precision of {made.dtype}", dtype.name, fix)
    return made


def _build_object(what: dict[str, Any], arrays: dict[str, np.ndarray], known: dict[str, type]) -> Any:
    """Make an object of its fields, by its checks but not its constructor; fields that it lacks take their defaults."""
    if what["class"] in GONE:
        return None
    cls = _class_of(what["class"], known)
    fields = {name: _build(of, arrays, known) for name, of in what["fields"].items()}
    if issubclass(cls, tuple):
        return cls(**fields)
    names: dict[str, str] = FIELDS.get(cls.__name__, {}) if cls.__module__.startswith("kbpjax.") else {}
    fields: dict[str, Any] = {names.get(name, name): value for name, value in fields.items()}
    upgrade = getattr(cls, "_upgrade", None)  # of the fields of an older version
    fields = fields if upgrade is None else upgrade(fields)
    declared = {field.name: field for field in dataclasses.fields(cls)}
    strange = sorted(set(fields) - set(declared))
    fix = "Read it with the version of kbpjax that wrote it."
    _checks.require(not strange, "path", f"must have fields of {cls.__name__}", strange, fix)
    for name, field in declared.items():
        if name not in fields and field.default is not dataclasses.MISSING:
            fields[name] = field.default
    missing = sorted(set(declared) - set(fields))
    _checks.require(not missing, "path", f"must have all fields of {cls.__name__}", f"no {missing}", fix)
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    for base in cls.__mro__:  # as equinox does after a constructor
        if "__check_init__" in vars(base):
            vars(base)["__check_init__"](made)
    return made


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of(name: str, known: dict[str, type]) -> Any:
    """Find a class by its name: one that was passed, or one of this package."""
    if name in known:
        return known[name]
    name = RENAMED.get(name, name)
    module, _, qualname = name.rpartition(".")
    package, _, rest = module.partition(".")
    module = f"{package}.{MODULES.get(rest, rest)}" if package == "kbpjax" else module
    fix = "Pass classes of your own: load(path, classes=(MyKernel,))."
    found: Any = None
    if module.split(".")[0] == "kbpjax":
        try:
            found = getattr(importlib.import_module(module), qualname, None)
        except ImportError:
            found = None
    _checks.require(isinstance(found, type), "classes", "must have all classes of the file", f"no {name}", fix)
    data = dataclasses.is_dataclass(found) or issubclass(found, tuple)
    _checks.require(data, "path", "must hold data", name, "Save it again: it is damaged.")
    return found
