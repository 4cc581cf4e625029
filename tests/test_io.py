"""Files: what is saved is read again bit by bit; what is damaged, newer or foreign is refused; nothing is lost."""

import dataclasses
import functools
import json
import os
import sys
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import BaseEstimator

import kbpjax as kbp
from experiments.lib.schedules import ResidualFirst
from kbpjax import ep, io
from kbpjax._misc import replacing
from kbpjax.baselines import discrete, gaussian, nonparametric, particle
from tests.programs import python
from tests.refusals import not_refused

KEPT = Path(__file__).resolve().parent / "data" / "model-0.1.0.kbp"
"""A model, a graph and a solution that kbpjax 0.1.0 has saved; made by `make_kept` below."""
BASELINES = KEPT.with_name("baselines-0.1.0.kbp")
INFERENCE = KEPT.with_name("inference-0.1.0.kbp")
"""Models and solutions of the baselines, saved by kbpjax 0.1.0 when their classes had other names."""


class Heavy(kbp.Kernel):
    weight: jax.Array

    def __call__(self, x, y):
        return self.weight * jnp.sum(x * y)


def example(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    graph = kbp.grid_graph(4, 5)
    x = rng.normal(size=(20, 20)).astype(dtype)
    y = x + 0.3 * rng.normal(size=x.shape).astype(dtype)
    kernel = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.5)}
    model = kbp.fit(kbp.pool(graph, x, y), rule=kbp.ConstantTime(1e-2, 12), ridge=1e-2, **kernel)
    solution = kbp.run(model, graph, kbp.observe(model, graph, y[0]), num_iters=4)
    return model, graph, solution, y[0]


def make_kept():
    """Write the file that later versions must read, in single precision."""
    model, graph, solution, y = example(np.float32)
    io.save(KEPT, {"model": model, "graph": graph, "solution": solution, "y": y})


def same(a, b):
    """Say whether two pytrees have the same structure and the same bits."""
    (left, one), (right, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    alike = [type(x) is type(y) and bits(x) == bits(y) for x, y in zip(left, right, strict=True)]
    return one == other and all(alike)


def bits(leaf):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.dtype, array.shape, array.tobytes()


@pytest.fixture(scope="module")
def saved():
    return example()


def round_trip(path, value, **options):
    kbp.save(path / "file.kbp", value)
    return kbp.load(path / "file.kbp", **options)


def test_model_graph_and_solution_come_back_bit_by_bit(saved, tmp_path):
    model, graph, solution, y = saved
    again = round_trip(tmp_path, {"model": model, "graph": graph, "solution": solution, "more": {3: (None, [1, True])}})
    assert same(again, {"model": model, "graph": graph, "solution": solution, "more": {3: (None, [1, True])}})
    evidence = kbp.observe(again["model"], again["graph"], y)
    resumed = kbp.run(again["model"], again["graph"], evidence, num_iters=4)
    assert bits(resumed.messages) == bits(solution.messages)


@pytest.mark.slow
def test_answers_need_no_training_data(saved, tmp_path):
    model, graph, _, y = saved
    kbp.save(tmp_path / "model.kbp", model)
    with zipfile.ZipFile(tmp_path / "model.kbp") as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    assert size < 4 * sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    np.save(tmp_path / "y.npy", y)
    code = (
        "import sys, jax, numpy as np; jax.config.update('jax_enable_x64', True); import kbpjax as kbp\n"
        "model, y, graph = kbp.load(sys.argv[1]), np.load(sys.argv[2]), kbp.grid_graph(4, 5)\n"
        "evidence = kbp.observe(model, graph, y)\n"
        "belief = kbp.beliefs(model, graph, evidence, kbp.run(model, graph, evidence), np.linspace(-2, 2, 9))\n"
        "np.save(sys.argv[2], kbp.mean(belief))\n"
    )
    outcome = python("-c", code, tmp_path / "model.kbp", tmp_path / "y.npy", JAX_DISABLE_MOST_OPTIMIZATIONS="true")
    assert outcome.returncode == 0, outcome.stderr
    evidence = kbp.observe(model, graph, y)
    belief = kbp.beliefs(model, graph, evidence, kbp.run(model, graph, evidence), jnp.linspace(-2, 2, 9))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), kbp.mean(belief), rtol=1e-9)


