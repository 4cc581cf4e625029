"""Message operators: Bayesian linear regressions on random features of incoming messages (KJIT).

Jitkrittum et al. (2015), "Kernel-Based Just-In-Time Learning for Passing Expectation Propagation Messages". A tuple of
incoming messages becomes a point. Each output of the message has its own two-stage features of that point and its own
regression, whose log predictive variance measures the uncertainty.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import by_value, show_fields
from kbpjax._public import Checked, public
from kbpjax.ep.messages import Distribution, ImproperHandling, MeanPreserving, ratio
from kbpjax.ep.parameters import Parameters
from kbpjax.ep.regression import BayesianRegression, fit_regression
from kbpjax.ep.representations import Incoming, Moments, Representation
from kbpjax.ep.targets import RelativeBelief, Targets
from kbpjax.features import TwoStage
from kbpjax.kernels import median_embedding


class Learner(Checked):
    """Options of a message operator.

    Args:
        num_inner: number of features of the first stage, which embed messages.
        num_outer: number of features of the second stage, the Gaussian kernel between embeddings; accuracy depends more
            on these.
        noise: variance of the regression's noise, > 0; the smallest possible predictive variance.
        width_scale: number > 0; the squared width of the Gaussian kernel is this times the median squared distance.
        targets: regression targets: `RelativeBelief()`, or the paper's `AbsoluteBelief()` or `Message()`.
        improper: the message to send if the ratio of belief and incoming message is improper.
        representation: representation of messages as points: `Moments()`, `Exact()` or `Draws()`.

    Raises:
        ValueError: an argument out of range.

    Examples:
        >>> from kbpjax import ep
        >>> ep.Learner(num_inner=100, num_outer=200).num_outer
        200
    """

    num_inner: int = eqx.field(static=True, default=300, converter=_checks.whole)
    num_outer: int = eqx.field(static=True, default=500, converter=_checks.whole)
    noise: float = eqx.field(static=True, default=1e-4)
    width_scale: float = eqx.field(static=True, default=0.5)
    targets: Targets = RelativeBelief()
    improper: ImproperHandling = MeanPreserving()
    representation: Representation = Moments()

    def __check_init__(self) -> None:
        _checks.require_count("num_inner", self.num_inner)
        _checks.require_count("num_outer", self.num_outer)
        _checks.require_number("noise", self.noise, above=0)
        _checks.require_number("width_scale", self.width_scale, above=0)

    @property
    def parameters(self) -> Parameters:
        """The kernel and noise parameters, the same for all outputs."""
        return Parameters(self.width_scale, 1.0, self.noise)

    __repr__ = show_fields


class Buffer(eqx.Module):
    """The initial mini-batch of an untrained operator.

    Attributes:
        points: points of the messages [initial, row, coordinate].
        moments: means and variances [initial, 2, coordinate], for the median heuristic.
        outputs: regression targets from the oracle [initial, out].
        count: number of stored samples [].
        keys: random keys of the features of each output [out].
    """

    points: Float[Array, "initial row coordinate"]
    moments: Float[Array, "initial 2 coordinate"]
    outputs: Float[Array, "initial out"]
    count: Int[Array, ""]
    keys: Key[Array, " out"]

    @property
    def full(self) -> Bool[Array, ""]:
        """Whether the mini-batch is complete, and so the operator is trained."""
        return self.count >= len(self.points)

    __repr__ = show_fields


class Operator(Checked):
    """A regression from incoming messages to an outgoing one, with its uncertainty; a pytree that can be saved.

    Attributes:
        maps: features of each output (leaves [out, ...]).
        regressions: regression of each output (leaves [out, ...]).
        thresholds: log predictive variances at and above which the oracle is queried [out].
        buffer: the initial mini-batch; None: the operator was trained by `learn`.
        learner: options of the operator.
        families: families of the incoming messages.
        variable: index, among them, of the variable that receives the outgoing message.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> incoming = ep.Beta(jnp.full(50, 2.0), jnp.ones(50)), ep.Gaussian(jnp.ones(50), jnp.linspace(-3.0, 3.0, 50))
        >>> learn = jax.jit(ep.learn, static_argnames="variable")
        >>> operator = learn(jax.random.key(0), incoming, jax.jit(ep.LogisticToZ())(incoming), variable=1)

        >>> bool(operator.trained), operator.variable, [family.__name__ for family in operator.families]
        (True, 1, ['Beta', 'Gaussian'])
        >>> operator.thresholds.tolist()  # of the mean and of the log variance
        [-8.5, -8.5]
    """

    maps: TwoStage
    regressions: BayesianRegression
    thresholds: Float[Array, " out"]
    buffer: Buffer | None
    learner: Learner
    families: tuple[type[Distribution], ...] = eqx.field(static=True)
    variable: int = eqx.field(static=True, converter=_checks.whole)

    @property
    def trained(self) -> Bool[Array, ""]:
        """Whether the operator can predict."""
        return jnp.asarray(True) if self.buffer is None else self.buffer.full

    __repr__ = show_fields


@by_value
class Prediction(NamedTuple):
    """Predictions of an operator for incoming messages [*batch].

    Attributes:
        belief: belief of the variable.
        message: message to the variable.
        log_variance: log predictive variances of the outputs [*batch, out].

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> incoming = ep.Beta(jnp.full(50, 2.0), jnp.ones(50)), ep.Gaussian(jnp.ones(50), jnp.linspace(-3.0, 3.0, 50))
        >>> learn = jax.jit(ep.learn, static_argnames="variable")
        >>> operator = learn(jax.random.key(0), incoming, jax.jit(ep.LogisticToZ())(incoming), variable=1)

        >>> near = ep.predict(operator, incoming)
        >>> near.belief.mean.shape, near.message.mean.shape, near.log_variance.shape
        ((50,), (50,), (50, 2))
        >>> far = incoming[0], ep.Gaussian(jnp.ones(50), jnp.full(50, 20.0))
        >>> bool(near.log_variance.max() < ep.predict(operator, far).log_variance.min())
        True
    """

    belief: Distribution
    message: Distribution
    log_variance: Array


@public
def learn(
    key: Key[Array, ""],
    incoming: Incoming,
    beliefs: Distribution,
    *,
    variable: int,
    threshold: Numbers = -8.5,
    learner: Learner = Learner(),
    parameters: Parameters | None = None,
) -> Operator:
    """Return an operator trained on a batch of messages and an oracle's beliefs.

    Args:
        key: random key of the features.
        incoming: messages [sample].
        beliefs: beliefs of the variable [sample].
        variable: its index among the incoming messages.
        threshold: as in `init_operator`.
        learner: options of the operator.
        parameters: kernel and noise parameters, for all outputs or per output [out], for instance of `select`; None:
            the learner's.

    Raises:
        ValueError: as `init_operator`; improper messages or beliefs, or not one per sample.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> z = ep.Gaussian.from_moments(jnp.linspace(-3.0, 3.0, 200), jnp.ones(200))
        >>> incoming = ep.Beta(2.0 * jnp.ones(200), jnp.ones(200)), z
        >>> truth = ep.logistic_integrals(*incoming).z
        >>> operator = ep.learn(jax.random.key(0), incoming, truth, variable=1)
        >>> bool(ep.kl(truth, ep.predict(operator, incoming).belief).max() < 1e-3)
        True
    """
    check_samples(incoming, beliefs, variable)
    target = incoming[variable]
    message = ratio(beliefs, target, improper=learner.improper)
    outputs = learner.targets.encode(beliefs, message, target)
    num_outputs = outputs.shape[-1]
    points, moments = learner.representation.points(incoming), Moments().points(incoming)
    thresholds = as_thresholds(threshold, num_outputs, points.dtype)
    chosen = (learner.parameters if parameters is None else parameters).of_outputs(num_outputs, points.dtype)
    maps = draw_maps(jax.random.split(key, num_outputs), learner, incoming, moments, chosen)
    regressions = fit_maps(maps, points, outputs, chosen.noise)
    families = tuple(type(message) for message in incoming)
    return Operator(maps, regressions, thresholds, None, learner, families, variable)


@public
def predict(operator: Operator, incoming: Incoming) -> Prediction:
    """Return predictions for a batch [sample] of incoming messages, without oracle queries.

    Args:
        operator: a trained operator; predictions of an untrained one are NaN.
        incoming: messages [sample].

    Raises:
        ValueError: messages of other families than the operator's.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> incoming = ep.Beta(jnp.full(50, 2.0), jnp.ones(50)), ep.Gaussian(jnp.ones(50), jnp.linspace(-3.0, 3.0, 50))
        >>> learn = jax.jit(ep.learn, static_argnames="variable")
        >>> operator = learn(jax.random.key(0), incoming, jax.jit(ep.LogisticToZ())(incoming), variable=1)

        >>> new = ep.Beta(jnp.full(1, 2.0), jnp.ones(1)), ep.Gaussian(jnp.ones(1), jnp.full(1, 0.5))
        >>> belief = jax.jit(ep.predict)(operator, new).belief
        >>> bool(ep.kl(jax.jit(ep.LogisticToZ())(new), belief)[0] < 1e-3)
        True
    """
    names = [[family.__name__ for family in of] for of in (operator.families, map(type, incoming))]
    fix = "Pass messages in the order of `operator.families`."
    _checks.require(names[0] == names[1], "incoming", f"must be {names[0]}", names[1], fix)
    learner = operator.learner
    points = learner.representation.points(incoming)
    outputs, variances = jax.vmap(_predict_one, in_axes=(0, 0, None), out_axes=-1)(
        operator.maps, operator.regressions, points
    )
    outputs, variances = (jnp.where(operator.trained, of, jnp.nan) for of in (outputs, variances))
    with _checks.skip_value_checks():  # NaN before training
        belief, message = learner.targets.decode(outputs, incoming[operator.variable], learner.improper)
    return Prediction(belief, message, jnp.log(variances))


def draw_maps(
    keys: Key[Array, " out"], learner: Learner, incoming: Incoming, moments: Array, parameters: Parameters
) -> TwoStage:
    """Return random features of all outputs; `moments` [sample, 2, coordinate] set the kernel widths."""
    bandwidths, width = median_embedding(moments)
    rounding = 10 * jnp.finfo(width.dtype).eps ** 0.5
    width = jnp.where(width > rounding, width, 1)  # if over half of the pairs are equal; embeddings have norms below 1

    def one(key: Key[Array, ""], of: Parameters) -> TwoStage:
        inner, outer = jax.random.split(key)
        first = learner.representation.draw(inner, learner.num_inner, incoming, of.bandwidth_scale**0.5 * bandwidths)
        return TwoStage.draw(outer, learner.num_outer, first, of.width_scale**0.5 * width)

    return jax.vmap(one)(keys, parameters)


def fit_maps(maps: TwoStage, points: Array, outputs: Array, noise: Array) -> BayesianRegression:
    """Fit the regressions of all outputs."""
    return jax.vmap(lambda of, y, s: fit_regression(of(points), y, s), in_axes=(0, 1, 0))(maps, outputs, noise)


def _predict_one(features: TwoStage, regression: BayesianRegression, points: Array) -> tuple[Array, Array]:
    return regression.predict(features(points))


def as_thresholds(threshold: Numbers, num_outputs: int, kind: Any) -> Float[Array, " out"]:
    """Check thresholds, and return one for each output."""
    given = jnp.asarray(threshold, kind)
    fits = given.shape in ((), (num_outputs,))
    fix = "Pass one number for all outputs, or one for each."
    _checks.require(fits, "threshold", f"must be one number or {num_outputs} of them", f"shape {given.shape}", fix)
    ok = _checks.is_traced(given) or not bool(jnp.isnan(given).any())
    _checks.require(ok, "threshold", "must not be NaN", "NaN", fix)
    return jnp.broadcast_to(given, (num_outputs,))


def check_incoming(incoming: Incoming, variable: int) -> None:
    """Raise ValueError unless `incoming` is a tuple of messages and `variable` an index of it."""
    kinds = [type(message).__name__ for message in incoming]
    fine = len(incoming) > 0 and all(isinstance(message, Distribution) for message in incoming)
    _checks.require(fine, "incoming", "must be a tuple of messages", kinds, "Pass for instance (Beta, Gaussian).")
    inside = isinstance(variable, int) and 0 <= variable < len(incoming)
    rule, fix = f"must be an index of {len(incoming)} messages", "Count them from 0."
    _checks.require(inside, "variable", rule, repr(variable), fix)


def check_samples(incoming: Incoming, beliefs: Distribution, variable: int) -> None:
    """Raise ValueError unless messages and beliefs are valid training samples."""
    check_incoming(incoming, variable)
    shapes = [jnp.shape(message.mean) for message in incoming]
    fine = len(shapes[0]) == 1 and len(set(shapes)) == 1
    _checks.require(fine, "incoming", "must be messages of one shape [sample]", shapes, "Give one for each sample.")
    shape, fix = jnp.shape(beliefs.mean), "Give one for each sample."
    _checks.require(shape == shapes[0], "beliefs", f"must have shape {shapes[0]}", shape, fix)
    for argument, of in (("beliefs", beliefs), *(("incoming", message) for message in incoming)):
        proper = of.proper
        if not _checks.is_traced(proper):
            bad, fix = int(np.sum(~np.asarray(proper))), "Leave out samples for which the oracle failed."
            _checks.require(bad == 0, argument, "must be distributions", f"{bad} that are not", fix)
