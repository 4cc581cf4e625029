"""Products of mixtures of Gaussians: the exact product, and Gibbs sampling from it.

The product of d mixtures is a mixture over all choices of one component of each, the labels (i_1, ..., i_d), with

    weight = prod_j w_j(i_j) exp(-1/2 sum_{j<k} c_jk (mu_j(i_j) - mu_k(i_k))^2),    c_jk = lambda_j lambda_k / lambda,
    mean = sum_j lambda_j mu_j(i_j) / lambda,    lambda_j = bandwidth_j^-2,    lambda = sum_j lambda_j,

squares summed over coordinates, and lambda^(-1/2) the bandwidth of all. These are component^d numbers: `exact` makes
them, `gibbs` and `kbpjax.baselines.multiscale` sample from them without. All take one `Mixture` whose leaves have a
leading axis of factors; `jax.vmap` takes the products at all nodes of a graph at once.
"""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kbpjax import _checks
from kbpjax._misc import einsum, matmul
from kbpjax.baselines.mixtures import Mixture

MOST_LABELS = 2**22
"""Most combinations of components that `exact` makes: 128 MiB for each coordinate and number in 64 bit."""

NEVER = -1e30
"""The logarithm of a weight of 0: finite, so that 0 times it is 0, and below that of every other weight in f32."""


class Factors(NamedTuple):
    """Mixtures ready for a product: what is not there has precision 0, weights 0 are `NEVER`, no value is NaN.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> factors = products.prepare(two, None)
        >>> factors.centre.tolist(), factors.means.ravel().tolist()
        ([1.0], [-1.0, 1.0])
    """

    log_weights: Float[Array, "factor component"]
    means: Float[Array, "factor component dim"]  # less `centre`
    precisions: Float[Array, "factor dim"]
    centre: Float[Array, " dim"]


def exact(mixtures: Mixture, present: Bool[Array, " factor"] | None = None) -> tuple[Mixture, Float[Array, ""]]:
    """Return the product of mixtures, normalised, and the logarithm of its integral before that.

    Takes one factor after the other; components are in the order of labels, the last factor's the fastest.

    Args:
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        present: factors to multiply, one at least; of the others only the first label has weight. None: all.

    Raises:
        ValueError: shapes that do not fit, or more than 2^22 combinations of components.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> product, log_normaliser = jax.jit(products.exact)(two)
        >>> [round(float(x), 3) for x in (product.mean[0], product.variance[0], log_normaliser)]
        [1.0, 0.5, -2.266]
    """
    factors = prepare(mixtures, present)
    log_weights, means, precisions, centre = factors
    number, components = log_weights.shape
    fix = "Sample from the product with gibbs or multiscale, or keep fewer components."
    got = f"{components}^{number}"
    rule = f"must have at most {MOST_LABELS} combinations of components"
    _checks.require(components**number <= MOST_LABELS, "mixtures", rule, got, fix)
    dim = means.shape[2]
    nothing = (jnp.zeros(1, means.dtype), jnp.zeros((1, dim), means.dtype), jnp.zeros(dim, means.dtype))
    log_labels, label_means, total = reduce(_times, zip(log_weights, means, precisions), nothing)
    scales = jnp.where(precisions > 0, jnp.log(jnp.where(precisions > 0, precisions, 1)) - jnp.log(2 * jnp.pi), 0)
    scale = 0.5 * (jnp.sum(scales) - jnp.sum(jnp.log(_or_one(total)) - jnp.log(2 * jnp.pi)))
    product = Mixture(jax.nn.softmax(log_labels), label_means + centre[None], _or_one(total) ** -0.5)
    return product, jax.nn.logsumexp(log_labels) + scale