VALUES = {
    "settings": kbp.Hyperparameters(kernel=kbp.RBF(2.0), obs_kernel=kbp.kernels.Normalized(kbp.Linear()) ** 2),
    "numbers": (1, 2.5, float("inf"), float("nan"), -0.0, True, None, "ü", np.float32(3), np.int8(-1)),
    "scalars": (np.float64(2.5), np.bool_(True), np.complex64(1j), np.longdouble(3), "text", 1.5),
    "arrays": [
        np.arange(3, dtype=np.uint8),
        np.ones((2, 0)),
        jnp.ones(2, jnp.bfloat16),
        jnp.arange(3, dtype=jnp.int32),
        jnp.ones(2, jnp.float8_e4m3fn),
        np.ma.masked_array([1.0, 2.0], [False, False]).data,
    ],
    "keys": jax.random.split(jax.random.key(3), 2),
    "features": kbp.RandomFourier(4).feature_map(kbp.RBF(1.0), jnp.ones((3, 2)), 1e-2, 4)[0],
    "rule": kbp.LinearTime(1e-2, 5),
    "named": ep.logistic_integrals(ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)),
}


@pytest.mark.parametrize("name", VALUES)
def test_other_objects(name, tmp_path):
    again = round_trip(tmp_path, VALUES[name])
    assert type(again) is type(VALUES[name])
    assert same(again, VALUES[name]) or str(again) == str(VALUES[name])


def test_arrays_of_another_byte_order_keep_their_values(tmp_path):
    arrays = [np.arange(3).astype(dtype) for dtype in (">f4", ">f8", ">i4", ">u2", ">c8")]
    for one, again in zip(arrays, round_trip(tmp_path, arrays), strict=True):
        np.testing.assert_array_equal(one, again)
        assert again.dtype == one.dtype.newbyteorder("=")


def test_tree_schedules_and_operators_of_expectation_propagation(tmp_path):
    like = (ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0))
    learner = ep.Learner(num_inner=4, num_outer=5)
    operator = ep.init_operator(jax.random.key(0), like, variable=1, num_initial=3, learner=learner)
    star = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3)], 4)
    again = round_trip(tmp_path, (operator, star))
    assert same(again, (operator, star))
    assert again[0].families == (ep.Beta, ep.Gaussian)


def test_a_model_of_this_release_is_read():
    kept = kbp.load(KEPT)
    assert io.describe(KEPT)["kbpjax"] == "0.1.0" and io.describe(KEPT)["class"] == "dict"
    evidence = kbp.observe(kept["model"], kept["graph"], kept["y"])
    belief = kbp.beliefs(kept["model"], kept["graph"], evidence, kept["solution"], np.linspace(-1, 1, 5))
    np.testing.assert_allclose(np.sum(belief.weights, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(kept["graph"].senders, kbp.grid_graph(4, 5).senders)


def test_the_residual_of_a_solution_of_0_1_is_that_of_its_last_iteration():
    saved = {"messages": np.ones((2, 1)), "residuals": np.array([3.0, 2.0, 1.0, np.nan]), "num_iters": 2}
    assert kbp.Solution._upgrade(dict(saved))["residual"] == 2.0
    assert kbp.Solution._upgrade({**saved, "residual": 0.5})["residual"] == 0.5


def test_classes_of_ones_own_are_passed(tmp_path):
    kernel = Heavy(jnp.array(2.0))
    kbp.save(tmp_path / "own.kbp", kernel)
    with pytest.raises(ValueError, match=r"^classes: must include all custom classes.*Heavy. Pass custom classes"):
        kbp.load(tmp_path / "own.kbp")
    assert same(kbp.load(tmp_path / "own.kbp", classes=(Heavy,)), kernel)
    assert io.describe(tmp_path / "own.kbp")["class"].endswith("Heavy")


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        {"f": jax.jit(lambda x: x)},
        object(),
        kbp.kernels.Transformed(jnp.log, kbp.Linear()),
    ],
)
def test_what_is_no_data_is_refused_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "file.kbp"
    kbp.save(path, 1)
    with pytest.raises(ValueError, match="^value.*: must be"):
        kbp.save(path, value)
    assert kbp.load(path) == 1 and [p.name for p in tmp_path.iterdir()] == ["file.kbp"]


