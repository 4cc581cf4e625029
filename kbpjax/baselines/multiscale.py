"""Samples from a product of mixtures of Gaussians by refining boxes of labels in KD-trees, to a known error.

Method of Ihler, Sudderth, Freeman and Willsky (2003), Efficient multiscale sampling from products of Gaussian
mixtures, section 4.2, in arrays of fixed size: many products at once take the same steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._misc import einsum
from kbpjax.baselines.mixtures import Mixture
from kbpjax.baselines.products import NEVER, Factors, draw, pick, prepare, shares_of


class Forest(NamedTuple):
    """A balanced KD-tree of each factor; node n of 1, 2, ... has the children 2n and 2n + 1, the last half are leaves.

    Boxes hold the means of the components below a node, `log_mass` is the logarithm of their weight.
    """

    lower: Float[Array, "factor node dim"]
    upper: Float[Array, "factor node dim"]
    log_mass: Float[Array, "factor node"]


class Children(NamedTuple):
    """What tuples of nodes split into: logarithms of the masses, and of bounds of the cross weight."""

    log_mass: Float[Array, "tuple child"]
    log_lower: Float[Array, "tuple child"]
    log_upper: Float[Array, "tuple child"]

    @property
    def log_bracket(self) -> Float[Array, "tuple child"]:
        """The logarithm of (upper - lower) / 2, `NEVER` where that is 0."""
        width = -jnp.expm1(self.log_lower - self.log_upper)
        logs = jnp.log(0.5 * jnp.where(width > 0, width, 1))
        return jnp.where(width > 0, self.log_upper + logs, NEVER)

    @property
    def log_weight(self) -> Float[Array, "tuple child"]:
        """The logarithm of mass times (upper + lower) / 2."""
        return self.log_mass + self.log_upper + jnp.log1p(0.5 * jnp.expm1(self.log_lower - self.log_upper))


class Cover(NamedTuple):
    """Boxes of labels that cover all labels once, as children of tuples of nodes.

    Attributes:
        nodes: the parents [tuple, factor].
        log_weights: logarithms of the estimated weight of their children [tuple, child], `NEVER` where there is none.
        bound: bound of the total-variation distance of the distribution of labels from the exact one.
    """

    nodes: Int[Array, "tuple factor"]
    log_weights: Float[Array, "tuple child"]
    bound: Float[Array, ""]


def multiscale(
    key: Key[Array, ""],
    mixtures: Mixture,
    num_samples: int,
    *,
    eps: ScalarLike = 1e-3,
    capacity: int = 128,
    present: Bool[Array, " factor"] | None = None,
) -> tuple[Float[Array, "sample dim"], Float[Array, ""]]:
    """Draw independent samples of the product of mixtures, and bound the error of the distribution they are drawn from.

    A tuple of nodes, one of the KD-tree of each factor, stands for all labels below. Its cross weight, the exponential
    in the weights of `kbpjax.baselines.products`, is between `lower` and `upper`, those of the largest and the least
    distances between its boxes. From the roots down, all nodes of a tuple are split at once, until

        (upper - lower) / 2 <= eps Z,    Z the sum of mass times `lower` over all tuples so far:

    then (upper + lower) / 2 is taken for all its labels. Where more than `capacity` tuples remain, those of largest
    mass (upper - lower) are split and the rest taken so, whatever their error. The bound is that error, summed,

        bound = sum mass (upper - lower) / 2 / sum mass (upper + lower) / 2  >=  total-variation distance,

    at most eps if `capacity` was enough. `capacity` alone decides the time, O(capacity 2^factors levels factors^2 dim);
    a smaller eps costs none. `capacity` (components / 2)^factors, components rounded up to a power of two, is exact.

    Args:
        key: random key.
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        num_samples: number >= 1.
        eps: error at which to stop refining, > 0.
        capacity: tuples of nodes to split at each level, >= 1.
        present: factors to multiply, one at least. None: all.

    Returns:
        Samples [sample, dim], and the bound, between 0 and 1.

    Raises:
        ValueError: shapes that do not fit, or num_samples, eps or capacity out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, multiscale
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> samples, bound = jax.jit(multiscale.multiscale, static_argnums=2)(jax.random.key(0), two, 1000)
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, 0.0)
    """
    _checks.require_count("num_samples", num_samples)
    _checks.require_count("capacity", capacity)
    _checks.require_number("eps", eps, above=0)
    factors = prepare(mixtures, present)
    forest = plant(factors)
    found = cover(forest, factors.precisions, jnp.asarray(eps, factors.means.dtype), capacity)
    key_labels, key_draw = jax.random.split(key)
    return draw(key_draw, factors, _leaves(key_labels, forest, found, num_samples)), found.bound


def plant(factors: Factors) -> Forest:
    """Build the KD-trees: halve the components of each node along the coordinate in which they spread most."""
    number, components, dim = factors.means.shape
    levels = max(1, (components - 1).bit_length())
    missing = 2**levels - components
    means = jnp.concatenate([factors.means, jnp.repeat(factors.means[:, -1:], missing, axis=1)], axis=1)
    log_weights = jnp.pad(factors.log_weights, ((0, 0), (0, missing)), constant_values=NEVER)
    for level in range(levels if dim > 1 else 1):  # in one coordinate the first sort orders all levels
        blocks = means.reshape(number * 2**level, -1, dim)
        widest = jnp.argmax(jnp.ptp(blocks, axis=1), axis=1)
        order = jnp.argsort(jnp.take_along_axis(blocks, widest[:, None, None], axis=2), axis=1)
        means = jnp.take_along_axis(blocks, order, axis=1).reshape(means.shape)
        log_weights = jnp.take_along_axis(log_weights.reshape(order.shape), order, axis=1).reshape(number, -1)
    log_weights = jnp.where(log_weights > NEVER, jax.nn.log_softmax(log_weights, axis=1), NEVER)

    def heap(values: Array, join: Callable[[Array], Array]) -> Array:
        levels_up = [values]
        while levels_up[-1].shape[1] > 1:
            pairs = levels_up[-1].reshape(number, -1, 2, *values.shape[2:])
            levels_up.append(join(pairs))
        return jnp.concatenate([levels_up[-1], *levels_up[::-1]], axis=1)  # there is no node 0

    lower = heap(means, lambda pairs: jnp.min(pairs, axis=2))
    upper = heap(means, lambda pairs: jnp.max(pairs, axis=2))
    return Forest(lower, upper, heap(log_weights, lambda pairs: jnp.logaddexp(pairs[:, :, 0], pairs[:, :, 1])))


def cover(forest: Forest, precisions: Float[Array, "factor dim"], eps: Float[Array, ""], capacity: int) -> Cover:
    """Split tuples of nodes level by level, `capacity` at most at each, from the first level that has many."""
    number, nodes = forest.log_mass.shape
    levels = nodes.bit_length() - 2
    split = _splitter(forest, precisions)
    capacity = min(capacity, 2 ** (number * (levels - 1)))
    start = (capacity.bit_length() - 1) // number
    numbers = np.arange(2 ** (start * number))[:, None]
    tuples = 2**start + (numbers >> (start * np.arange(number))[None]) % 2**start
    opened = jnp.asarray(np.pad(tuples, ((0, capacity - len(tuples)), (0, 0))), np.int32)

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        opened, log_closed = carry
        children = split(opened)
        log_lower = children.log_mass + children.log_lower
        log_least = jnp.logaddexp(log_closed, jax.nn.logsumexp(log_lower))
        log_error = children.log_mass + children.log_bracket
        undecided = jnp.where(children.log_bracket > jnp.log(eps) + log_least, log_error, NEVER)
        scores, kept = jax.lax.top_k(undecided.reshape(-1), capacity)
        kept = jnp.where(scores > NEVER, kept, undecided.size)
        is_open = jnp.zeros(undecided.size, bool).at[kept].set(True, mode="drop").reshape(undecided.shape)
        closed = jax.tree.map(lambda logs: jnp.where(is_open, NEVER, logs), (children.log_weight, log_error, log_lower))
        bits = jnp.asarray(_bits(number), np.int32)
        child = 2 * opened[kept // 2**number] + bits[kept % 2**number]
        following = jnp.where((scores > NEVER)[:, None], child, 0)
        log_closed = jnp.logaddexp(log_closed, jax.nn.logsumexp(closed[2]))
        return (following, log_closed), (opened, closed[0], jax.nn.logsumexp(closed[1]))

    carry = (opened, jnp.full((), NEVER, precisions.dtype))
    (last, _), (parents, log_weights, log_errors) = jax.lax.scan(step, carry, None, length=levels - 1 - start)
    parents = jnp.concatenate([parents.reshape(-1, number), last])
    log_weights = jnp.concatenate([log_weights.reshape(-1, 2**number), split(last).log_weight])
    log_total = jax.nn.logsumexp(log_weights)
    return Cover(parents, log_weights, jnp.minimum(jnp.sum(jnp.exp(log_errors - log_total)), 1))


def _splitter(forest: Forest, precisions: Float[Array, "factor dim"]) -> Callable[[Array], Children]:
    """Return the function that splits tuples of nodes [tuple, factor]; node 0 is none and has no mass."""
    number, nodes, dim = forest.lower.shape
    columns = [forest.lower, forest.upper, forest.log_mass[:, :, None]]
    table = jnp.concatenate(columns, axis=2).reshape(number, nodes // 2, 2, 2 * dim + 1)
    first, second = np.triu_indices(number, 1)
    sharpness = precisions[first] * shares_of(precisions)[second]
    of_factor = jnp.asarray(_bits(number).T[:, None] == np.arange(2)[None, :, None], precisions.dtype)
    of_pair = of_factor[first][:, :, None] * of_factor[second][:, None]

    def split(opened: Array) -> Children:
        rows = jax.vmap(lambda entries, nodes: entries[nodes], (0, 1), 1)(table, opened)
        lower, upper, log_mass = rows[..., :dim], rows[..., dim:-1], rows[..., -1]
        one, other = (lambda box: box[:, first, :, None]), (lambda box: box[:, second, None])
        over, under = one(lower) - other(upper), other(lower) - one(upper)
        near, far = jnp.maximum(jnp.maximum(over, under), 0), jnp.maximum(-over, -under)
        log_upper, log_lower = (-0.5 * einsum("tpabd,pd->tpab", gap**2, sharpness) for gap in (near, far))
        mass = einsum("tfa,fac->tc", log_mass, of_factor)
        return Children(
            jnp.where(opened[:, :1] > 0, mass, NEVER),
            einsum("tpab,pabc->tc", log_lower, of_pair),
            einsum("tpab,pabc->tc", log_upper, of_pair),
        )

    return split


def _bits(number: int) -> np.ndarray:
    """Return which child of each node is in each child of a tuple [child, factor]."""
    return (np.arange(2**number)[:, None] >> np.arange(number)[None]) % 2


def _leaves(key: Key[Array, ""], forest: Forest, found: Cover, num_samples: int) -> Float[Array, "sample factor dim"]:
    """Draw means: a tuple by its estimated weight, and below each of its nodes a leaf by its own."""
    number, nodes, _ = forest.lower.shape
    dtype = forest.lower.dtype
    key_tuple, key_child, key_down = jax.random.split(key, 3)
    sums = jax.nn.logsumexp(found.log_weights, axis=1)
    parents = pick(jax.random.uniform(key_tuple, (num_samples,), dtype), sums[None])
    children = pick(jax.random.uniform(key_child, (num_samples,), dtype), found.log_weights[parents])
    drawn = 2 * found.nodes[parents] + jnp.asarray(_bits(number), np.int32)[children]
    log_odds = forest.log_mass[:, 1::2] - forest.log_mass[:, ::2]
    of_factor = jnp.arange(number)[None]

    def down(drawn: Array, uniforms: Array) -> tuple[Array, None]:
        right = uniforms < jax.nn.sigmoid(log_odds[of_factor, drawn])
        return jnp.where(drawn < nodes // 2, 2 * drawn + right.astype(jnp.int32), drawn), None

    uniforms = jax.random.uniform(key_down, (nodes.bit_length() - 2, num_samples, number), dtype)
    drawn, _ = jax.lax.scan(down, drawn, uniforms)
    return forest.lower[of_factor, drawn]
