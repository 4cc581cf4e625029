"""Windows as observations: against slices of padded arrays, their symmetries, and models that turn with a picture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.kernels import ARD
from kbpjax.tuning.parameters import FreeNumbers
from tests.refusals import not_refused

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape, radius", [((4, 5), 0), ((4, 5), 2), ((6,), 3), ((3, 3, 4), 1)])
def test_windows_are_slices_of_the_padded_array(shape, radius):
    values = RNG.normal(size=(2, *shape))
    got = kbp.windows(values.reshape(2, -1), shape, radius)
    for case in range(2):
        padded = np.pad(values[case], radius, mode="reflect")
        slices = (padded[tuple(slice(i, i + 2 * radius + 1) for i in at)] for at in np.ndindex(shape))
        np.testing.assert_array_equal(got[case], [one.ravel() for one in slices])


def test_windows_work_in_compiled_and_mapped_functions():
    values = RNG.normal(size=(3, 12))
    of = lambda x: kbp.windows(x, (3, 4), 1)
    np.testing.assert_array_equal(jax.jit(jax.vmap(of))(values), of(values))
    assert of(np.arange(12)).dtype == jnp.arange(12).dtype


def test_windows_with_a_missing_value_are_missing():
    y = np.arange(6.0)
    y[2] = np.nan
    seen = kbp.windows(y, (6,), 1)
    data = kbp.pool(kbp.chain_graph(6), np.arange(6.0)[None], seen[None])
    assert data.observations[0][0].tolist() == [0, 4, 5]
    with pytest.warns(
        kbp.MissingWarning, match="observations: 3 of 6 vectors"
    ):  # too few for evidence of their entries
        model = kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0))
    with pytest.warns(kbp.EvidenceWarning, match="y: 3 of 6 observations of node type 0 miss entries"):
        evidence = kbp.observe(model, kbp.chain_graph(6), seen)
    assert evidence.observed.tolist() == [[True, False, False, False, True, True]]


@pytest.mark.parametrize(
    "shape, count", [((4,), 2), ((3, 3), 8), ((2, 3), 4), ((3, 1), 2), ((1, 1), 1), ((2, 2, 2), 48)]
)
def test_symmetries_keep_the_edges_of_the_grid(shape, count):
    found = kbp.grid_symmetries(shape)
    assert len({tuple(one) for one in found.tolist()}) == len(found) == count
    np.testing.assert_array_equal(found[0], np.arange(np.prod(shape)))
    places = np.array(list(np.ndindex(shape)))
    neighbors = np.abs(places[:, None] - places[None]).sum(axis=-1) == 1
    for one in found:
        np.testing.assert_array_equal(neighbors[np.ix_(one, one)], neighbors)


def test_symmetries_are_the_turned_pictures():
    picture = RNG.normal(size=(3, 3))
    turned = [np.rot90(one, k) for one in (picture, picture.T) for k in range(4)]
    found = picture.ravel()[kbp.grid_symmetries((3, 3))]
    assert sorted(map(tuple, found)) == sorted(tuple(one.ravel()) for one in turned)


@pytest.mark.parametrize("radius, dim", [(0, 1), (3, 1), (2, 2), (1, 3)])
def test_orbits_are_the_entries_that_symmetries_exchange(radius, dim):
    orbits, found = kbp.window_orbits(radius, dim), kbp.grid_symmetries((2 * radius + 1,) * dim)
    for entry, number in enumerate(orbits):
        assert set(found[:, entry].tolist()) == set(np.flatnonzero(orbits == number).tolist())
    assert orbits[len(orbits) // 2] == 0


def test_tied_bandwidths_are_those_of_each_entry_and_one_number_of_each_orbit_is_learned():
    orbits, bandwidths = kbp.window_orbits(1), np.array([0.5, 1.0, 2.0])
    tied, x = ARD(bandwidths, orbits), RNG.normal(size=(5, 9))
    np.testing.assert_allclose(kbp.gram(tied, x, x), kbp.gram(ARD(bandwidths[orbits]), x, x), rtol=1e-14)
    for turn in kbp.grid_symmetries((3, 3)):
        np.testing.assert_allclose(kbp.gram(tied, x[:, turn], x[:, turn]), kbp.gram(tied, x, x), rtol=1e-12)
    learned = FreeNumbers.of(kbp.Hyperparameters(tied), lambda s: ())
    assert learned.values(learned.free())[learned.names.index("kernel.bandwidths")].shape == (3,)


def answer(train, truth, picture):
    """Return the means of a picture, of a model that is learned from noisy pictures of one type of edges."""
    side = int(np.sqrt(picture.size))
    graph, shape = kbp.grid_graph(side, side), (side, side)
    data = kbp.pool(graph, truth, kbp.windows(train, shape, 1))
    kernels = kbp.RBF(1.0), ARD([1.0, 2.0, 3.0], kbp.window_orbits(1))
    given = kbp.Hyperparameters(*kernels, ridge=1e-2, rule=kbp.FullRank(), num_iters=4)
    points = np.linspace(-3, 3, 13)
    return np.asarray(kbp.mean(given.answer(given.fit(data), graph, kbp.windows(picture, shape, 1), points)))


@pytest.mark.slow
def test_a_model_of_all_orientations_turns_with_the_picture():
    turns = kbp.grid_symmetries((4, 4))
    truth = np.cumsum(RNG.normal(size=(1, 4, 4)), axis=2).reshape(1, 16) / 2  # rows and columns differ
    noisy, picture = truth + 0.5 * RNG.normal(size=truth.shape), RNG.normal(size=16)
    quarter = np.rot90(np.arange(16).reshape(4, 4)).ravel()
    both = [truth[:, turns].reshape(-1, 16), noisy[:, turns].reshape(-1, 16)]
    straight, turned = (answer(both[1], both[0], one) for one in (picture, picture[quarter]))
    np.testing.assert_allclose(turned, straight[quarter], atol=1e-4)
    straight, turned = (answer(noisy, truth, one) for one in (picture, picture[quarter]))
    assert np.abs(turned - straight[quarter]).max() > 0.01  # of one orientation it does not


def test_wrong_shapes_and_radii_are_refused():
    calls = {
        "values": (lambda: kbp.windows(np.zeros((3, 4)), (3, 4), 1), r"values: must have shape \[\*case, 12\]; got"),
        "number": (lambda: kbp.windows(1.0, (1,), 0), r"values: must have shape \[\*case, 1\]; got shape \(\)"),
        "infinite": (
            lambda: kbp.windows([1.0, np.inf], (2,), 1),
            "values: must be finite, or NaN where missing; got 1",
        ),
        "radius": (lambda: kbp.windows(np.zeros(12), (3, 4), 3), "radius: must be >= 0 and less than each side of"),
        "negative": (lambda: kbp.window_orbits(-1), "radius: must be an integer >= 0; got -1"),
        "huge": (lambda: kbp.window_orbits(10**6), "radius: the offsets must fit in half of"),
        "dim": (lambda: kbp.window_orbits(1, 4), "dim: must be at most 3; got 4"),
        "side": (lambda: kbp.grid_symmetries((3, 0)), "shape: must be an integer >= 1; got 0"),
        "sides": (lambda: kbp.grid_symmetries(()), r"shape: must have 1 to 3 sides; got \(\)"),
        "size": (lambda: kbp.grid_symmetries((10**6, 10**6)), "shape: the permutations must fit in half of"),
        "groups": (lambda: ARD([1.0, 2.0], [0, 2]), "groups: must be a vector of numbers of bandwidths"),
        "floats": (lambda: ARD([1.0, 2.0], [0.0, 1.0]), "groups: must be a vector of numbers of bandwidths"),
        "one bandwidth": (lambda: ARD(1.0, [0, 0]), "groups: must be a vector of numbers of bandwidths"),
        "points": (
            lambda: ARD([1.0], [0, 0])(jnp.zeros(3), jnp.zeros(3)),
            r"points: must have shape \(2,\), as groups",
        ),
    }
    assert not not_refused(calls)
