"""Products of mixtures of Gaussians: the exact product, and two samplers of it, Gibbs and multiscale.

The product of d mixtures is a mixture over all choices of one component of each, the labels (i_1, ..., i_d), with

    weight = prod_j w_j(i_j) exp(-1/2 sum_{j<k} c_jk (mu_j(i_j) - mu_k(i_k))^2),    c_jk = lambda_j lambda_k / lambda,
    mean = sum_j lambda_j mu_j(i_j) / lambda,    lambda_j = bandwidth_j^-2,    lambda = sum_j lambda_j,

where squares are summed over coordinates and lambda^(-1/2) is the bandwidth of all components. The product has
component^d components. `exact_product` computes them all; `sample_gibbs` and `sample_multiscale` draw samples without
doing so. All three take one `GaussianMixture` whose leaves have a leading axis of factors; `jax.vmap` takes the
products at all nodes of a graph at once.

`sample_multiscale` is the method of Ihler, Sudderth, Freeman and Willsky (2003), Efficient multiscale sampling from
products of Gaussian mixtures, section 4.2, in arrays of fixed size, so that many products take the same steps.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._misc import einsum, matmul
from kbpjax._public import public
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture

__all__ = ["ProductFactors", "exact_product", "sample_gibbs", "sample_multiscale"]

MAX_LABELS = 2**22
"""Largest number of components of an exact product."""

NEVER = -1e30
"""The logarithm of a weight of 0: finite, so that 0 * NEVER is 0, and below that of every other weight in f32."""


class ProductFactors(NamedTuple):
    """Mixtures prepared for a product: absent factors have precision 0, weights of 0 are `NEVER`, no value is NaN.

    Attributes:
        log_weights: logarithms of the weights [factor, component].
        means: means of the components minus `center` [factor, component, dim].
        precisions: 1 / bandwidth^2 [factor, dim].
        center: the mean of all means [dim].

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> factors = products.prepare(two, None)
        >>> factors.center.tolist(), factors.means.ravel().tolist()
        ([1.0], [-1.0, 1.0])
    """

    log_weights: Float[Array, "factor component"]
    means: Float[Array, "factor component dim"]
    precisions: Float[Array, "factor dim"]
    center: Float[Array, " dim"]


@public
def exact_product(
    mixtures: GaussianMixture, present: Bool[Array, " factor"] | None = None
) -> tuple[GaussianMixture, Float[Array, ""]]:
    """Return the normalized product of mixtures, and the logarithm of its integral before normalization.

    Components are in the order of the labels, the last factor's label changing fastest.

    Args:
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        present: which factors to multiply, at least one [factor]; of the others only the first label has weight. None:
            all.

    Raises:
        ValueError: shapes that do not fit, or more than 2^22 combinations of components.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> product, log_normalizer = jax.jit(products.exact_product)(two)
        >>> [round(float(x), 3) for x in (product.mean[0], product.variance[0], log_normalizer)]
        [1.0, 0.5, -2.266]
    """
    factors = prepare(mixtures, present)
    log_weights, means, precisions, center = factors
    number, components = log_weights.shape
    fix = "Sample the product with sample_gibbs or sample_multiscale, or keep fewer components."
    got = f"{components}^{number}"
    rule = f"must have at most {MAX_LABELS} combinations of components"
    _checks.require(components**number <= MAX_LABELS, "mixtures", rule, got, fix)
    dim = means.shape[2]
    nothing = (jnp.zeros(1, means.dtype), jnp.zeros((1, dim), means.dtype), jnp.zeros(dim, means.dtype))
    log_labels, label_means, total = reduce(_times, zip(log_weights, means, precisions), nothing)
    scales = jnp.where(precisions > 0, jnp.log(jnp.where(precisions > 0, precisions, 1)) - jnp.log(2 * jnp.pi), 0)
    scale = 0.5 * (jnp.sum(scales) - jnp.sum(jnp.log(_or_one(total)) - jnp.log(2 * jnp.pi)))
    product = GaussianMixture.trusted(jax.nn.softmax(log_labels), label_means + center[None], _or_one(total) ** -0.5)
    return product, jax.nn.logsumexp(log_labels) + scale


@public
def sample_gibbs(
    key: Key[Array, ""],
    mixtures: GaussianMixture,
    num_samples: int,
    *,
    num_sweeps: int = 5,
    present: Bool[Array, " factor"] | None = None,
) -> Float[Array, "sample dim"]:
    """Draw samples of the product of mixtures, each from a separate Markov chain over the labels.

    A chain starts at labels drawn from the weights of their own factors. A sweep draws the label of each factor in
    turn given those of the others (Sudderth, Ihler, Freeman and Willsky, 2003, section 3),

        p(i_j | others) ~ w_j(i_j) N(mu_j(i_j); m, 1 / lambda_j + 1 / lambda_others),

    where m is the mean of the product of the others' Gaussians. A sample is drawn from the Gaussian of the last labels.
    Chains rarely move between modes that are many bandwidths apart: after too few sweeps the modes keep the shares that
    they had at the start. Time is O(samples sweeps factors components dim).

    Args:
        key: random key.
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        num_samples: number of samples, and of chains, >= 1.
        num_sweeps: number of times that each label is drawn, >= 1.
        present: which factors to multiply, at least one [factor]. None: all.

    Returns:
        Samples [sample, dim].

    Raises:
        ValueError: shapes that do not fit, or a number of samples or sweeps below 1.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> jax.jit(products.sample_gibbs, static_argnums=2)(jax.random.key(0), two, 1000).mean().round(1).item()
        1.0
    """
    _checks.require_count("num_samples", num_samples)
    _checks.require_count("num_sweeps", num_sweeps)
    factors = prepare(mixtures, present)
    number = len(factors.means)
    steps = num_sweeps * number
    key_start, key_steps, key_draw = jax.random.split(key, 3)
    others = factors.precisions[None] * (1 - jnp.eye(number, dtype=factors.means.dtype))[:, :, None]
    others_total = jnp.sum(others, axis=1)
    shares = others / _or_one(others_total)[:, None]
    concentration = shares_of(factors.precisions) * others_total

    def step(chosen: Array, turn: tuple[Array, Array]) -> tuple[Array, None]:
        factor, uniforms = turn
        centers = einsum("sfd,fd->sd", chosen, shares[factor])
        distances = (factors.means[factor][None] - centers[:, None]) ** 2
        logits = factors.log_weights[factor][None] - 0.5 * einsum("scd,d->sc", distances, concentration[factor])
        return chosen.at[:, factor].set(factors.means[factor][pick(uniforms, logits)]), None

    first = pick(
        jax.random.uniform(key_start, (number, num_samples), factors.means.dtype), factors.log_weights[:, None]
    )
    start = jnp.swapaxes(jax.vmap(lambda means, labels: means[labels])(factors.means, first), 0, 1)
    uniforms = jax.random.uniform(key_steps, (steps, num_samples), factors.means.dtype)
    chosen, _ = jax.lax.scan(step, start, (jnp.arange(steps) % number, uniforms))
    return draw(key_draw, factors, chosen)


class KDTrees(NamedTuple):
    """A balanced KD-tree of each factor; node n of 1, 2, ... has the children 2n and 2n + 1, the last half are leaves.

    Attributes:
        lower, upper: corners of the box that contains the means of the components below a node.
        log_mass: logarithm of the sum of their weights.
    """

    lower: Float[Array, "factor node dim"]
    upper: Float[Array, "factor node dim"]
    log_mass: Float[Array, "factor node"]


class Children(NamedTuple):
    """The children of tuples of nodes: logarithms of their masses, and bounds of their cross weights."""

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


class LabelPartition(NamedTuple):
    """A partition of all labels into boxes, which are children of tuples of nodes.

    Attributes:
        nodes: the parents [tuple, factor].
        log_weights: logarithms of the estimated weights of their children [tuple, child]; `NEVER` where absent.
        bound: bound of the total-variation distance of the distribution of labels from the exact one.
    """

    nodes: Int[Array, "tuple factor"]
    log_weights: Float[Array, "tuple child"]
    bound: Float[Array, ""]


@public
def sample_multiscale(
    key: Key[Array, ""],
    mixtures: GaussianMixture,
    num_samples: int,
    *,
    eps: ScalarLike = 1e-3,
    capacity: int = 128,
    present: Bool[Array, " factor"] | None = None,
) -> tuple[Float[Array, "sample dim"], Float[Array, ""]]:
    """Draw independent samples of the product of mixtures, and bound the error of their distribution.

    A tuple of nodes, one of the KD-tree of each factor, represents all labels below it. Its cross weight, the
    exponential in the weights of the product, is between `lower` and `upper`, those of the largest and the smallest
    distances between its boxes. From the roots down, all nodes of a tuple are split at once, until

        (upper - lower) / 2 <= eps Z,    Z the sum of mass times `lower` over all tuples so far:

    then (upper + lower) / 2 is the cross weight of all its labels. Where more than `capacity` tuples remain, those of
    largest mass (upper - lower) are split, and the rest are not, whatever their error. The bound is the sum of errors,

        bound = sum mass (upper - lower) / 2 / sum mass (upper + lower) / 2  >=  total-variation distance,

    which is at most eps if `capacity` was large enough. Time is O(capacity 2^factors levels factors^2 dim) and does not
    depend on eps. A `capacity` of (components / 2)^factors, components rounded up to a power of two, is exact.

    Args:
        key: random key.
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        num_samples: number of samples, >= 1.
        eps: error at which to stop refining, > 0.
        capacity: tuples of nodes to split at each level, >= 1.
        present: which factors to multiply, at least one [factor]. None: all.

    Returns:
        Samples [sample, dim], and the bound, between 0 and 1.

    Raises:
        ValueError: shapes that do not fit, or num_samples, eps or capacity out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> samples, bound = jax.jit(products.sample_multiscale, static_argnums=2)(jax.random.key(0), two, 1000)
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, 0.0)
    """
    _checks.require_count("num_samples", num_samples)
    _checks.require_count("capacity", capacity)
    _checks.require_number("eps", eps, above=0)
    factors = prepare(mixtures, present)
    trees = build_trees(factors)
    partition = partition_labels(trees, factors.precisions, jnp.asarray(eps, factors.means.dtype), capacity)
    key_labels, key_draw = jax.random.split(key)
    return draw(key_draw, factors, _leaves(key_labels, trees, partition, num_samples)), partition.bound


def prepare(mixtures: GaussianMixture, present: Bool[Array, " factor"] | None) -> ProductFactors:
    """Return the factors of a product, after checking shapes; absent factors and weights of 0 are masked."""
    weights, means, bandwidth = mixtures.weights, mixtures.means, mixtures.bandwidth
    fix = "Stack the leaves of the mixtures along a leading axis; take products at many nodes with jax.vmap."
    got = f"shapes {weights.shape}, {means.shape}, {bandwidth.shape}"
    ok = weights.ndim == 2 and means.ndim == 3 and means.shape[:2] == weights.shape and 0 not in means.shape
    rule = "must be weights [factor, component], means [factor, component, dim] and bandwidth [factor, dim]"
    _checks.require(ok and bandwidth.shape == means.shape[::2], "mixtures", rule, got, fix)
    number = len(weights)
    here = jnp.ones(number, bool) if present is None else present
    _checks.require(
        here.shape == (number,), "present", f"must be [factor], {number} long", f"{here.shape}", "Mask all."
    )

    weights = jnp.where(here[:, None], weights, jnp.zeros_like(weights).at[:, 0].set(1))
    # Means of weight 0 are put at that of largest weight: they widen no box and are never infinite or NaN.
    heaviest = jnp.take_along_axis(means, jnp.argmax(weights, axis=1)[:, None, None], axis=1)
    means = jnp.where((weights > 0)[:, :, None], means, heaviest)
    precisions = jnp.where(here[:, None], jnp.where(here[:, None], bandwidth, 1) ** -2, 0)
    count = jnp.maximum(jnp.sum(here), 1).astype(means.dtype)
    center = jnp.sum(jnp.where(here[:, None], jnp.mean(means, axis=1), 0), axis=0) / count
    log_weights = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), NEVER)
    return ProductFactors(
        log_weights, jnp.where(here[:, None, None], means - center[None, None], 0), precisions, center
    )


def shares_of(precisions: Float[Array, "factor dim"]) -> Float[Array, "factor dim"]:
    """Return each factor's share of the precision of the product."""
    return precisions / _or_one(jnp.sum(precisions, axis=0))[None]


