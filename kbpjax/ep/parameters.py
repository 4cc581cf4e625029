"""Kernel and noise parameters of an operator, in units of the data, and candidate sets for their selection."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.ep.messages import Self, as_parameters, require_positive


class Parameters(Checked):
    """Kernel and noise parameters: single, or one per output or candidate [*batch].

    Args:
        width_scale: number > 0; squared width of the Gaussian kernel, in medians of the squared distances of
            embeddings.
        bandwidth_scale: number > 0; squared bandwidths of the embedding, in mean variances of the messages.
        noise: variance of the regression's noise > 0.

    Raises:
        ValueError: any not finite and > 0; shapes that do not broadcast.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax import ep
        >>> chosen = ep.Parameters(width_scale=1.0, noise=jnp.array([0.25, 0.5]))  # for ep.learn(parameters=chosen)
        >>> chosen.width_scale.tolist(), chosen.noise.tolist()
        ([1.0, 1.0], [0.25, 0.5])
    """

    width_scale: Float[Array, "*batch"]
    bandwidth_scale: Float[Array, "*batch"]
    noise: Float[Array, "*batch"]

    def __init__(self, width_scale: Numbers = 0.5, bandwidth_scale: Numbers = 1.0, noise: Numbers = 1e-4):
        given = as_parameters("width_scale, bandwidth_scale, noise", width_scale, bandwidth_scale, noise)
        for name, values in zip(("width_scale", "bandwidth_scale", "noise"), given, strict=True):
            _checks.require_finite(name, values, "Pass finite numbers.")
            require_positive(name, values, fix="Pass positive numbers, for instance the defaults.")
        self.width_scale, self.bandwidth_scale, self.noise = given

    def of_outputs(self, num_outputs: int, dtype: jnp.dtype) -> Self:
        """Return one set per output [out]; raise ValueError if the number of sets is neither 1 nor that of outputs."""
        shape = self.noise.shape
        fix = "Pass one for all outputs, or one for each."
        fits = shape in ((), (num_outputs,))
        _checks.require(fits, "parameters", f"must be single or {num_outputs} of them", f"shape {shape}", fix)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_outputs,)).astype(dtype), self)

    __repr__ = show_fields


@public
def grid_candidates(
    width_scales: Numbers = (0.1, 0.2, 1 / 3, 0.5, 1.0, 2.0, 5.0, 10.0),
    noises: Numbers = (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
) -> Parameters:
    """Return all pairs of a width and a noise [candidate]; the defaults are the grid of the authors of KJIT.

    Examples:
        >>> from kbpjax import ep
        >>> grid = ep.grid_candidates(width_scales=(0.5, 1.0), noises=(0.25, 0.125))
        >>> grid.width_scale.tolist(), grid.noise.tolist()
        ([0.5, 0.5, 1.0, 1.0], [0.25, 0.125, 0.25, 0.125])
        >>> ep.grid_candidates().noise.shape
        (40,)
    """
    given = (("width_scales", width_scales), ("noises", noises))
    width, noise = (_checks.as_array(*one).astype(jnp.result_type(float)) for one in given)
    flat, got = width.ndim == noise.ndim == 1, f"shapes {width.shape} and {noise.shape}"
    _checks.require(flat, "width_scales, noises", "must be lists of numbers", got, "Flatten them.")
    pairs = jnp.meshgrid(width, noise, indexing="ij")
    return Parameters(pairs[0].ravel(), jnp.ones(pairs[0].size, pairs[0].dtype), pairs[1].ravel())


@public
def random_candidates(
    key: Key[Array, ""],
    num_candidates: int,
    *,
    width_scales: tuple[float, float] = (0.05, 20.0),
    bandwidth_scales: tuple[float, float] = (0.1, 10.0),
    noises: tuple[float, float] = (1e-7, 1e-1),
) -> Parameters:
    """Return candidates [candidate] drawn log-uniformly from the ranges; raise ValueError for empty ranges.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> drawn = ep.random_candidates(jax.random.key(0), 50, noises=(1e-4, 1e-2))
        >>> drawn.noise.shape, bool(drawn.noise.min() > 0.99e-4), bool(drawn.noise.max() < 1.01e-2)
        ((50,), True, True)
    """
    _checks.require_count("num_candidates", num_candidates)
    ranges = {"width_scales": width_scales, "bandwidth_scales": bandwidth_scales, "noises": noises}
    drawn = []
    for key_of_range, (name, (least, most)) in zip(jax.random.split(key, 3), ranges.items(), strict=True):
        _checks.require(0 < least <= most, name, "must be 0 < least <= most", f"{least}, {most}", "Swap the two.")
        logs = jax.random.uniform(key_of_range, (num_candidates,), minval=jnp.log(least), maxval=jnp.log(most))
        drawn.append(jnp.exp(logs))
    return Parameters(*drawn)
