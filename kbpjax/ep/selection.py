"""Selection of an operator's kernel and noise parameters on training messages."""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kbpjax import _checks
from kbpjax._public import Checked, public
from kbpjax.ep.messages import Distribution, ratio
from kbpjax.ep.operators import Learner, check_samples, draw_maps
from kbpjax.ep.parameters import Parameters
from kbpjax.ep.regression import leave_one_out_residuals, log_evidence
from kbpjax.ep.representations import Incoming, Moments


class Criterion(Checked):
    """A selection criterion; smaller is better."""

    @abc.abstractmethod
    def __call__(
        self, phi: Float[Array, "sample rank"], y: Float[Array, " sample"], noise: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return the loss of features [sample, rank] and an output [sample]."""


class LeaveOneOut(Criterion):
    """The mean square of leave-one-out residuals, in closed form.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax import ep
        >>> phi, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([1.0, 2.0, 9.0])
        >>> criterion = ep.LeaveOneOut()  # for ep.select_parameters(..., criterion=criterion), the default
        >>> round(float(criterion(phi, y, jnp.array(1e-6))), 2)  # the mean of 1.38^2, 3.6^2 and 6^2
        16.96
    """

    def __call__(
        self, phi: Float[Array, "sample rank"], y: Float[Array, " sample"], noise: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return the mean square."""
        return jnp.mean(leave_one_out_residuals(phi, y, noise) ** 2)


class NegativeLogEvidence(Criterion):
    """The negative log evidence, -log p(y).

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax import ep
        >>> phi, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([1.1, 1.9, 3.1])
        >>> criterion = ep.NegativeLogEvidence()  # for ep.select_parameters(..., criterion=criterion)
        >>> min((1e-4, 1e-2, 1.0), key=lambda noise: float(criterion(phi, y, jnp.array(noise))))
        0.01
    """

    def __call__(
        self, phi: Float[Array, "sample rank"], y: Float[Array, " sample"], noise: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return -log p(y)."""
        return -log_evidence(phi, y, noise)


@public
def select_parameters(
    key: Key[Array, ""],
    incoming: Incoming,
    beliefs: Distribution,
    candidates: Parameters,
    *,
    variable: int,
    learner: Learner = Learner(),
    criterion: Criterion = LeaveOneOut(),
) -> tuple[Parameters, Float[Array, "candidate out"]]:
    """Return the best kernel and noise parameters for each output, by a criterion on training messages.

    Args:
        key: random key of the features, shared by all candidates.
        incoming: messages [sample].
        beliefs: the oracle's beliefs of the variable [sample].
        candidates: sets of parameters [candidate]: `grid_candidates()` or `random_candidates(key, 50)`.
        variable: index of the variable among the incoming messages.
        learner: numbers of features, representation and targets; fewer features than those of the operator suffice.
        criterion: `LeaveOneOut()` or `NegativeLogEvidence()`.

    Returns:
        The best candidate of each output [out], and all losses [candidate, out].

    Raises:
        ValueError: messages that do not fit, as in `learn`; no candidates.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> z = ep.Gaussian.from_moments(jnp.linspace(-3.0, 3.0, 100), jnp.ones(100))
        >>> incoming = ep.Beta(2.0 * jnp.ones(100), jnp.ones(100)), z
        >>> truth = ep.logistic_integrals(*incoming).z
        >>> few = ep.Learner(num_inner=50, num_outer=50)
        >>> candidates = ep.random_candidates(jax.random.key(1), 3)
        >>> best, losses = ep.select_parameters(jax.random.key(0), incoming, truth, candidates, variable=1, learner=few)
        >>> losses.shape, best.noise.shape
        ((3, 2), (2,))
    """
    check_samples(incoming, beliefs, variable)
    shape, fix = candidates.noise.shape, "Use for instance grid_candidates()."
    fine = len(shape) == 1 and shape[0] > 0
    _checks.require(fine, "candidates", "must be a list of them [candidate]", f"shape {shape}", fix)
    target = incoming[variable]
    outputs = learner.targets.encode(beliefs, ratio(beliefs, target, improper=learner.improper), target)
    points, moments = learner.representation.points(incoming), Moments().points(incoming)
    count = outputs.shape[-1]
    keys = jax.random.split(key, count)

    def losses_of(candidate: Parameters) -> Float[Array, " out"]:
        chosen = candidate.of_outputs(count, points.dtype)
        maps = draw_maps(keys, learner, incoming, moments, chosen)
        return jax.vmap(lambda of, y, s: criterion(of(points), y, s), in_axes=(0, 1, 0))(maps, outputs, chosen.noise)

    losses = jax.jit(lambda: jax.lax.map(losses_of, candidates))()
    best = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses), axis=0)
    return jax.tree.map(lambda leaf: leaf[best], candidates), losses