def pick(uniforms: Float[Array, "*batch"], logits: Float[Array, "*#batch choice"]) -> Int[Array, "*batch"]:
    """Draw choices by inverting the distribution function; a logit of `NEVER` is never chosen."""
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    # Sums of different length round differently: one may fall where a choice of weight 0 is added.
    sums = jnp.where(weights > 0, _running_sums(weights), 0)
    below = uniforms[..., None] * jnp.max(sums, axis=-1, keepdims=True)
    last = logits.shape[-1] - 1
    choices = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.min(jnp.where(sums > below, choices, last), axis=-1)


def _running_sums(weights: Float[Array, "*batch choice"]) -> Float[Array, "*batch choice"]:
    """Return cumulative sums; of short rows by a matrix product, which is faster than a scan."""
    length = weights.shape[-1]
    if length > 64:
        return jnp.cumsum(weights, axis=-1)
    return matmul(weights, jnp.triu(jnp.ones((length, length), weights.dtype)))


def draw(
    key: Key[Array, ""], factors: ProductFactors, chosen: Float[Array, "sample factor dim"]
) -> Float[Array, "sample dim"]:
    """Draw one sample from the product of the chosen Gaussians of each row."""
    noise = jax.random.normal(key, (len(chosen), chosen.shape[2]), chosen.dtype)
    bandwidth = _or_one(jnp.sum(factors.precisions, axis=0)) ** -0.5
    means = einsum("sfd,fd->sd", chosen, shares_of(factors.precisions))
    return means + factors.center[None] + bandwidth[None] * noise