def test_tracers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got a tracer. Save outside of"):
        jax.jit(lambda x: kbp.save(tmp_path / "file.kbp", x))(1.0)


def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.kbp"
    kbp.save(path, 1)
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        kbp.save(path, jnp.ones(3))
    assert kbp.load(path) == 1 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX systems only")
def test_what_killed_processes_left_is_removed(tmp_path):
    """Temporary files of the same path, unless a process holds their lock."""
    import fcntl

    path, others = tmp_path / "file[1].kbp", ["file[1].kbp", ".file1.kbp.01234567.tmp", ".file[1].kbp.notes.tmp"]
    left, written = tmp_path / ".file[1].kbp.01234567.tmp", tmp_path / ".file[1].kbp.89abcdef.tmp"
    for name in [*others[1:], left.name, written.name]:
        (tmp_path / name).touch()
    with written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kbp.save(path, 1)
        assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*others, written.name])
    kbp.save(path, 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(others) and kbp.load(path) == 2


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX systems only")
def test_a_file_that_is_being_written_is_not_taken_for_a_leftover(tmp_path):
    path = tmp_path / "file.kbp"
    with replacing(path) as first:
        kbp.save(path, 1)
        first.write(b"later")
    assert path.read_bytes() == b"later" and len(list(tmp_path.iterdir())) == 1


def test_damaged_files_are_refused(saved, tmp_path):
    path = tmp_path / "file.kbp"
    kbp.save(path, saved[0])
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    kept, refused, harmless = jax.tree.leaves(saved[0]), 0, 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            again = kbp.load(path)
        except ValueError as error:
            refused += str(error).startswith(("path: ", "classes: "))
        else:  # the bit was of no consequence, such as a time
            harmless += all(bits(a) == bits(b) for a, b in zip(jax.tree.leaves(again), kept, strict=True))
    assert refused + harmless == 150 and refused > 100
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"^path: must be a file written by kbpjax.save; got file.kbp"):
            kbp.load(path)


def change_header(path, change):
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries[io.HEADER])
    entries[io.HEADER] = json.dumps(change(header)).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def test_what_tune_returned_in_0_1_still_loads(tmp_path):
    data, path = kbp.pool(kbp.chain_graph(2), np.linspace(-1, 1, 12).reshape(6, 2)), tmp_path / "tuned.kbp"
    best = kbp.Hyperparameters(kbp.RBF(0.5), ridge=1e-2, rule=kbp.FullRank())
    losses, checks = np.array([1.0, 0.5]), {0: 1.0, 2: 0.4}
    kbp.save(path, kbp.Tuned(best, best.fit(data), losses, checks, {"ridge": losses / 100}, "all steps done"))

    def as_it_was(header):
        fields = header["root"]["fields"]["model"]["fields"]
        del fields["hyperparameters"], fields["candidates"]  # which 0.1 did not have
        text = json.dumps(header).replace('"hyperparameters":', '"settings":')
        text = text.replace("kbpjax.tuning.hyperparameters.Hyperparameters", "kbpjax.settings.Settings")
        return json.loads(text.replace("kbpjax.tuning.tune.Tuned", "kbpjax.tuning.Tuned"))

    change_header(path, as_it_was)
    tuned = kbp.load(path)
    assert type(tuned) is kbp.Tuned and tuned.hyperparameters == best and tuned.checks == checks
    np.testing.assert_array_equal(tuned.losses, losses)


