"""Densities learned from samples for the competitors of kernel belief propagation: of pairs, of one variable, of noise.

As in section 1 of the supplement, potentials of edges are conditional densities by least squares (Sugiyama et al. 2010)
and evidence is a Gaussian around the kernel ridge regression of the hidden variable on the observed one; those of nodes
are Parzen estimates. Widths are in standard deviations of each coordinate, so that one grid of them suits all data.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax.baselines.mixtures import Mixture, as_vectors, log_normal


class ConditionalDensity(eqx.Module):
    """p(v | u) = sum_i weights_i k_i(u) N(v; centres_i, diag(bandwidth^2)) / sum_i weights_i k_i(u), a mixture over v.

    k_i(u) = exp(-|(u - given_centres_i) / given_bandwidth|^2 / 2). Far from all centres, where all k_i underflow, the
    nearest decides. Estimates of equal sizes stack on a leading axis, for `jax.vmap`: all fields are arrays.

    Attributes:
        weights: alpha, >= 0, summing to 1 [centre].
        given_centres: values of u at the centres [centre, given_dim].
        centres: values of v there [centre, dim].
        given_bandwidth: standard deviation of k_i in each coordinate of u, > 0 [given_dim].
        bandwidth: standard deviation of the components in each coordinate of v, > 0 [dim].

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines.density import ConditionalDensity
        >>> u, v, one = jnp.array([[0.0], [9.0]]), jnp.array([[1.0], [5.0]]), jnp.ones(1)
        >>> ConditionalDensity(jnp.array([0.5, 0.5]), u, v, one, one).mixture(jnp.array([9.0])).mean.round(2).tolist()
        [5.0]
    """

    weights: Float[Array, " centre"]
    given_centres: Float[Array, "centre given_dim"]
    centres: Float[Array, "centre dim"]
    given_bandwidth: Float[Array, " given_dim"]
    bandwidth: Float[Array, " dim"]

    def mixture(self, u: Float[Array, " given_dim"]) -> Mixture:
        """Return the density of v given one u [given_dim]."""
        return Mixture(jax.nn.softmax(self._logits(u[None])[0]), self.centres, self.bandwidth)

    def log_density(self, v: Float[Array, "point dim"], u: Float[Array, "given given_dim"]) -> Array:
        """Return the table log p(v_i | u_j) [point, given] of points v [point, dim] given u [given, given_dim].

        It is one product of [point, centre] and [centre, given], each scaled to entries up to 1. Where all terms of a
        sum underflow, the smallest normal number stands for it: values e^-80 below the nearest component are not exact.
        """
        near = log_normal(v, self.centres, self.bandwidth)
        highest = jnp.max(near, axis=1, keepdims=True)
        sums = matmul(jnp.exp(near - highest), jax.nn.softmax(self._logits(u), axis=1).T)
        return highest + jnp.log(jnp.maximum(sums, jnp.finfo(sums.dtype).tiny))

    def sample(self, key: Key[Array, ""], u: Float[Array, "given given_dim"]) -> Float[Array, "given dim"]:
        """Draw one v for each u [given, given_dim]."""
        which, noise = jax.random.split(key)
        chosen = jax.random.categorical(which, self._logits(u))
        spread = jax.random.normal(noise, (len(u), self.centres.shape[1]), self.centres.dtype)
        return self.centres[chosen] + self.bandwidth[None] * spread

    def _logits(self, u: Float[Array, "given given_dim"]) -> Float[Array, "given centre"]:
        """Return log weights_i k_i(u_j) up to a constant."""
        return log_normal(u, self.given_centres, self.given_bandwidth) + jnp.log(self.weights)[None]


class Regression(eqx.Module):
    """A Gaussian around a kernel ridge regression, N(x; offset + sum_i k(y, centres_i) coefficients_i, deviation^2).

    Attributes:
        coefficients: of the kernel k(y, y') = exp(-|(y - y') / bandwidth|^2 / 2) at each centre [centre, dim].
        offset: prediction far from all centres [dim].
        centres: observations at which the kernel is placed [centre, obs_dim].
        bandwidth: width of the kernel in each coordinate, > 0 [obs_dim].
        deviation: standard deviation of what is not predicted, > 0 [dim].

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines.density import Regression
        >>> Regression(*map(jnp.array, ([[1.0]], [2.0], [[0.0]], [1.0], [1.0]))).predict(jnp.array([[9.0]])).tolist()
        [[2.0]]
    """

    coefficients: Float[Array, "centre dim"]
    offset: Float[Array, " dim"]
    centres: Float[Array, "centre obs_dim"]
    bandwidth: Float[Array, " obs_dim"]
    deviation: Float[Array, " dim"]

    def predict(self, y: Float[Array, "sample obs_dim"]) -> Float[Array, "sample dim"]:
        """Return the predicted mean of x for each observation [sample, obs_dim]."""
        return self.offset[None] + matmul(jnp.exp(-_apart(y, self.centres, self.bandwidth)), self.coefficients)

    def log_likelihood(self, x: Float[Array, "point dim"], y: Float[Array, "node obs_dim"]) -> Array:
        """Return log N(x_j; predict(y_i), diag(deviation^2)) [node, point] for all pairs."""
        return log_normal(self.predict(y), x, self.deviation)


def fit_conditional(
    v: Numbers,
    u: Numbers,
    key: Key[Array, ""],
    *,
    num_centres: int = 100,
    widths: Numbers | None = None,
    ridges: Numbers | None = None,
    folds: int = 5,
) -> ConditionalDensity:
    """Learn p(v | u) from pairs: alpha = [(H + lambda I)^{-1} h]_+ (supplement, section 1; Sugiyama et al. 2010).

    H = (1/n) sum_j int kappa(u_j, v) kappa(u_j, v)' dv and h = (1/n) sum_j kappa(u_j, v_j). Centres are training pairs
    drawn at random, equal pairs once only as long as there are others. Width and ridge are those of largest held-out
    log likelihood of the normalised estimate, a centre itself being scored by the other centres. The held-out squared
    loss alpha' H alpha / 2 - h' alpha is blind to how far a pair is from all centres; it may choose too narrow a width.

    Args:
        v: values [sample] or [sample, dim].
        u: what each is conditioned on [sample] or [sample, given_dim].
        key: draws centres and folds.
        num_centres: largest number of centres, >= 1; all pairs are centres where there are no more.
        widths: bandwidths to try, in standard deviations of each coordinate (1 if constant), > 0. None: 8, 0.02 to 1.
        ridges: lambdas to choose from, in units of the mean diagonal entry of H, > 0. None: 5 from 1e-3 to 10.
        folds: parts of the cross-validation, >= 2 and at most the number of pairs.

    Raises:
        ValueError: unequal or too small numbers of samples, values that are not finite, an option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines.density import fit_conditional
        >>> x = jnp.repeat(jnp.array([0.0, 9.0]), 20)
        >>> fit_conditional(x, x, jax.random.key(0), widths=[0.1]).mixture(jnp.array([8.0])).mean.round(2).tolist()
        [9.0]
    """
    v, u = _pairs("v", v, "u", u)
    _checks.require_key(key)
    _checks.require_count("num_centres", num_centres)
    _checks.require_count("folds", folds)
    _checks.require(folds >= 2, "folds", "must be >= 2", folds, "Hold out a half of the pairs, or less.")
    _checks.require(len(v) >= folds, "v", f"must hold a sample for each of {folds} folds", len(v), "Pass more pairs.")
    widths = _grid("widths", np.geomspace(0.02, 1, 8) if widths is None else widths, v)
    ridges = _grid("ridges", np.geomspace(1e-3, 10, 5) if ridges is None else ridges, v)
    return _fit_conditional(v, u, key, widths, ridges, min(num_centres, len(v)), folds)


def parzen(
    x: Numbers, *, widths: Numbers | None = None, num_centres: int | None = None, key: Key[Array, ""] | None = None
) -> Mixture:
    """Estimate a density by Gaussians on the samples, of the width of largest leave-one-out log likelihood.

    Samples that coincide vouch for each other, so ties drive the width to the least of the grid: let that be sensible.

    Args:
        x: samples [sample] or [sample, dim], at least two.
        widths: bandwidths to choose from, in standard deviations of each coordinate (1 of a constant coordinate), > 0.
            None: 10 from 0.1 to 2 times Silverman's rule of thumb (4 / ((dim + 2) n))^(1 / (dim + 4)) of n Gaussians.
        num_centres: largest number of Gaussians, >= 1, on samples drawn at random. None: on all samples.
        key: draws them; needed with num_centres, and used only there.

    Raises:
        ValueError: fewer than two samples, values that are not finite, an option out of range, num_centres without key.

    Examples:
        >>> from kbpjax.baselines.density import parzen
        >>> parzen([0.0, 1.0, 2.0, 3.0]).weights.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    x = _samples("x", x)
    if num_centres is not None:
        _checks.require_count("num_centres", num_centres)
        fix = "Pass key=jax.random.key(0), or leave out num_centres."
        _checks.require(key is not None, "key", "must be given where num_centres is, to draw centres", None, fix)
    count, dim = min(num_centres or len(x), len(x)), x.shape[1]
    thumb = (4 / ((dim + 2) * count)) ** (1 / (dim + 4))
    widths = _grid("widths", thumb * np.geomspace(0.1, 2, 10) if widths is None else widths, x)
    return _parzen(x, None if num_centres is None else key, widths, count)


