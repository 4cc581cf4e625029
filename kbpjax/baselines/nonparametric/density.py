"""Densities learned from samples: conditional densities of edges, densities of nodes, likelihoods of observations.

As in section 1 of the supplement, potentials of edges are least-squares conditional densities (Sugiyama et al. 2010),
and evidence is a Gaussian around the kernel ridge regression of the hidden variable on the observation. Potentials of
nodes are Parzen estimates. Widths are in standard deviations of each coordinate, so that one grid suits all data.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, show_fields
from kbpjax._public import Checked, finite, public
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture, as_vectors, log_normal
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.evidence import Evidence, Model
from kbpjax.posterior.likelihood import likelihood

__all__ = ["ConditionalDensity", "RegressionLikelihood", "fit_conditional", "fit_likelihood", "fit_parzen"]


def _american(fields: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of a file of kbpjax 0.1 (see `kbpjax.io`)."""
    return {name.replace("centres", "centers"): value for name, value in fields.items()}


class ConditionalDensity(Checked):
    """p(v | u) = sum_i weights_i k_i(u) N(v; centers_i, diag(bandwidth^2)) / sum_i weights_i k_i(u), a mixture over v.

    k_i(u) = exp(-|(u - given_centers_i) / given_bandwidth|^2 / 2). Far from all centers, where all k_i underflow, the
    nearest center has all weight. Estimates of equal sizes can be stacked on a leading axis, for `jax.vmap`.

    Attributes:
        weights: alpha, >= 0, summing to 1 [center].
        given_centers: values of u at the centers [center, given_dim].
        centers: values of v there [center, dim].
        given_bandwidth: standard deviation of k_i in each coordinate of u, > 0 [given_dim].
        bandwidth: standard deviation of the components in each coordinate of v, > 0 [dim].

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines import density
        >>> u, v, one = jnp.array([[0.0], [9.0]]), jnp.array([[1.0], [5.0]]), jnp.ones(1)
        >>> density.ConditionalDensity(jnp.array([0.5, 0.5]), u, v, one, one).mixture(jnp.array([9.0])).mean.round(
        ...     2
        ... ).tolist()
        [5.0]
    """

    weights: Float[Array, " center"]
    given_centers: Float[Array, "center given_dim"]
    centers: Float[Array, "center dim"]
    given_bandwidth: Float[Array, " given_dim"]
    bandwidth: Float[Array, " dim"]

    _upgrade = staticmethod(_american)

    @finite("u")
    def mixture(self, u: Float[Array, " given_dim"]) -> GaussianMixture:
        """Return the density of v given one u [given_dim]."""
        return GaussianMixture.trusted(jax.nn.softmax(self._logits(u[None])[0]), self.centers, self.bandwidth)

    @finite("v", "u")
    def log_density(self, v: Float[Array, "point dim"], u: Float[Array, "given given_dim"]) -> Array:
        """Return the table log p(v_i | u_j) [point, given] of points v [point, dim] given u [given, given_dim].

        The table is one matrix product of [point, center] and [center, given], with entries up to 1. A sum whose terms
        all underflow becomes the smallest normal number: values e^-80 below the nearest component are not exact.
        """
        near = log_normal(v, self.centers, self.bandwidth)
        highest = jnp.max(near, axis=1, keepdims=True)
        sums = matmul(jnp.exp(near - highest), jax.nn.softmax(self._logits(u), axis=1).T)
        return highest + jnp.log(jnp.maximum(sums, jnp.finfo(sums.dtype).tiny))

    @finite("u")
    def sample(self, key: Key[Array, ""], u: Float[Array, "given given_dim"]) -> Float[Array, "given dim"]:
        """Draw one v for each u [given, given_dim]."""
        which, noise = jax.random.split(key)
        chosen = jax.random.categorical(which, self._logits(u))
        spread = jax.random.normal(noise, (len(u), self.centers.shape[1]), self.centers.dtype)
        return self.centers[chosen] + self.bandwidth[None] * spread

    def _logits(self, u: Float[Array, "given given_dim"]) -> Float[Array, "given center"]:
        """Return log weights_i k_i(u_j) up to a constant."""
        return log_normal(u, self.given_centers, self.given_bandwidth) + jnp.log(self.weights)[None]

    __repr__ = show_fields