CHANGES = {
    "newer": (
        lambda h: h | {"format": 2, "kbpjax": "9.0"},
        "have format 1 or older; got format 2 of kbpjax 9.0. Up",
    ),
    "no format": (lambda h: {"root": h["root"]}, "must be a file written by kbpjax.save"),
    "a list": (lambda h: [h], "must be a file written by kbpjax.save"),
    "kind": (lambda h: h | {"root": {"lambda": "x"}}, "must have a supported layout; got lambda"),
    "function": (lambda h: h | {"root": {"class": "kbpjax.io.load", "fields": {}}}, "must include all custom classes"),
    "other package": (lambda h: h | {"root": {"class": "subprocess.Popen", "fields": {}}}, "all custom classes"),
    "no data": (lambda h: h | {"root": {"class": "kbpjax.io.Path", "fields": {}}}, "must hold data"),
    "strange field": (lambda h: edit(h, lambda f: f | {"color": 1}), "must have fields of RBF; got ['color']"),
    "no field": (lambda h: edit(h, lambda f: {}), "must have all fields of RBF; got no ['bandwidth']"),
    "no array": (
        lambda h: edit(h, lambda f: {"bandwidth": {"array": "a9", "kind": "jax", "dtype": "float64"}}),
        "arrays",
    ),
}


def edit(header, change):
    header["root"]["fields"] = change(header["root"]["fields"])
    return header


@pytest.mark.parametrize("name", CHANGES)
def test_headers_that_say_something_else(name, tmp_path):
    path = tmp_path / "file.kbp"
    kbp.save(path, kbp.RBF(1.0))
    change, said = CHANGES[name]
    change_header(path, change)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        kbp.load(path)
    assert said in str(error.value)


def test_a_field_that_is_new_takes_its_default(tmp_path):
    path = tmp_path / "file.kbp"
    kbp.save(path, kbp.ConstantTime(1e-2, 7))
    change_header(path, lambda h: edit(h, lambda f: {"max_rank": f["max_rank"]}))
    assert kbp.load(path) == kbp.ConstantTime(1e-3, 7)


def test_beliefs_on_own_points_are_saved_and_earlier_ones_have_common_points(tmp_path):
    path, weights = tmp_path / "belief.kbp", jnp.full((2, 3), 1 / 3)
    own = kbp.Belief(jnp.arange(6.0).reshape(2, 3), weights, jnp.ones((2, 3)), own_points=True)
    kbp.save(path, own)
    loaded = kbp.load(path)
    assert loaded.own_points and eqx.tree_equal(loaded, own)
    common = kbp.Belief(jnp.arange(3.0), weights)
    kbp.save(path, common)
    change_header(path, lambda h: edit(h, lambda f: {name: f[name] for name in f if name != "own_points"}))
    assert eqx.tree_equal(kbp.load(path), common)