def fit_regression(
    x: Numbers,
    y: Numbers,
    key: Key[Array, ""],
    *,
    num_centres: int = 200,
    widths: Numbers | None = None,
    ridges: Numbers | None = None,
) -> Regression:
    """Regress hidden values on observations, for evidence: a Gaussian around the prediction (supplement, section 1).

    It minimises (1/n) sum_j |x_j - f(y_j)|^2 + lambda |f - offset|^2 over functions f of kernels at the centres, and
    takes the width and lambda of the least squared leave-one-out residuals, r_j / (1 - leverage_j) for given centres;
    their root mean square is the deviation.

    Args:
        x: hidden values [sample] or [sample, dim], at least two.
        y: observations [sample] or [sample, obs_dim].
        key: draws the centres, equal observations once only as long as there are others.
        num_centres: largest number of centres, >= 1.
        widths: those to try, in standard deviations (1 of a constant), > 0. None: 8, 0.1 to 10 times sqrt(obs_dim).
        ridges: lambdas to choose from, > 0. None: 7 from 1e-6 to 1.

    Raises:
        ValueError: unequal or too small numbers of samples, values that are not finite, an option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines.density import fit_regression
        >>> y = jnp.linspace(-1, 1, 40)
        >>> fit_regression(y**2, y, jax.random.key(0), widths=[1.0]).predict(jnp.array([[0.5]])).round(2).tolist()
        [[0.25]]
    """
    x, y = _pairs("x", x, "y", y)
    _checks.require_key(key)
    _checks.require_count("num_centres", num_centres)
    widths = _grid("widths", np.geomspace(0.1, 10, 8) * y.shape[1] ** 0.5 if widths is None else widths, x)
    ridges = _grid("ridges", np.geomspace(1e-6, 1, 7) if ridges is None else ridges, x)
    return _fit_regression(x, y, key, widths, ridges, min(num_centres, len(x)))