class RegressionLikelihood(Checked):
    """A Gaussian around a kernel ridge regression, N(x; offset + sum_i k(y, centers_i) coefficients_i, deviation^2).

    As a function of x, it is the likelihood of an observation y.

    Attributes:
        coefficients: coefficients of k(y, y') = exp(-|(y - y') / bandwidth|^2 / 2) at each center [center, dim].
        offset: prediction far from all centers [dim].
        centers: observations at which the kernel is placed [center, obs_dim].
        bandwidth: width of the kernel in each coordinate, > 0 [obs_dim].
        deviation: standard deviation of the residuals, > 0 [dim].

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines import density
        >>> density.RegressionLikelihood(*map(jnp.array, ([[1.0]], [2.0], [[0.0]], [1.0], [1.0]))).predict(
        ...     jnp.array([[9.0]])
        ... ).tolist()
        [[2.0]]
    """

    coefficients: Float[Array, "center dim"]
    offset: Float[Array, " dim"]
    centers: Float[Array, "center obs_dim"]
    bandwidth: Float[Array, " obs_dim"]
    deviation: Float[Array, " dim"]

    _upgrade = staticmethod(_american)

    @finite("y")
    def predict(self, y: Float[Array, "sample obs_dim"]) -> Float[Array, "sample dim"]:
        """Return the predicted mean of x for each observation [sample, obs_dim]."""
        return self.offset[None] + matmul(jnp.exp(-_apart(y, self.centers, self.bandwidth)), self.coefficients)

    @finite("x", "y")
    def log_likelihood(self, x: Float[Array, "point dim"], y: Float[Array, "node obs_dim"]) -> Array:
        """Return log N(x_j; predict(y_i), diag(deviation^2)) [node, point] for all pairs."""
        return log_normal(self.predict(y), x, self.deviation)

    def evidence(self, model: Model, graph: Graph, y: Numbers, *, mask: Numbers | None = None) -> Evidence:
        """Return the evidence of observations for any model whose variables have the shape of x.

        Args:
            model: the model: of `discrete.fit`, `pairwise.fit` or `kbpjax.fit`.
            graph: the graph.
            y: one observation for each node, [node] or [node, obs_dim].
            mask: observed nodes [node], boolean or 0 and 1; None: all. The entries of y elsewhere are ignored, even
                NaN.

        Raises:
            ValueError: observations or a mask of another shape, or NaN in an observed node.

        Examples:
            >>> import jax, jax.numpy as jnp, kbpjax as kbp
            >>> from kbpjax.baselines import density, discrete
            >>> x, graph = jnp.linspace(-1, 1, 40), kbp.chain_graph(2)
            >>> states, table = [-1.0, 0.0, 1.0], jnp.ones((1, 3, 3))
            >>> model = discrete.from_potentials(states, jnp.ones(3), table)
            >>> evidence = density.fit_likelihood(jax.random.key(0), x, 2 * x).evidence(model, graph, [2.0, 0.0])
            >>> kbp.mode(
            ...     discrete.beliefs(model, graph, evidence, discrete.run(model, graph, evidence), states)
            ... ).tolist()
            [1.0, 0.0]
        """
        count, size = graph.num_nodes, self.centers.shape[1]
        seen = _checks.to_jax(np.ones(count, bool) if mask is None else _checks.as_mask("mask", mask, (count,)))
        values = _checks.as_array("y", y)
        values = values.reshape(len(values), -1) if values.size and values.ndim else values[None]
        rule, fix = f"must have shape ({count}, {size})", "Pass one observation for each node."
        _checks.require(values.shape == (count, size), "y", rule, values.shape, fix)
        values = jnp.where(seen[:, None], values, 0).astype(self.centers.dtype)
        _checks.require_finite("y", values, "Mask nodes that were not observed.")
        predicted = self.predict(values)
        function = {}
        for v, *_ in graph.node_types:
            nodes = graph.nodes_of_type(v)
            variable = jnp.zeros(model.points[v].shape[1:], predicted.dtype)
            function[v] = Partial(_normal, predicted[nodes], self.deviation, seen[nodes], variable)
        return likelihood(model, graph, function)

    __repr__ = show_fields


def _normal(mean: Array, deviation: Array, seen: Array, variable: Array, points: Array) -> Array:
    """Return exp(-|(x - mean) / deviation|^2 / 2) at common points [point, *dim] or per-node points; 1 if not seen.

    `variable` is any array with the shape of one variable; its number of axes distinguishes the two kinds of points.
    """
    per_node = points.ndim > 1 + variable.ndim
    x = points.reshape(len(mean) if per_node else 1, -1, mean.shape[1])
    scaled = (x.astype(mean.dtype) - mean[:, None]) / deviation[None, None]
    return jnp.where(seen[:, None], jnp.exp(-0.5 * jnp.sum(scaled**2, axis=-1)), 1)