DEEP = 400 if sys.version_info < (3, 12) else 1200
"""Levels that cannot be read; before Python 3.12 the header of more could not be written either."""
DAMAGED = {
    "no root": lambda h: {name: h[name] for name in h if name != "root"},
    "no versions and no fields": lambda h: {"format": 1, "root": {"class": "kbpjax.kernels.euclidean.RBF"}},
    "negative format": lambda h: h | {"format": -5},
    "text as format": lambda h: h | {"format": "1"},
    "a number as class": lambda h: h | {"root": {"class": 3, "fields": {}}},
    "a list as float": lambda h: h | {"root": {"float": [1]}},
    "no number": lambda h: h | {"root": {"float": "one"}},
    "a number as tuple": lambda h: h | {"root": {"tuple": 5}},
    "an odd pair": lambda h: h | {"root": {"dict": [["a"]]}},
    "a list as key": lambda h: h | {"root": {"dict": [[{"list": []}, 1]]}},
    "no dtype": lambda h: h | {"root": {"dtype": "nope"}},
    "array of no dtype": lambda h: edit(h, lambda f: {"bandwidth": f["bandwidth"] | {"dtype": "nope"}}),
    "array of another dtype": lambda h: edit(h, lambda f: {"bandwidth": f["bandwidth"] | {"dtype": "complex128"}}),
    "no key": lambda h: edit(h, lambda f: {"bandwidth": f["bandwidth"] | {"kind": "key", "dtype": "x"}}),
    "key of floats": lambda h: edit(h, lambda f: {"bandwidth": f["bandwidth"] | {"kind": "key", "dtype": "fry"}}),
    "array without dtype": lambda h: edit(h, lambda f: {"bandwidth": {"array": "a0", "kind": "jax"}}),
    "deep": lambda h: h | {"root": functools.reduce(lambda root, _: {"list": [root]}, range(DEEP), 1)},
}


def test_damaged_headers_are_refused(tmp_path):
    path, calls = tmp_path / "file.kbp", {}
    for name, change in DAMAGED.items():
        kbp.save(path.with_stem(name), kbp.RBF(1.0))
        change_header(path.with_stem(name), change)
        said = f"path: must be a file written by kbpjax.save; got {name}.kbp"
        calls[name] = (functools.partial(kbp.load, path.with_stem(name)), said)
    for name, root in {"empty": {}, "two": {"list": [], "tuple": []}}.items():
        kbp.save(path.with_stem(name), 1)
        change_header(path.with_stem(name), lambda h, root=root: h | {"root": root})
        calls[name] = (functools.partial(kbp.load, path.with_stem(name)), "path: must have a supported layout")
        io.describe(path.with_stem(name))
    kbp.save(path, Heavy(jnp.ones(())))
    for name, classes in {"none": None, "no list": Heavy, "text": "Heavy", "object": [Heavy(1.0)]}.items():
        load = functools.partial(kbp.load, path, classes=classes)
        calls[f"classes {name}"] = (load, "classes: must be (an iterable|a list)")
    assert not not_refused(calls)


def test_what_cannot_be_saved_is_refused(tmp_path):
    """Each of these was saved once, and could not be read again, or was read as something else."""
    path, itself, numbers = tmp_path / "file.kbp", [1], "value: must be an array of numbers; got dtype"
    itself.append(itself)
    values = {
        "text": (np.array(["a"]), numbers),
        "bytes": (np.array([b"a"]), numbers),
        "records": (np.zeros(2, [("a", float)]), numbers),
        "dates": (np.zeros(2, "M8[s]"), numbers),
        "raw": (np.zeros(2, "V3"), numbers),
        "objects": (np.array([None]), "value: must be rectangular numbers"),
        "masked": ([np.ma.masked_array([1, 999], [0, 1])], r"value\[0\]: must have no masked entries; got 1 masked"),
        "estimator": (BaseEstimator(), "value: must be data: .* Keep estimators with pickle or joblib"),
        "itself": (itself, "value: must not contain itself"),
        "deep": (
            functools.reduce(lambda value, _: [value], range(400), 1),
            "value: must not contain itself or be deep",
        ),
        "byte order": (np.dtype(">f4"), "value: must be a dtype of numbers"),
        "long": (2**20_000, "value: must have at most 10000 bits"),
    }
    calls = {name: (functools.partial(kbp.save, path, value), said) for name, (value, said) in values.items()}
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.zip").write_bytes(b"PK\x05\x06" + 18 * b"\0")
    places = {
        "none": (None, "path: must be a string or a Path; got None"),
        "number": (3, "path: must be a string or a Path; got 3"),
        "empty": ("", "path: must be the path of a file; got ''"),
        "zero": ("a\0b", "path: must be the path of a file"),
        "bytes": (b"a.kbp", "path: must be a string or a Path"),
        "folder": (tmp_path, "path: must be a file; got .*, which is a folder"),
        "nowhere": (tmp_path / "nowhere" / "file.kbp", "path: must be in an existing folder"),
        "device": (os.devnull, "path: must be a file"),
        "another file": (tmp_path / "notes.txt", "path: must be new, or a file written by kbpjax.save"),
        "another archive": (tmp_path / "other.zip", "path: must be new, or a file written by kbpjax.save"),
    }
    calls |= {f"path {name}": (functools.partial(kbp.save, place, 1), said) for name, (place, said) in places.items()}
    calls |= {
        f"load {name}": (functools.partial(kbp.load, place), "path: must be") for name, (place, _) in places.items()
    }
    assert not not_refused(calls)
    assert (tmp_path / "notes.txt").read_text() == "mine" and not path.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """The superuser may write everywhere, so the answer of the system is replaced."""
    folder = tmp_path / "closed"
    folder.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    with pytest.raises(ValueError, match="path: must be in a folder that can be written; got .*closed. Change its"):
        kbp.save(folder / "model.kbp", 1)
    (tmp_path / "link.kbp").symlink_to(folder / "model.kbp")
    with pytest.raises(ValueError, match="path: must be in a folder that can be written"):
        kbp.save(tmp_path / "link.kbp", 1)
    kbp.save(tmp_path / "model.kbp", 1)
    assert list(folder.iterdir()) == []