def gibbs(
    key: Key[Array, ""],
    mixtures: Mixture,
    num_samples: int,
    *,
    num_sweeps: int = 5,
    present: Bool[Array, " factor"] | None = None,
) -> Float[Array, "sample dim"]:
    """Draw samples of the product of mixtures, each from a Markov chain of its own over the labels.

    A chain starts at labels drawn from the weights of their own factors. A sweep draws the label of each factor in
    turn given those of the others (Sudderth, Ihler, Freeman and Willsky, 2003, section 3),

        p(i_j | others) ~ w_j(i_j) N(mu_j(i_j); m, 1 / lambda_j + 1 / lambda_others),

    m the mean of the product of the others' Gaussians. A sample is a draw from the Gaussian of the last labels. Chains
    are slow to leave modes that are many bandwidths apart: too few sweeps then leave the modes' shares those of the
    start. O(samples sweeps factors components dim) time.

    Args:
        key: random key.
        mixtures: the factors, weights [factor, component], means [factor, component, dim], bandwidth [factor, dim].
            Weights may be 0, as of padding.
        num_samples: samples, and chains, >= 1.
        num_sweeps: times that each label is drawn, >= 1.
        present: factors to multiply, one at least. None: all.

    Raises:
        ValueError: shapes that do not fit, or a number of samples or sweeps below 1.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, products
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> jax.jit(products.gibbs, static_argnums=2)(jax.random.key(0), two, 1000).mean().round(1).item()
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
    sharpness = shares_of(factors.precisions) * others_total

    def step(chosen: Array, turn: tuple[Array, Array]) -> tuple[Array, None]:
        factor, uniforms = turn
        centres = einsum("sfd,fd->sd", chosen, shares[factor])
        distances = (factors.means[factor][None] - centres[:, None]) ** 2
        logits = factors.log_weights[factor][None] - 0.5 * einsum("scd,d->sc", distances, sharpness[factor])
        return chosen.at[:, factor].set(factors.means[factor][pick(uniforms, logits)]), None

    first = pick(
        jax.random.uniform(key_start, (number, num_samples), factors.means.dtype), factors.log_weights[:, None]
    )
    start = jnp.swapaxes(jax.vmap(lambda means, labels: means[labels])(factors.means, first), 0, 1)
    uniforms = jax.random.uniform(key_steps, (steps, num_samples), factors.means.dtype)
    chosen, _ = jax.lax.scan(step, start, (jnp.arange(steps) % number, uniforms))
    return draw(key_draw, factors, chosen)


def prepare(mixtures: Mixture, present: Bool[Array, " factor"] | None) -> Factors:
    """Check the shapes of mixtures, and take out what is absent or has no weight."""
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
    centre = jnp.sum(jnp.where(here[:, None], jnp.mean(means, axis=1), 0), axis=0) / count
    log_weights = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), NEVER)
    return Factors(log_weights, jnp.where(here[:, None, None], means - centre[None, None], 0), precisions, centre)


def shares_of(precisions: Float[Array, "factor dim"]) -> Float[Array, "factor dim"]:
    """Return each factor's share of the precision of the product."""
    return precisions / _or_one(jnp.sum(precisions, axis=0))[None]


def pick(uniforms: Float[Array, "*batch"], logits: Float[Array, "*#batch choice"]) -> Int[Array, "*batch"]:
    """Choose by inverting the distribution function, never what has `NEVER` as its logit."""
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    # Sums of different length round differently: one may fall where a choice of weight 0 is added.
    sums = jnp.where(weights > 0, _running_sums(weights), 0)
    below = uniforms[..., None] * jnp.max(sums, axis=-1, keepdims=True)
    last = logits.shape[-1] - 1
    choices = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.min(jnp.where(sums > below, choices, last), axis=-1)


def _running_sums(weights: Float[Array, "*batch choice"]) -> Float[Array, "*batch choice"]:
    """Return cumulative sums: of short rows as a product of matrices, faster than a scan."""
    length = weights.shape[-1]
    if length > 64:
        return jnp.cumsum(weights, axis=-1)
    return matmul(weights, jnp.triu(jnp.ones((length, length), weights.dtype)))


def draw(
    key: Key[Array, ""], factors: Factors, chosen: Float[Array, "sample factor dim"]
) -> Float[Array, "sample dim"]:
    """Draw one sample from the product of the chosen Gaussians of each row."""
    noise = jax.random.normal(key, (len(chosen), chosen.shape[2]), chosen.dtype)
    bandwidth = _or_one(jnp.sum(factors.precisions, axis=0)) ** -0.5
    means = einsum("sfd,fd->sd", chosen, shares_of(factors.precisions))
    return means + factors.centre[None] + bandwidth[None] * noise


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
    """Return precisions, 1 where they are 0 as nothing is present."""
    return jnp.where(precisions > 0, precisions, 1)
