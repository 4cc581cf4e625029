"""Objects of the package as values: copies, equality and hashes; answers in threads and of stacked models.

    python -m tests.fuzz.objects [--names beliefs kernels.]

Of every object that a recipe of `tests.fuzz.recipes` takes or returns:

- `pickle` and `copy.deepcopy` return one of the same structure, so that nothing is compiled anew, and equal arrays;
- `==` and `!=` are one boolean: an object is equal to its copies, unless it holds NaN, and to nothing of another kind;
- `hash` is the same of a copy, or raises the `TypeError` of Python: "unhashable type".

`infer` in eight threads at once, and mapped over stacked models, gives what it gives one after the other. Every
exception to these rules is in `CANNOT` or `BY_IDENTITY`, with the reason.
"""

import argparse
import contextlib
import copy
import io
import os
import pickle
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from tests.fuzz import recipes
from tests.fuzz.values import is_record

FUNCTION = "holds a function of the user; `pickle` writes those that have a name in a module"
CANNOT = {
    ("pickle", "kernels.Transformed"): FUNCTION,
    ("deepcopy", "kernels.Transformed"): "JAX copies its compiled functions; those of Python stay what they are",
    ("pickle", "likelihood"): FUNCTION,
    ("pickle", "ep.ForwardSampler"): FUNCTION,
    ("pickle", "ep.LogDensity"): FUNCTION,
    ("pickle", "sharded.partition_graph"): "belongs to the devices of a process",
}
"""{(kind of copy, recipe of the object): why there is none}."""

BY_IDENTITY = {
    "Chunks": "reads files lazily",
    "GraphRegressor": "as estimators of scikit-learn",
}
"""{class: why an object is equal to itself only}."""

THREADS = 8
ROUNDING = 1e-5


def objects_in(value: Any) -> Iterator[Any]:
    """Yield the objects of the package in an argument or answer."""
    if is_record(value):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from objects_in(one)


def objects_of(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield (recipe, object) for the objects that recipes return and take, one of each class and structure."""
    seen = set()
    for name in names:
        call, given = recipes.RECIPES[name]()
        with contextlib.redirect_stdout(io.StringIO()):
            answer = call(**given)
        for one in objects_in([answer, *given.values()]):
            key = type(one), str(jax.tree.structure(one))
            if not isinstance(one, type) and key not in seen:
                seen.add(key)
                yield name, one


def faults_of(name: str, one: Any) -> list[str]:
    """Return what is wrong with an object as a value."""
    copies: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda one: pickle.loads(pickle.dumps(one)),
        "deepcopy": copy.deepcopy,
    }
    found = []
    for how, function in copies.items():
        if (how, name) in CANNOT:
            continue
        try:
            other = function(one)
        except Exception as error:
            found.append(f"{how}: {type(error).__name__}: {error}")
        else:
            found += [f"{how}: {fault}" for fault in differences(one, other)]
    return [f"{name}: {type(one).__name__}: {fault}" for fault in [*found, *faults_beside_others(one)]]


def differences(one: Any, other: Any) -> Iterator[str]:
    """Yield how a copy differs from an object."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        yield "another structure"
    leaves = [list(map(numbers, jax.tree.leaves(tree))) for tree in (one, other)]
    by_identity = type(one).__name__ in BY_IDENTITY
    if not by_identity and not all(map(same, *leaves)):
        yield "other arrays"
    equal = not by_identity and not any(map(has_nan, leaves[0]))
    try:
        if bool(one == other) != equal or bool(one != other) == equal:
            yield f"== is {one == other}"
        if hash(one) != hash(other) and equal:
            yield "another hash"
    except Exception as error:
        if not is_unhashable(error):
            yield f"== or hash: {type(error).__name__}: {error}"


def faults_beside_others(one: Any) -> Iterator[str]:
    """Yield what is wrong with the comparison of an object with values of other kinds."""
    for other in (None, 1, "text", object(), (), jnp.arange(3.0)):
        try:
            if bool(one == other) or not bool(one != other):
                yield f"equals {other}"
        except Exception as error:
            yield f"== {type(other).__name__}: {type(error).__name__}: {error}"


def numbers(leaf: Any) -> Any:
    """Return a leaf, the words of a random key."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def same(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal bit by bit, or of one class without arrays."""
    if isinstance(one, jax.Array | np.ndarray | np.generic | float):
        dtypes = np.asarray(one).dtype, np.asarray(other).dtype
        return dtypes[0] == dtypes[1] and np.array_equal(one, other, equal_nan=dtypes[0].kind in "fc")
    return type(one) is type(other)


def has_nan(leaf: Any) -> bool:
    """Return whether a leaf has NaN, which equals nothing."""
    array = np.asarray(leaf)
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())


def is_unhashable(error: Exception) -> bool:
    """Return whether an error is the one of Python that an object has no hash."""
    return isinstance(error, TypeError) and "unhashable type" in str(error)


def faults_of_threads() -> list[str]:
    """Return whether threads that call `infer` at once, none of it compiled before, answer as one does."""
    model, rows = recipes.model(), recipes.Y[:THREADS]
    together = threading.Barrier(THREADS)

    def answer(y: Any) -> Any:
        return np.asarray(kbp.infer(model, recipes.GRAPH, y, points=recipes.POINTS).weights)

    def at_once(y: Any) -> Any:
        together.wait()
        return answer(y)

    jax.clear_caches()
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(at_once, rows))
    far = [i for i, y in enumerate(rows) if np.abs(found[i] - answer(y)).max() > ROUNDING]
    return [f"threads: other answers of cases {far}"] if far else []


def faults_of_stacks() -> list[str]:
    """Return whether `infer` mapped over stacked models answers as one model after the other."""
    graph, kernel = recipes.GRAPH, kbp.RBF(0.7)
    models = [
        kbp.fit(kbp.pool(graph, scale * recipes.X, recipes.Y), kernel=kernel, obs_kernel=kernel, rule=recipes.RULE)
        for scale in (1.0, 1.5, 0.6)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    def answer(model: Any, y: Any) -> Any:
        return kbp.infer(model, graph, y, points=recipes.POINTS, num_iters=3).weights

    rows = jnp.asarray(recipes.Y[: len(models)])
    each = jnp.stack([answer(model, y) for model, y in zip(models, rows, strict=True)])
    far = float(jnp.abs(jax.vmap(answer)(stacked, rows) - each).max())
    return [] if far <= ROUNDING else [f"stacked models: answers differ by {far}"]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; the exit status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.objects", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--names", nargs="*", default=[], help="only recipes that begin so")
    options = parser.parse_args(arguments)
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time is compilation
    warnings.simplefilter("ignore")
    names = [name for name in recipes.RECIPES if not options.names or name.startswith(tuple(options.names))]
    found, classes = faults_of_threads() + faults_of_stacks(), set()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # functions that write files write them here
        for name, one in objects_of(names):
            classes.add(type(one))
            found += faults_of(name, one)
    print(*found, f"{len(found)} faults of objects of {len(classes)} classes", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