def test_files_are_replaced_where_they_are(tmp_path):
    """An empty file is replaced, as `tempfile` makes it; a link stays a link; permissions stay."""
    target, link = tmp_path / "real.kbp", tmp_path / "link.kbp"
    target.touch()
    target.chmod(0o600)
    link.symlink_to(target)
    kbp.save(str(link), [1])
    kbp.save(link, [2])
    assert kbp.load(target) == [2] and link.is_symlink() and target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + 18 * b"\0"])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="^path: must be a file written by kbpjax.save"):
        kbp.load(tmp_path / "file")


def test_places_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="^path: must be a file; got"):
        kbp.load(tmp_path)


def test_double_precision_is_not_cut_off(tmp_path):
    kbp.save(tmp_path / "file.kbp", jnp.array(1 / 3))
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"fit the precision of float32; got float64. Call jax"):
        kbp.load(tmp_path / "file.kbp")


def test_models_of_networks_are_data(tmp_path):
    network = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    kernel = kbp.kernels.Transformed(network, kbp.RBF(1.0))
    again = round_trip(tmp_path, kernel, classes=(eqx.nn.Linear,))
    assert same(again, kernel)


def test_what_a_constructor_would_refuse_is_refused_when_loading(tmp_path):
    schedule = ResidualFirst(0.5)
    object.__setattr__(schedule, "share", 7.0)  # as a file that was edited
    kbp.save(tmp_path / "schedule.kbp", schedule)
    with pytest.raises(ValueError, match="^share: must be"):
        kbp.load(tmp_path / "schedule.kbp", classes=(ResidualFirst,))


def test_baselines_of_the_first_release_have_new_names(tmp_path):
    """Each renamed class is found, with its renamed and its new fields, and is saved under its new name."""
    found = io.load(BASELINES)
    graph, points = kbp.chain_graph(3), np.linspace(-2, 2, 5)
    problem = found["m"], graph, None
    assert particle.beliefs(*problem, found["p"], points).weights.shape == (3, 5)
    assert nonparametric.beliefs(*problem, found["mm"], points).weights.shape == (3, 5)
    assert gaussian.beliefs(found["f"], graph, None, found["g"], points).weights.shape == (3, 5)
    np.testing.assert_allclose(gaussian.run(found["t"], graph).mean, found["g"].mean, rtol=1e-3, atol=1e-5)
    assert found["p"].num_iters == len(found["p"].residuals) == 3
    assert not found["mm"].converged and np.isnan(found["mm"].residuals).all()
    assert found["r"].predict(jnp.zeros((1, 1), jnp.float32)).shape == (1, 1)
    assert found["s"] == [nonparametric.GibbsSampler(), nonparametric.ExactSampler(), nonparametric.MultiscaleSampler()]
    io.save(tmp_path / "again.kbp", found)
    again = io.load(tmp_path / "again.kbp")
    assert jax.tree.structure(again) == jax.tree.structure(found)
    header = zipfile.ZipFile(tmp_path / "again.kbp").read(io.HEADER).decode()
    assert not [old for old in io.RENAMED if f'"{old}"' in header]