@partial(jax.jit, static_argnums=(5, 6))
def _fit_conditional(
    v: Array, u: Array, key: Array, widths: Array, ridges: Array, count: int, folds: int
) -> ConditionalDensity:
    """Score every width and ridge on held-out pairs, and keep the weights that all pairs give at the best of them."""
    draw, deal = jax.random.split(key)
    chosen = _distinct(jnp.concatenate([u, v], axis=1), draw, count)
    given_scale, scale, given_centres, centres = _spread(u), _spread(v), u[chosen], v[chosen]
    given_apart = _apart(u, given_centres, given_scale)
    apart, between = _apart(v, centres, scale), _apart(centres, centres, scale)
    rows, present = _deal(deal, len(v), folds)

    def moments(width: Array, part: tuple[Array, Array]) -> tuple[Array, Array]:
        """Sum H and h over a part of the pairs, with kappa scaled so that int exp(..)^2 dv is 1."""
        index, here = part
        near = jnp.where(here[:, None], jnp.exp(-given_apart[index] / width**2), 0)
        hits = jnp.sum(near * jnp.exp(-apart[index] / width**2), axis=0)
        return matmul(near.T, near) * jnp.exp(-between / (2 * width**2)), hits

    def score(width: Array, part: tuple[Array, Array, Array]) -> Array:
        """Sum the log likelihood of held-out pairs, for the weights [ridge, centre] learned without them."""
        index, here, candidates = part
        given, near = -given_apart[index] / width**2, -apart[index] / width**2
        itself = index[:, None] == chosen[None]

        def log_likelihood(weights: Array) -> Array:
            alone = jnp.sum(weights > 0) == 1  # no other centre to score it
            logits = jnp.where(itself & ~alone, -jnp.inf, given + jnp.log(weights)[None])
            values = jax.nn.logsumexp(logits + near, axis=1) - jax.nn.logsumexp(logits, axis=1)
            return jnp.sum(jnp.where(here, values, 0))

        return jax.lax.map(log_likelihood, candidates)

    def at_width(width: Array) -> tuple[Array, Array]:
        gram, hits = jax.lax.map(partial(moments, width), (rows, present))
        total, total_hits = jnp.sum(gram, axis=0), jnp.sum(hits, axis=0)
        candidates = jax.vmap(_least_squares, (0, 0, None))(total[None] - gram, total_hits[None] - hits, ridges)
        scores = jnp.sum(jax.lax.map(partial(score, width), (rows, present, candidates)), axis=0)
        return scores - len(v) * v.shape[1] * jnp.log(width), _least_squares(total, total_hits, ridges)

    scores, weights = jax.lax.map(at_width, widths)
    best, ridge = jnp.unravel_index(jnp.argmax(scores), scores.shape)
    width = widths[best]
    return ConditionalDensity(weights[best, ridge], given_centres, centres, width * given_scale, width * scale)