@public
def fit_conditional(
    key: Key[Array, ""],
    v: Numbers,
    u: Numbers,
    *,
    num_centers: int = 100,
    widths: Numbers | None = None,
    ridges: Numbers | None = None,
    folds: int = 5,
) -> ConditionalDensity:
    """Learn p(v | u) from pairs: alpha = [(H + lambda I)^{-1} h]_+ (supplement, section 1; Sugiyama et al. 2010).

    H = (1/n) sum_j int kappa(u_j, v) kappa(u_j, v)' dv and h = (1/n) sum_j kappa(u_j, v_j). Centers are training pairs
    drawn at random; equal pairs are drawn once, as long as there are others. Width and ridge maximize the held-out log
    likelihood of the normalized estimate, where a center is scored by the other centers. (The held-out squared loss
    alpha' H alpha / 2 - h' alpha does not depend on how far a pair is from all centers, and may choose too small a
    width.)

    Args:
        key: random key, for centers and folds.
        v: values [sample] or [sample, dim].
        u: conditioning values [sample] or [sample, given_dim].
        num_centers: largest number of centers, >= 1; with fewer pairs, all pairs are centers.
        widths: bandwidths to try, in standard deviations of each coordinate (1 if constant), > 0. None: 8, 0.02 to 1.
        ridges: values of lambda to try, in units of the mean diagonal entry of H, > 0. None: 5 from 1e-3 to 10.
        folds: number of folds of the cross-validation, >= 2 and at most the number of pairs.

    Raises:
        ValueError: unequal or too small numbers of samples, values that are not finite or whose squares overflow, an
            option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import density
        >>> x = jnp.repeat(jnp.array([0.0, 9.0]), 20)
        >>> density.fit_conditional(jax.random.key(0), x, x, widths=[0.1]).mixture(jnp.array([8.0])).mean.round(
        ...     2
        ... ).tolist()
        [9.0]
    """
    _checks.require_key(key)
    v, u = _pairs("v", v, "u", u)
    _checks.require_count("num_centers", num_centers)
    _checks.require_count("folds", folds)
    _checks.require(folds >= 2, "folds", "must be >= 2", folds, "Hold out a half of the pairs, or less.")
    _checks.require(len(v) >= folds, "v", f"must hold a sample for each of {folds} folds", len(v), "Pass more pairs.")
    widths = _grid("widths", np.geomspace(0.02, 1, 8) if widths is None else widths, v)
    ridges = _grid("ridges", np.geomspace(1e-3, 10, 5) if ridges is None else ridges, v)
    return _fit_conditional(v, u, key, widths, ridges, min(num_centers, len(v)), folds)


