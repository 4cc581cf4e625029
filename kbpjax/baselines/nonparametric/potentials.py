"""Potentials of continuous variables as functions: the interface of custom ones, and those of learned densities."""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked, finite
from kbpjax.baselines.nonparametric.density import ConditionalDensity
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture, log_normal


class NodePotential(Checked):
    """A potential psi_s >= 0 of one variable, with a density to draw first samples from; subclass it.

    `GaussianMixture` has the same interface.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import pairwise
        >>> class Laplace(pairwise.NodePotential):
        ...     scale: jax.Array
        ...
        ...     def log_density(self, x):
        ...         return -jnp.abs(x[:, 0]) / self.scale
        ...
        ...     def sample(self, key, num_samples):
        ...         return self.scale * jax.random.laplace(key, (num_samples, 1))
        >>> Laplace(jnp.array(2.0)).log_density(jnp.array([[2.0], [4.0]])).tolist()
        [-1.0, -2.0]
    """

    @abc.abstractmethod
    def log_density(self, x: Float[Array, "point dim"]) -> Float[Array, " point"]:
        """Return log psi_s at points, up to a constant."""

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "sample dim"]:
        """Draw samples of the density proportional to psi_s, or of another whose support contains that of psi_s."""

    @finite("x")
    def log_start(self, x: Float[Array, "point dim"]) -> Float[Array, " point"]:
        """Return the log density of `sample`, up to a constant; override it where that is not psi_s."""
        return self.log_density(x)

    __repr__ = show_fields


class EdgePotential(Checked):
    """The potential psi_st >= 0 of an edge, in the message from t (sender) to s (receiver); subclass it.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import pairwise
        >>> class Smooth(pairwise.EdgePotential):
        ...     noise: jax.Array
        ...
        ...     def log_table(self, receiver, sender):
        ...         return -0.5 * ((receiver - sender.T) / self.noise) ** 2
        ...
        ...     def propose(self, key, sender):
        ...         return sender + self.noise * jax.random.normal(key, sender.shape), jnp.zeros(len(sender))
        >>> Smooth(jnp.array(1.0)).log_message(jnp.array([[0.0], [2.0]]), jnp.zeros((1, 1)), jnp.zeros(1)).tolist()
        [0.0, -2.0]
    """

    @abc.abstractmethod
    def log_table(
        self, receiver: Float[Array, "receiver_point dim"], sender: Float[Array, "sender_point dim"]
    ) -> Float[Array, "receiver_point sender_point"]:
        """Return log psi_st at all pairs of points, up to a constant."""

    def log_message(
        self,
        receiver: Float[Array, "receiver_point dim"],
        sender: Float[Array, "sender_point dim"],
        log_weights: Float[Array, " sender_point"],
    ) -> Float[Array, " receiver_point"]:
        """Return log sum_j psi_st(x, x_t^j) weight_j at points of the receiver."""
        _check_weights(sender, log_weights)
        return jax.nn.logsumexp(self.log_table(receiver, sender) + log_weights[None], axis=1)

    @abc.abstractmethod
    def propose(
        self, key: Key[Array, ""], sender: Float[Array, "point dim"]
    ) -> tuple[Float[Array, "point dim"], Float[Array, " point"]]:
        """Draw a point of the receiver for each of the sender; return them and log (psi_st / density of the draw)."""

    __repr__ = show_fields


def _check_weights(sender: Array, log_weights: Array) -> None:
    """Raise ValueError unless there is a weight for each point of the sender, which may be 0."""
    _checks.require_finite("log_weights", jnp.where(jnp.isneginf(log_weights), 0, log_weights))
    rule, fix = f"must be {len(sender)} numbers", "Pass one for each point of the sender."
    _checks.require(log_weights.shape == sender.shape[:1], "log_weights", rule, f"shape {log_weights.shape}", fix)


class RatioEdge(EdgePotential):
    """psi_st = P(x_t | x_s) / P(x_t), estimated; draws are from the estimate of P(x_s | x_t).

    Attributes:
        sender: P(x_t | x_s).
        receiver: P(x_s | x_t).
        sender_marginal, receiver_marginal: P(x_t), P(x_s).
    """

    sender: ConditionalDensity
    receiver: ConditionalDensity
    sender_marginal: GaussianMixture
    receiver_marginal: GaussianMixture

    @finite("receiver", "sender")
    def log_table(
        self, receiver: Float[Array, "receiver_point dim"], sender: Float[Array, "sender_point dim"]
    ) -> Float[Array, "receiver_point sender_point"]:
        """Return log P(x_t | x_s) / P(x_t) at all pairs."""
        return self.sender.log_density(sender, receiver).T - self.sender_marginal.log_density(sender)[None]

    @finite("receiver", "sender")
    def log_message(
        self,
        receiver: Float[Array, "receiver_point dim"],
        sender: Float[Array, "sender_point dim"],
        log_weights: Float[Array, " sender_point"],
    ) -> Float[Array, " receiver_point"]:
        """Return log sum_j P(x_t^j | x) weight_j / P(x_t^j), by weights of the centers and without the table."""
        _check_weights(sender, log_weights)
        near = log_normal(sender, self.sender.centers, self.sender.bandwidth)
        weights = log_weights - self.sender_marginal.log_density(sender)
        centers = jax.nn.logsumexp(near + weights[:, None], axis=0)
        given = log_normal(receiver, self.sender.given_centers, self.sender.given_bandwidth)
        given = given + jnp.log(self.sender.weights)[None]
        return jax.nn.logsumexp(given + centers[None], axis=1) - jax.nn.logsumexp(given, axis=1)

    @finite("sender")
    def propose(
        self, key: Key[Array, ""], sender: Float[Array, "point dim"]
    ) -> tuple[Float[Array, "point dim"], Float[Array, " point"]]:
        """Draw from P(x_s | x_t); the weight is 1 / P(x_s)."""
        drawn = self.receiver.sample(key, sender)
        return drawn, -self.receiver_marginal.log_density(drawn)