def test_graphs_and_solutions_of_the_first_release_are_made_anew():
    """Their index tables and fields were others; models, evidence, hyperparameters and schedules have only moved."""
    with pytest.warns(kbp.KbpWarning, match="^path: has a ResidualFirst, which kbpjax no longer has"):
        found = io.load(INFERENCE)
    graph, evidence, points = found["g"], found["e"], np.linspace(-1, 1, 5)
    solution = kbp.run(found["m"], graph, evidence, num_iters=5, damping=0.0)
    np.testing.assert_allclose(solution.messages, found["s"].messages, atol=1e-6)
    np.testing.assert_allclose(found["s"].residual, found["s"].residuals[4])
    belief = kbp.beliefs(found["m"], graph, evidence, found["s"], points)
    np.testing.assert_allclose(belief.weights, found["b"].weights, atol=1e-6)
    again = kbp.run(found["p"], graph, num_iters=5, damping=0.0)
    np.testing.assert_allclose(again.messages, found["ps"].messages, atol=1e-6)
    np.testing.assert_allclose(again.projected, found["ps"].projected, atol=1e-6)
    assert kbp.run_tree(found["m"], found["c"]).messages.shape == (4, solution.messages.shape[1])


def test_discrete_models_and_evidence_of_earlier_versions_have_the_new_fields(tmp_path):
    """Files without them: `infer` keeps the exponents at 1, and scales that were not recorded count as 1."""
    graph, table = kbp.grid_graph(2, 2), np.array([[[3.0, 1.0], [1.0, 2.0]]])
    model = discrete.from_potentials([0, 1], [1.0, 2.0], table)
    evidence = kbp.likelihood(model, graph, lambda x: jnp.ones((4, len(x))))
    evidence = dataclasses.replace(evidence, likelihoods=())
    io.save(tmp_path / "new.kbp", [model, evidence])
    with zipfile.ZipFile(tmp_path / "new.kbp") as new, zipfile.ZipFile(tmp_path / "old.kbp", "w") as old:
        header = json.loads(new.read(io.HEADER))
        of_model, of_evidence = (described["fields"] for described in header["root"]["list"])
        del of_model["has_potentials"], of_evidence["log_scale"]
        of_model["joints"] = of_model["operators"]["fields"]["project"]  # which all models of these versions had
        for name in ("constant", "values", "prior_log_scale"):
            del of_model["operators"]["fields"][name]
        for name in new.namelist():
            old.writestr(name, json.dumps(header) if name == io.HEADER else new.read(name))
    again, given = io.load(tmp_path / "old.kbp")
    assert again.has_potentials and given.log_scale is None and again.operators.constant is None
    belief, expected = (kbp.infer(one, graph, evidence=given, tol=1e-9) for one in (again, model))
    np.testing.assert_allclose(belief.weights, expected.weights, atol=1e-7)
    assert (given * evidence).log_scale.shape == (4,) and (given**2).log_scale is None
    log_z = [kbp.log_partition(one, graph, given, belief.solution) for one in (again, model)]
    np.testing.assert_allclose(log_z[1] - log_z[0], 4 * np.log(3), rtol=1e-9)


def test_renamed_classes_exist():
    assert all(io._class_of(old, {}) for old in io.RENAMED)