def _least_squares(
    gram: Float[Array, "centre centre"], hits: Float[Array, " centre"], ridges: Float[Array, " ridge"]
) -> Float[Array, "ridge centre"]:
    """Return [(H + lambda I)^{-1} h]_+ over its sum, for lambda = ridge tr(H) / centres; uniform where that is 0.

    H and h may have any factors. One decomposition serves all ridges, and centres that coincide do no harm.
    """
    values, vectors = jnp.linalg.eigh(gram)
    eps, tiny = jnp.finfo(gram.dtype).eps, jnp.finfo(gram.dtype).tiny
    penalties = (ridges / len(gram) + eps) * jnp.trace(gram) + tiny
    solved = matmul(vectors.T, hits)[None] / (jnp.maximum(values, 0)[None] + penalties[:, None])
    weights = jnp.maximum(matmul(solved, vectors.T), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 1 / len(gram))


@partial(jax.jit, static_argnums=3)
def _parzen(x: Array, key: Array | None, widths: Array, count: int) -> Mixture:
    """Score the widths by leaving each sample out of the estimate of it."""
    samples = jnp.arange(len(x))
    chosen = samples if key is None else jax.random.permutation(key, samples)[:count]
    centres, scale = x[chosen], _spread(x)

    def left_out(index: Array) -> Array:
        others = chosen != index
        apart = jnp.where(others, _apart(x[index][None], centres, scale)[0], jnp.inf)
        values = jax.nn.logsumexp(-apart[None] / widths[:, None] ** 2, axis=1)
        return jnp.where(jnp.any(others), values, 0)  # the only centre has no others to score it

    scores = jnp.mean(jax.lax.map(left_out, samples, batch_size=64), axis=0) - x.shape[1] * jnp.log(widths)
    return Mixture(jnp.full(count, 1 / count, x.dtype), centres, widths[jnp.argmax(scores)] * scale)


@partial(jax.jit, static_argnums=5)
def _fit_regression(x: Array, y: Array, key: Array, widths: Array, ridges: Array, count: int) -> Regression:
    """Fit every width and ridge, and keep that of the least leave-one-out residuals."""
    centres, obs_scale = y[_distinct(y, key, count)], _spread(y)
    middle, scale = jnp.mean(x, axis=0), _spread(x)
    targets = (x - middle[None]) / scale[None]
    apart, between = _apart(y, centres, obs_scale), _apart(centres, centres, obs_scale)
    eps = jnp.finfo(x.dtype).eps

    def at_width(width: Array) -> tuple[Array, Array, Array]:
        """Return mean squared residuals [ridge, dim], coefficients [ridge, centre, dim] and offsets [ridge, dim]."""
        whiten = _inverse_root(jnp.exp(-between / width**2))
        features = matmul(jnp.exp(-apart / width**2), whiten)
        mean = jnp.mean(features, axis=0)
        values, vectors = jnp.linalg.eigh(matmul((features - mean[None]).T, features) / len(x))
        features = matmul(features - mean[None], vectors)
        cross = matmul(features.T, targets) / len(x)

        def at_ridge(ridge: Array) -> tuple[Array, Array, Array]:
            shrunk = 1 / (jnp.maximum(values, 0) + ridge + eps)
            slopes = shrunk[:, None] * cross
            leverage = (1 + matmul(features**2, shrunk)) / len(x)
            left_out = (targets - matmul(features, slopes)) / jnp.maximum(1 - leverage, eps)[:, None]
            slopes = matmul(vectors, slopes)
            return jnp.mean(left_out**2, axis=0), matmul(whiten, slopes), -matmul(mean, slopes)

        return jax.lax.map(at_ridge, ridges)

    squares, coefficients, offsets = jax.lax.map(at_width, widths)
    totals = jnp.sum(squares, axis=-1)
    best = jnp.unravel_index(jnp.argmin(totals), totals.shape)
    deviation = jnp.maximum(jnp.sqrt(squares[best]), eps**0.5)  # exact data still need a proper likelihood
    offset, bandwidth = middle + scale * offsets[best], widths[best[0]] * obs_scale
    return Regression(coefficients[best] * scale[None], offset, centres, bandwidth, scale * deviation)