@public
def fit_parzen(
    x: Numbers, *, widths: Numbers | None = None, num_centers: int | None = None, key: Key[Array, ""] | None = None
) -> GaussianMixture:
    """Return a density of Gaussians on the samples, with the width of largest leave-one-out log likelihood.

    Equal samples support each other, so ties drive the width to the smallest of the grid: choose that one sensibly.

    Args:
        x: samples [sample] or [sample, dim], at least two.
        widths: bandwidths to choose from, in standard deviations of each coordinate (1 of a constant coordinate), > 0.
            None: 10 from 0.1 to 2 times Silverman's rule of thumb (4 / ((dim + 2) n))^(1 / (dim + 4)) of n Gaussians.
        num_centers: largest number of Gaussians, >= 1, on samples drawn at random. None: on all samples.
        key: random key for the draw; required with num_centers, and otherwise not used.

    Raises:
        ValueError: fewer than two samples, values that are not finite or whose squares overflow, an option out of
            range, num_centers without key.

    Examples:
        >>> from kbpjax.baselines import density
        >>> density.fit_parzen([0.0, 1.0, 2.0, 3.0]).weights.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    x = _samples("x", x)
    if num_centers is not None:
        _checks.require_count("num_centers", num_centers)
        fix = "Pass key=jax.random.key(0), or leave out num_centers."
        _checks.require(key is not None, "key", "must be given where num_centers is, to draw centers", None, fix)
    count, dim = min(num_centers or len(x), len(x)), x.shape[1]
    thumb = (4 / ((dim + 2) * count)) ** (1 / (dim + 4))
    widths = _grid("widths", thumb * np.geomspace(0.1, 2, 10) if widths is None else widths, x)
    return _parzen(x, None if num_centers is None else key, widths, count)


@public
def fit_likelihood(
    key: Key[Array, ""],
    x: Numbers,
    y: Numbers,
    *,
    num_centers: int = 200,
    widths: Numbers | None = None,
    ridges: Numbers | None = None,
) -> RegressionLikelihood:
    """Return a likelihood learned by kernel ridge regression of hidden values on observations (supplement, section 1).

    The regression minimizes (1/n) sum_j |x_j - f(y_j)|^2 + lambda |f - offset|^2 over functions f of kernels at the
    centers. Width and lambda minimize the mean squared leave-one-out residual, r_j / (1 - leverage_j) for given
    centers; its root is the deviation.

    Args:
        key: random key for the draw of centers; equal observations are drawn once, as long as there are others.
        x: hidden values [sample] or [sample, dim], at least two.
        y: observations [sample] or [sample, obs_dim].
        num_centers: largest number of centers, >= 1.
        widths: widths to try, in standard deviations (1 of a constant), > 0. None: 8, 0.1 to 10 times sqrt(obs_dim).
        ridges: values of lambda to try, > 0. None: 7 from 1e-6 to 1.

    Raises:
        ValueError: unequal or too small numbers of samples, values that are not finite or whose squares overflow, an
            option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import density
        >>> y = jnp.linspace(-1, 1, 40)
        >>> density.fit_likelihood(jax.random.key(0), y**2, y, widths=[1.0]).predict(jnp.array([[0.5]])).round(
        ...     2
        ... ).tolist()
        [[0.25]]
    """
    _checks.require_key(key)
    x, y = _pairs("x", x, "y", y)
    _checks.require_count("num_centers", num_centers)
    widths = _grid("widths", np.geomspace(0.1, 10, 8) * y.shape[1] ** 0.5 if widths is None else widths, x)
    ridges = _grid("ridges", np.geomspace(1e-6, 1, 7) if ridges is None else ridges, x)
    return _fit_likelihood(x, y, key, widths, ridges, min(num_centers, len(x)))


@partial(jax.jit, static_argnums=(5, 6))
def _fit_conditional(
    v: Array, u: Array, key: Array, widths: Array, ridges: Array, count: int, folds: int
) -> ConditionalDensity:
    """Score every width and ridge on held-out pairs, and keep the weights that all pairs give at the best of them."""
    draw, deal = jax.random.split(key)
    chosen = _distinct(jnp.concatenate([u, v], axis=1), draw, count)
    given_scale, scale, given_centers, centers = _spread(u), _spread(v), u[chosen], v[chosen]
    given_apart = _apart(u, given_centers, given_scale)
    apart, between = _apart(v, centers, scale), _apart(centers, centers, scale)
    rows, present = _deal(deal, len(v), folds)

    def moments(width: Array, part: tuple[Array, Array]) -> tuple[Array, Array]:
        """Sum H and h over a part of the pairs, with kappa scaled so that int exp(..)^2 dv is 1."""
        index, here = part
        near = jnp.where(here[:, None], jnp.exp(-given_apart[index] / width**2), 0)
        hits = jnp.sum(near * jnp.exp(-apart[index] / width**2), axis=0)
        return matmul(near.T, near) * jnp.exp(-between / (2 * width**2)), hits

    def score(width: Array, part: tuple[Array, Array, Array]) -> Array:
        """Sum the log likelihood of held-out pairs, for the weights [ridge, center] learned without them."""
        index, here, candidates = part
        given, near = -given_apart[index] / width**2, -apart[index] / width**2
        itself = index[:, None] == chosen[None]

        def log_likelihood(weights: Array) -> Array:
            alone = jnp.sum(weights > 0) == 1  # no other center to score it
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
    return ConditionalDensity(weights[best, ridge], given_centers, centers, width * given_scale, width * scale)


def _least_squares(
    gram: Float[Array, "center center"], hits: Float[Array, " center"], ridges: Float[Array, " ridge"]
) -> Float[Array, "ridge center"]:
    """Return [(H + lambda I)^{-1} h]_+ over its sum, for lambda = ridge tr(H) / centers; uniform where that is 0.

    H and h may have any factors. One decomposition serves all ridges, and centers that coincide do no harm.
    """
    values, vectors = jnp.linalg.eigh(gram)
    eps, tiny = jnp.finfo(gram.dtype).eps, jnp.finfo(gram.dtype).tiny
    penalties = (ridges / len(gram) + eps) * jnp.trace(gram) + tiny
    solved = matmul(vectors.T, hits)[None] / (jnp.maximum(values, 0)[None] + penalties[:, None])
    weights = jnp.maximum(matmul(solved, vectors.T), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 1 / len(gram))


@partial(jax.jit, static_argnums=3)
def _parzen(x: Array, key: Array | None, widths: Array, count: int) -> GaussianMixture:
    """Score the widths by leaving each sample out of the estimate of it."""
    samples = jnp.arange(len(x))
    chosen = samples if key is None else jax.random.permutation(key, samples)[:count]
    centers, scale = x[chosen], _spread(x)

    def left_out(index: Array) -> Array:
        others = chosen != index
        apart = jnp.where(others, _apart(x[index][None], centers, scale)[0], jnp.inf)
        values = jax.nn.logsumexp(-apart[None] / widths[:, None] ** 2, axis=1)
        return jnp.where(jnp.any(others), values, 0)  # the only center has no others to score it

    scores = jnp.mean(jax.lax.map(left_out, samples, batch_size=64), axis=0) - x.shape[1] * jnp.log(widths)
    return GaussianMixture.trusted(jnp.full(count, 1 / count, x.dtype), centers, widths[jnp.argmax(scores)] * scale)


@partial(jax.jit, static_argnums=5)
def _fit_likelihood(x: Array, y: Array, key: Array, widths: Array, ridges: Array, count: int) -> RegressionLikelihood:
    """Fit every width and ridge, and keep that of the least leave-one-out residuals."""
    centers, obs_scale = y[_distinct(y, key, count)], _spread(y)
    middle, scale = jnp.mean(x, axis=0), _spread(x)
    targets = (x - middle[None]) / scale[None]
    apart, between = _apart(y, centers, obs_scale), _apart(centers, centers, obs_scale)
    eps = jnp.finfo(x.dtype).eps

    def at_width(width: Array) -> tuple[Array, Array, Array]:
        """Return mean squared residuals [ridge, dim], coefficients [ridge, center, dim] and offsets [ridge, dim]."""
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
    deviation = jnp.maximum(jnp.sqrt(squares[best]), eps**0.5)  # positive for exact data, too
    offset, bandwidth = middle + scale * offsets[best], widths[best[0]] * obs_scale
    return RegressionLikelihood(coefficients[best] * scale[None], offset, centers, bandwidth, scale * deviation)


def _inverse_root(gram: Float[Array, "center center"]) -> Float[Array, "center rank"]:
    """Return R with R R' = gram^{-1} on the span that rounding leaves, and zero columns for the rest."""
    values, vectors = jnp.linalg.eigh(gram)
    kept = values > len(gram) * jnp.finfo(gram.dtype).eps * values[-1]
    return vectors * jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)[None]


