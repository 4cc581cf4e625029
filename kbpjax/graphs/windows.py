"""Windows of pixels and of chains as observations, and the symmetries that they share with their grid.

A window of radius r around a node of a d-dimensional grid holds the (2r + 1)^d values up to r steps away along each
axis, row by row. Rotations and reflections of the grid permute its nodes (`grid_symmetries`) and the entries of its
windows. Entries that are exchanged form an orbit (`window_orbits`).
"""

import itertools
import math

import numpy as np
from jaxtyping import Array, Int, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public

MOST_AXES = 3
"""Largest dimension of a grid: volumes."""


@public
def windows(values: Numbers, shape: tuple[int, ...], radius: int) -> Shaped[Array, "*case node entry"]:
    """Return the window of values around each node of a grid or chain, reflected at the borders.

    Works under `jax.jit` and `jax.vmap`. NaN stays where it is: `pool` and `observe` treat a window with a missing
    entry as missing. Where this would lose too many windows, fill the gaps before, in the same way in the training data
    and later.

    Args:
        values: one number per node [*case, node], NaN where missing; node i * width + j is pixel (i, j), as in
            `grid_graph`.
        shape: number of nodes along each axis: (height, width) of a grid, (n,) of a chain.
        radius: number of steps from the center to the border of a window, >= 0 and less than each side of the grid.

    Returns:
        The windows [*case, node, (2 radius + 1)^d], row by row; the center is in the middle.

    Raises:
        ValueError: values do not match the shape or are infinite, or radius is out of range.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.windows([1.0, 2.0, 3.0, 4.0], (4,), 1).tolist()
        [[2.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [3.0, 4.0, 3.0]]
        >>> kbp.windows(range(12), (3, 4), 1)[5].tolist()  # pixel (1, 1)
        [0, 1, 2, 4, 5, 6, 8, 9, 10]
    """
    size = _size(shape)
    values = _checks.as_array("values", values)
    fix = "Flatten each picture row by row: picture.reshape(-1)."
    ok = values.shape[-1:] == (size,)
    _checks.require(ok, "values", f"must have shape [*case, {size}]", f"shape {values.shape}", fix)
    _checks.require_finite_or_nan("values", values)
    fix = f"Pass an integer from 0 to {min(shape) - 1}."
    ok = 0 <= radius < min(shape)
    _checks.require(ok, "radius", f"must be >= 0 and less than each side of {tuple(shape)}", radius, fix)
    entries = (2 * radius + 1) ** len(shape)
    _checks.require_memory("radius", "the windows", 8 * values.size * entries, "Pass a smaller radius, or fewer cases.")
    nodes = np.pad(np.arange(size).reshape(shape), radius, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(nodes, (2 * radius + 1,) * len(shape))
    return values[..., around.reshape(size, entries)]


@public
def grid_symmetries(shape: tuple[int, ...]) -> Int[np.ndarray, "symmetry node"]:
    """Return the rotations and reflections of a grid or chain, as permutations of its nodes; the first is the identity.

    `values[..., grid_symmetries(shape)[k]]` are the turned values. A model that is learned from all of them, with their
    windows, treats all orientations alike. The entries of a window are permuted by `grid_symmetries((2r + 1, 2r + 1))`.

    Args:
        shape: number of nodes along each axis: (height, width) of a grid, (n,) of a chain.

    Returns:
        Permutations [symmetry, node]: 8 of a square, 4 of another rectangle (those that keep its shape), 2 of a chain.

    Raises:
        ValueError: a side is not an integer >= 1.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.grid_symmetries((4,)).tolist()
        [[0, 1, 2, 3], [3, 2, 1, 0]]
        >>> len(kbp.grid_symmetries((3, 3))), len(kbp.grid_symmetries((2, 3)))
        (8, 4)
    """
    size, axes = _size(shape), range(len(shape))
    most = math.factorial(len(shape)) * 2 ** len(shape)
    _checks.require_memory("shape", "the permutations", 16 * most * size, "Pass a smaller shape.")
    cells = np.arange(size).reshape(shape)
    turned = [cells.transpose(order) for order in itertools.permutations(axes)]
    flips = [flipped for count in range(len(shape) + 1) for flipped in itertools.combinations(axes, count)]
    found = [np.flip(one, flipped).ravel() for one in turned if one.shape == cells.shape for flipped in flips]
    first = np.unique(found, axis=0, return_index=True)[1]  # a side of length 1 is its own reflection
    return np.stack(found)[np.sort(first)]


@public
def window_orbits(radius: int, dim: int = 2) -> Int[np.ndarray, " entry"]:
    """Return the orbit of each entry of a window: its number is the same for entries that symmetries exchange.

    For images, these are offsets with equal sorted absolute values; for chains, offsets forward and backward. As
    `groups` of `kbpjax.kernels.ARD`, orbits give the entries of each a common bandwidth.

    Args:
        radius: number of steps from the center to the border of a window, an integer >= 0.
        dim: dimension of the grid, >= 1: 2 for images, 1 for chains.

    Returns:
        Numbers of the orbits [(2 radius + 1)^dim]; 0 is the center.

    Raises:
        ValueError: an argument is out of range.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.window_orbits(1).reshape(3, 3).tolist()
        [[2, 1, 2], [1, 0, 1], [2, 1, 2]]
        >>> kbp.window_orbits(2, dim=1).tolist()
        [2, 1, 0, 1, 2]
    """
    _checks.require(radius >= 0, "radius", "must be an integer >= 0", radius, "Pass for instance 1.")
    _checks.require_count("dim", dim)
    fix = "Pass 2 for images."
    _checks.require(dim <= MOST_AXES, "dim", f"must be at most {MOST_AXES}", dim, fix)
    side = 2 * radius + 1
    _checks.require_memory("radius", "the offsets", 16 * dim * side**dim, "Pass a smaller radius.")
    offsets = np.abs(np.indices((side,) * dim).reshape(dim, -1) - radius)
    return np.unique(np.sort(offsets, axis=0)[::-1].T, axis=0, return_inverse=True)[1].reshape(-1)


def _size(shape: tuple[int, ...]) -> int:
    """Return the number of nodes of a grid."""
    fix = "Pass (height, width) of a grid or (n,) of a chain."
    ok = 1 <= len(shape) <= MOST_AXES
    _checks.require(ok, "shape", f"must have 1 to {MOST_AXES} sides", tuple(shape), fix)
    for side in shape:
        _checks.require_count("shape", side)
    return math.prod(shape)