class ConditionalEdge(EdgePotential):
    """psi_st = P(x_s | x_t) in the message from t to s.

    Attributes:
        receiver: P(x_s | x_t).
    """

    receiver: ConditionalDensity

    @finite("receiver", "sender")
    def log_table(
        self, receiver: Float[Array, "receiver_point dim"], sender: Float[Array, "sender_point dim"]
    ) -> Float[Array, "receiver_point sender_point"]:
        """Return log P(x_s | x_t) at all pairs."""
        return self.receiver.log_density(receiver, sender)

    @finite("receiver", "sender")
    def log_message(
        self,
        receiver: Float[Array, "receiver_point dim"],
        sender: Float[Array, "sender_point dim"],
        log_weights: Float[Array, " sender_point"],
    ) -> Float[Array, " receiver_point"]:
        """Return log sum_j P(x | x_t^j) weight_j, by weights of the centers and without the table."""
        _check_weights(sender, log_weights)
        given = log_normal(sender, self.receiver.given_centers, self.receiver.given_bandwidth)
        given = given + jnp.log(self.receiver.weights)[None]
        weights = log_weights - jax.nn.logsumexp(given, axis=1)
        centers = jax.nn.logsumexp(given + weights[:, None], axis=0)
        near = log_normal(receiver, self.receiver.centers, self.receiver.bandwidth)
        return jax.nn.logsumexp(near + centers[None], axis=1)

    @finite("sender")
    def propose(
        self, key: Key[Array, ""], sender: Float[Array, "point dim"]
    ) -> tuple[Float[Array, "point dim"], Float[Array, " point"]]:
        """Draw from P(x_s | x_t); all weights are 1."""
        return self.receiver.sample(key, sender), jnp.zeros(len(sender), sender.dtype)


class Flat(NodePotential):
    """psi_s = 1, with a density to draw first samples from.

    Attributes:
        start: that density.
    """

    start: GaussianMixture

    @finite("x")
    def log_density(self, x: Float[Array, "point dim"]) -> Float[Array, " point"]:
        """Return zeros [point]."""
        return jnp.zeros(len(x), x.dtype)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "sample dim"]:
        """Draw samples of `start`."""
        return self.start.sample(key, num_samples)

    def log_start(self, x: Float[Array, "point dim"]) -> Float[Array, " point"]:
        """Return the log density of `start`."""
        return self.start.log_density(x)


class Ratios(Checked):
    """Use psi_s = P(x_s) and psi_st = P(x_t | x_s) / P(x_t), of learned densities.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise
        >>> x = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1)
        >>> data, options = kbp.pool(kbp.chain_graph(3), x), {"potentials": pairwise.Ratios(), "num_centers": 20}
        >>> model = pairwise.fit(jax.random.key(0), data, **options)
        >>> type(model.nodes).__name__, type(model.edges).__name__
        ('GaussianMixture', 'RatioEdge')
    """

    def node(self, marginal: GaussianMixture) -> GaussianMixture:
        """Return P(x_s)."""
        return marginal

    def edge(
        self,
        of_sender: ConditionalDensity,
        of_receiver: ConditionalDensity,
        sender: GaussianMixture,
        receiver: GaussianMixture,
    ) -> RatioEdge:
        """Return P(x_t | x_s) / P(x_t)."""
        return RatioEdge(of_sender, of_receiver, sender, receiver)

    __repr__ = show_fields


class Conditionals(Checked):
    """Use psi_s = 1 and psi_st = P(x_s | x_t), of learned densities.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise
        >>> x = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1)
        >>> data, options = kbp.pool(kbp.chain_graph(3), x), {"potentials": pairwise.Conditionals(), "num_centers": 20}
        >>> model = pairwise.fit(jax.random.key(0), data, **options)
        >>> type(model.nodes).__name__, type(model.edges).__name__
        ('Flat', 'ConditionalEdge')
    """

    def node(self, marginal: GaussianMixture) -> Flat:
        """Return 1, whose first samples are from P(x_s)."""
        return Flat(marginal)

    def edge(
        self,
        of_sender: ConditionalDensity,
        of_receiver: ConditionalDensity,
        sender: GaussianMixture,
        receiver: GaussianMixture,
    ) -> ConditionalEdge:
        """Return P(x_s | x_t)."""
        del of_sender, sender, receiver
        return ConditionalEdge(of_receiver)

    __repr__ = show_fields