def build_trees(factors: ProductFactors) -> KDTrees:
    """Return KD-trees that halve the components of each node along the coordinate of largest range."""
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
    return KDTrees(lower, upper, heap(log_weights, lambda pairs: jnp.logaddexp(pairs[:, :, 0], pairs[:, :, 1])))


def partition_labels(
    trees: KDTrees, precisions: Float[Array, "factor dim"], eps: Float[Array, ""], capacity: int
) -> LabelPartition:
    """Split tuples of nodes level by level, at most `capacity` on each level."""
    number, nodes = trees.log_mass.shape
    levels = nodes.bit_length() - 2
    split = _splitter(trees, precisions)
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
    return LabelPartition(parents, log_weights, jnp.minimum(jnp.sum(jnp.exp(log_errors - log_total)), 1))


def _splitter(trees: KDTrees, precisions: Float[Array, "factor dim"]) -> Callable[[Array], Children]:
    """Return the function that splits tuples of nodes [tuple, factor]; node 0 is padding and has no mass."""
    number, nodes, dim = trees.lower.shape
    columns = [trees.lower, trees.upper, trees.log_mass[:, :, None]]
    table = jnp.concatenate(columns, axis=2).reshape(number, nodes // 2, 2, 2 * dim + 1)
    first, second = np.triu_indices(number, 1)
    concentration = precisions[first] * shares_of(precisions)[second]
    of_factor = jnp.asarray(_bits(number).T[:, None] == np.arange(2)[None, :, None], precisions.dtype)
    of_pair = of_factor[first][:, :, None] * of_factor[second][:, None]

    def split(opened: Array) -> Children:
        rows = jax.vmap(lambda entries, nodes: entries[nodes], (0, 1), 1)(table, opened)
        lower, upper, log_mass = rows[..., :dim], rows[..., dim:-1], rows[..., -1]
        one, other = (lambda box: box[:, first, :, None]), (lambda box: box[:, second, None])
        over, under = one(lower) - other(upper), other(lower) - one(upper)
        near, far = jnp.maximum(jnp.maximum(over, under), 0), jnp.maximum(-over, -under)
        log_upper, log_lower = (-0.5 * einsum("tpabd,pd->tpab", gap**2, concentration) for gap in (near, far))
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


def _leaves(
    key: Key[Array, ""], trees: KDTrees, partition: LabelPartition, num_samples: int
) -> Float[Array, "sample factor dim"]:
    """Draw means: a tuple by its estimated weight, and below each of its nodes a leaf by its own."""
    number, nodes, _ = trees.lower.shape
    dtype = trees.lower.dtype
    key_tuple, key_child, key_down = jax.random.split(key, 3)
    sums = jax.nn.logsumexp(partition.log_weights, axis=1)
    parents = pick(jax.random.uniform(key_tuple, (num_samples,), dtype), sums[None])
    children = pick(jax.random.uniform(key_child, (num_samples,), dtype), partition.log_weights[parents])
    drawn = 2 * partition.nodes[parents] + jnp.asarray(_bits(number), np.int32)[children]
    log_odds = trees.log_mass[:, 1::2] - trees.log_mass[:, ::2]
    of_factor = jnp.arange(number)[None]

    def down(drawn: Array, uniforms: Array) -> tuple[Array, None]:
        right = uniforms < jax.nn.sigmoid(log_odds[of_factor, drawn])
        return jnp.where(drawn < nodes // 2, 2 * drawn + right.astype(jnp.int32), drawn), None

    uniforms = jax.random.uniform(key_down, (nodes.bit_length() - 2, num_samples, number), dtype)
    drawn, _ = jax.lax.scan(down, drawn, uniforms)
    return trees.lower[of_factor, drawn]


def _times(product: tuple[Array, Array, Array], factor: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Multiply log weights [label], means [label, dim] and precisions [dim] of a product by one more factor."""
    (log_labels, label_means, total), (log_weights, means, precisions) = product, factor
    share = precisions / _or_one(total + precisions)
    differences = means[None] - label_means[:, None]
    log_overlap = -0.5 * einsum("lcd,d->lc", differences**2, share * total)
    log_product = log_labels[:, None] + log_weights[None] + log_overlap
    product_means = label_means[:, None] + share[None, None] * differences
    return log_product.reshape(-1), product_means.reshape(-1, means.shape[1]), total + precisions


def _or_one(precisions: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return precisions, with 0 (nothing present) replaced by 1."""
    return jnp.where(precisions > 0, precisions, 1)