def _distinct(x: Float[Array, "sample dim"], key: Key[Array, ""], count: int) -> Int[Array, " center"]:
    """Draw samples without replacement; values drawn before are skipped as long as there are others."""
    order = jax.random.permutation(key, len(x))
    shuffled = x[order]
    ranks = jnp.lexsort(tuple(shuffled.T))  # stable: of equal values the first drawn comes first
    again = jnp.all(jnp.diff(shuffled[ranks], axis=0) == 0, axis=1)
    repeated = jnp.zeros(len(x), bool).at[ranks[1:]].set(again)
    return order[jnp.argsort(repeated, stable=True)[:count]]


def _deal(key: Key[Array, ""], number: int, folds: int) -> tuple[Int[Array, "fold row"], Bool[Array, "fold row"]]:
    """Assign samples to folds at random; return their indices, and which exist (the last of a fold may not)."""
    position = jnp.arange(-(-number // folds))[None] * folds + jnp.arange(folds)[:, None]
    return jax.random.permutation(key, number)[jnp.minimum(position, number - 1)], position < number


def _apart(x: Float[Array, "point dim"], centers: Float[Array, "center dim"], scale: Float[Array, " dim"]) -> Array:
    """Return half the squared distances of all pairs [point, center], each coordinate in its own units."""
    return 0.5 * jnp.sum(((x[:, None] - centers[None]) / scale[None, None]) ** 2, axis=-1)


def _spread(x: Float[Array, "sample dim"]) -> Float[Array, " dim"]:
    """Return the standard deviation of each coordinate, or 1 where it is constant."""
    deviation = jnp.std(x - x[:1], axis=0)  # the shift makes that of a constant exactly 0
    return jnp.where(deviation > 0, deviation, 1)


def _samples(argument: str, x: Numbers) -> Float[Array, "sample dim"]:
    _checks.require_finite(argument, x, "Drop samples with missing values.")
    vectors = as_vectors(argument, _checks.as_array(argument, x))
    _checks.require(len(vectors) > 1, argument, "must hold two samples or more", len(vectors), "Pass more.")
    _checks.require_squares(argument, vectors)
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
    least = 1.0 if _checks.is_traced(grid) else float(np.min(np.asarray(grid)))
    _checks.require(least > 0, argument, "must be > 0", f"{least:.4g} as the least", "Pass positive values.")
    return grid.astype(like.dtype)