def _inverse_root(gram: Float[Array, "centre centre"]) -> Float[Array, "centre rank"]:
    """Return R with R R' = gram^{-1} on the span that rounding leaves, and zero columns for the rest."""
    values, vectors = jnp.linalg.eigh(gram)
    kept = values > len(gram) * jnp.finfo(gram.dtype).eps * values[-1]
    return vectors * jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)[None]


def _distinct(x: Float[Array, "sample dim"], key: Key[Array, ""], count: int) -> Int[Array, " centre"]:
    """Draw samples at random, without replacement, passing over values drawn before as long as there are others."""
    order = jax.random.permutation(key, len(x))
    shuffled = x[order]
    ranks = jnp.lexsort(tuple(shuffled.T))  # stable: of equal values the first drawn comes first
    again = jnp.all(jnp.diff(shuffled[ranks], axis=0) == 0, axis=1)
    repeated = jnp.zeros(len(x), bool).at[ranks[1:]].set(again)
    return order[jnp.argsort(repeated, stable=True)[:count]]


def _deal(key: Key[Array, ""], number: int, folds: int) -> tuple[Int[Array, "fold row"], Bool[Array, "fold row"]]:
    """Deal samples out to folds like cards; the last row of a fold may be absent."""
    position = jnp.arange(-(-number // folds))[None] * folds + jnp.arange(folds)[:, None]
    return jax.random.permutation(key, number)[jnp.minimum(position, number - 1)], position < number


def _apart(x: Float[Array, "point dim"], centres: Float[Array, "centre dim"], scale: Float[Array, " dim"]) -> Array:
    """Return half the squared distances of all pairs [point, centre], each coordinate in its own units."""
    return 0.5 * jnp.sum(((x[:, None] - centres[None]) / scale[None, None]) ** 2, axis=-1)


def _spread(x: Float[Array, "sample dim"]) -> Float[Array, " dim"]:
    """Return the standard deviation of each coordinate, or 1 where it is constant."""
    deviation = jnp.std(x - x[:1], axis=0)  # the shift makes that of a constant exactly 0
    return jnp.where(deviation > 0, deviation, 1)


def _samples(argument: str, x: Numbers) -> Float[Array, "sample dim"]:
    _checks.require_finite(argument, x, "Drop samples with missing values.")
    vectors = as_vectors(argument, _checks.as_array(argument, x))
    _checks.require(len(vectors) > 1, argument, "must hold two samples or more", len(vectors), "Pass more.")
    return vectors


def _pairs(first: str, x: Numbers, second: str, y: Numbers) -> tuple[Array, Array]:
    left, right = _samples(first, x), _samples(second, y)
    rule = f"must pair with {first}, of {len(left)} samples"
    _checks.require(len(left) == len(right), second, rule, len(right), "Pass pairs.")
    dtype = jnp.promote_types(left.dtype, right.dtype)
    return left.astype(dtype), right.astype(dtype)


def _grid(argument: str, values: Numbers, like: Array) -> Float[Array, " choice"]:
    """Make an array of candidates, all > 0, in the precision of the samples."""
    grid, fix = _checks.as_array(argument, values), "Pass [value] for a single one."
    _checks.require(grid.ndim == 1 and grid.size > 0, argument, "must list candidates", f"shape {grid.shape}", fix)
    _checks.require_finite(argument, values, "Pass finite values.")
    positive = _checks.is_traced(values) or bool(np.all(np.asarray(values) > 0))
    _checks.require(positive, argument, "must be > 0", values, "Pass positive values.")
    return grid.astype(like.dtype)
