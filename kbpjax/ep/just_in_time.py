"""Just-in-time learning (KJIT): use the operator's message if its uncertainty is low, else query the oracle and learn.

The uncertainty is the log predictive variance of each output, compared with the operator's thresholds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import by_value
from kbpjax._public import public
from kbpjax.ep.messages import Distribution, ratio
from kbpjax.ep.operators import (
    Buffer,
    Learner,
    Operator,
    as_thresholds,
    check_incoming,
    draw_maps,
    fit_maps,
    predict,
)
from kbpjax.ep.oracles import Oracle
from kbpjax.ep.regression import BayesianRegression
from kbpjax.ep.representations import Incoming, Moments
from kbpjax.features import TwoStage

State = TypeVar("State")
FEW, MANY = 8, 128
"""Block sizes of `scan`, after an oracle query and otherwise: predictions beyond the next query are discarded."""


@by_value
class Record(NamedTuple):
    """The record of an invocation; with `jax.lax.scan`, leading axes are invocations.

    Attributes:
        incoming: the incoming messages.
        message: the outgoing message.
        log_variance: log predictive variances [out]; NaN before training.
        asked: whether the oracle was queried.
        failed: whether the oracle's output was not a valid distribution. It is then excluded from training, and the
            message is uniform.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> record = ep.logistic_regression(x, x[:, 0] > 0, num_sweeps=3).record  # [sweep, datum]
        >>> record.asked.shape, bool(record.asked.all()), bool(record.failed.any())
        ((3, 10), True, False)
        >>> record.message.mean.shape, record.incoming[1].variance.shape
        ((3, 10), (3, 10))
    """

    incoming: Incoming
    message: Distribution
    log_variance: Array
    asked: Array
    failed: Array


@public
def init_operator(
    key: Key[Array, ""],
    incoming: Incoming,
    *,
    variable: int,
    num_initial: int = 300,
    threshold: Numbers = -8.5,
    learner: Learner = Learner(),
) -> Operator:
    """Return an untrained operator: it queries the oracle for its first messages, then sets its kernel and trains.

    Args:
        key: random key of the features.
        incoming: an example of the incoming messages, single ones; only families and dtype matter.
        variable: index, among them, of the variable that receives the outgoing messages.
        num_initial: number of oracle queries before training, >= 2.
        threshold: threshold on the log predictive variance, one for all outputs or one per output. Values below log
            noise cannot be met. -inf: always query; inf: never query after training.
        learner: options of the operator.

    Raises:
        ValueError: an argument out of range; a wrong number of thresholds.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> like = (ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0))
        >>> bool(ep.init_operator(jax.random.key(0), like, variable=1).trained)
        False
    """
    _checks.require_count("num_initial", num_initial)
    _checks.require(num_initial >= 2, "num_initial", "must be at least 2", num_initial, "The kernel needs distances.")
    check_incoming(incoming, variable)
    shapes = [message.mean.shape for message in incoming]
    single, fix = (
        all(shape == () for shape in shapes),
        "Pass one of each, for instance Gaussian.from_moments(0.0, 1.0).",
    )
    _checks.require(single, "incoming", "must be single messages", f"shapes {shapes}", fix)
    target = incoming[variable]
    num_outputs = target.outputs.shape[-1]
    point = learner.representation.points(incoming)
    kind = point.dtype
    keys = jax.random.split(key, num_outputs)
    buffer = Buffer(
        jnp.zeros((num_initial, *point.shape), kind),
        jnp.zeros((num_initial, 2, len(incoming)), kind),
        jnp.zeros((num_initial, num_outputs), kind),
        jnp.asarray(0, jnp.int32),
        keys,
    )
    chosen = learner.parameters.of_outputs(num_outputs, kind)
    of_nothing = jnp.ones((3, 2, len(incoming)), kind) * jnp.arange(1, 4, dtype=kind)[:, None, None]
    maps = draw_maps(keys, learner, incoming, of_nothing, chosen)
    covariances = jnp.zeros((num_outputs, learner.num_outer, learner.num_outer), kind)
    regressions = _stacked(covariances[:, 0], covariances, chosen.noise)
    families = tuple(type(message) for message in incoming)
    return Operator(maps, regressions, as_thresholds(threshold, num_outputs, kind), buffer, learner, families, variable)


@public
def step(key: Key[Array, ""], operator: Operator, incoming: Incoming, oracle: Oracle) -> tuple[Operator, Record]:
    """Send one message: the operator's if its uncertainty is low, else the oracle's, from which the operator learns.

    Use it in the body of a `jax.lax.scan`: the oracle then costs nothing when it is not queried. Under `jax.vmap` over
    streams, the oracle and the training run for all streams whenever any stream needs them. If queries are frequent,
    loop over the streams instead.

    Args:
        key: random key of the oracle.
        operator: the operator, trained or not.
        incoming: single messages.
        oracle: computes beliefs of the same variable.

    Returns:
        The operator, updated if the oracle was queried, and the record of the invocation.

    Raises:
        ValueError: an oracle of another variable; messages of other families, or of another dtype.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> like, few = (ep.Beta(2.0, 1.0), ep.Gaussian(1.0, 0.0)), ep.Learner(num_inner=20, num_outer=20)
        >>> z = ep.Gaussian(jnp.ones(8), jnp.arange(8.0) % 5)  # five messages, of which three come twice
        >>> def stream(key):
        ...     operator = ep.init_operator(key, like, variable=1, num_initial=5, threshold=-7.0, learner=few)
        ...     step = lambda operator, z: ep.step(key, operator, (like[0], z), ep.LogisticToZ())
        ...     return jax.lax.scan(step, operator, z)
        >>> operator, record = jax.jit(stream)(jax.random.key(0))
        >>> record.asked.tolist()  # repeated messages need no query
        [True, True, True, True, True, False, False, False]
    """
    fix = "Make operator and oracle for the same variable."
    same = oracle.variable == operator.variable
    _checks.require(same, "oracle", f"must answer for variable {operator.variable}", oracle.variable, fix)
    kinds = operator.thresholds.dtype, incoming[operator.variable].mean.dtype
    fix = "Convert the messages, or make a new operator in their precision."
    _checks.require(kinds[0] == kinds[1], "incoming", f"must be {kinds[0]}, as the operator", kinds[1], fix)
    guess = predict(operator, jax.tree.map(lambda leaf: leaf[None], incoming))
    message, log_variance = jax.tree.map(lambda leaf: leaf[0], (guess.message, guess.log_variance))
    asked = ~_sure(operator, message, log_variance)
    state = operator, message, jnp.asarray(False)
    operator, message, failed = _when(asked, lambda s: _query(s[0], incoming, oracle, key), state)
    return operator, Record(incoming, message, log_variance, asked, failed)


@public
def scan(
    keys: Key[Array, " message"], operator: Operator, incoming: Incoming, oracle: Oracle
) -> tuple[Operator, Record]:
    """Send a sequence of messages that is known in advance; equivalent to `step` in a `jax.lax.scan`, but faster.

    It predicts a block of messages at once and keeps those before the first uncertain one. It queries the oracle for
    that one, learns, and continues after it. Matrix products over blocks take a fraction of the time per message.

    Args:
        keys: random keys of the oracle [message].
        operator: the operator, trained or not.
        incoming: messages [message].
        oracle: computes beliefs of the same variable.

    Returns:
        The operator, and the record [message].

    Raises:
        ValueError: as `step`; no messages.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> like, few = (ep.Beta(2.0, 1.0), ep.Gaussian(1.0, 0.0)), ep.Learner(num_inner=20, num_outer=20)
        >>> z = ep.Gaussian(jnp.ones(8), jnp.arange(8.0) % 5)  # five messages, of which three come twice
        >>> def stream(key):
        ...     operator = ep.init_operator(key, like, variable=1, num_initial=5, threshold=-7.0, learner=few)
        ...     messages = ep.Beta(jnp.full(8, 2.0), jnp.ones(8)), z
        ...     return ep.scan(jax.random.split(key, 8), operator, messages, ep.LogisticToZ())
        >>> operator, record = jax.jit(stream)(jax.random.key(0))
        >>> record.asked.tolist()  # repeated messages need no query
        [True, True, True, True, True, False, False, False]
    """
    count = len(keys)
    _checks.require(count > 0, "keys", "must be one for each message, and one at least", "none", "Send something.")
    shapes = jax.eval_shape(lambda: step(keys[0], operator, _one(incoming, 0), oracle)[1])
    record = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)

    def body(carry: tuple[Operator, Record, Array, Array]) -> tuple[Operator, Record, Array, Array]:
        operator, record, done, careful = carry
        progress = record, done, jnp.asarray(False)
        progress = _when(careful, lambda s: _predict_block(operator, s, incoming, FEW), progress)
        record, index, unsure = _when(~careful, lambda s: _predict_block(operator, s, incoming, MANY), progress)
        query = lambda s: _query_at(s[0], s[1], incoming, oracle, keys, index)
        operator, record = _when(unsure, query, (operator, record))
        return operator, record, index + unsure.astype(index.dtype), unsure

    state = operator, record, jnp.asarray(0), ~operator.trained
    return jax.lax.while_loop(lambda carry: carry[2] < count, body, state)[:2]


def _predict_block(
    operator: Operator, progress: tuple[Record, Array, Array], incoming: Incoming, size: int
) -> tuple[Record, Array, Array]:
    """Predict a block; return the record, the index of the first uncertain message (else the block's end), and if any.

    Predictions up to that index are written into the record.
    """
    record, done, _ = progress
    count = len(record.asked)
    size = min(size, count)
    start = jnp.minimum(done, count - size)
    block = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), incoming)
    guess = predict(operator, block)
    sure = jax.vmap(lambda m, v: _sure(operator, m, v))(guess.message, guess.log_variance)
    indices = start + jnp.arange(size)
    first = jnp.min(jnp.where(~sure & (indices >= done), indices, start + size))
    kept = (indices >= done) & (indices <= first)
    guessed = Record(block, guess.message, guess.log_variance, indices == first, jnp.zeros(size, bool))
    record = jax.tree.map(lambda whole, some: _put(whole, some, kept, start), record, guessed)
    return record, first, first < start + size


def _query_at(
    operator: Operator, record: Record, incoming: Incoming, oracle: Oracle, keys: Key[Array, " message"], index: Array
) -> tuple[Operator, Record]:
    """Query the oracle for one message; return the operator that has learned, and the record with the message."""
    operator, message, failed = _query(operator, _one(incoming, index), oracle, keys[index])
    message = jax.tree.map(lambda leaf, new: leaf.at[index].set(new), record.message, message)
    return operator, record._replace(message=message, failed=record.failed.at[index].set(failed))


def _put(whole: Array, some: Array, kept: Array, start: Array) -> Array:
    """Return an array with a block written into it, at the kept entries."""
    before = jax.lax.dynamic_slice_in_dim(whole, start, len(some))
    chosen = jnp.where(kept.reshape(-1, *[1] * (some.ndim - 1)), some, before)
    return jax.lax.dynamic_update_slice_in_dim(whole, chosen, start, 0)


def _one(incoming: Incoming, index: Any) -> Incoming:
    return jax.tree.map(lambda leaf: leaf[index], incoming)


def _sure(operator: Operator, message: Distribution, log_variance: Array) -> Bool[Array, ""]:
    return jnp.all(log_variance < operator.thresholds) & _finite(message)


def _when(needed: Bool[Array, ""], act: Callable[[State], State], state: State) -> State:
    """Return `act(state)` if needed, else `state`: a `jax.lax.cond` in place, as a loop of one step or none.

    XLA copies the operands of a `cond`; copying an operator costs 4 to 10 times as much as a prediction.
    """
    once = lambda carry: (jnp.asarray(False), act(carry[1]))
    return jax.lax.while_loop(lambda carry: carry[0], once, (needed, state))[1]


def _query(
    operator: Operator, incoming: Incoming, oracle: Oracle, key: Key[Array, ""]
) -> tuple[Operator, Distribution, Array]:
    """Return the operator updated with an oracle query, the oracle's message, and whether the query failed."""
    learner, target = operator.learner, incoming[operator.variable]
    belief = oracle(incoming, key)
    message = ratio(belief, target, improper=learner.improper)
    outputs = learner.targets.encode(belief, message, target)
    fine = belief.proper & _finite(message) & jnp.all(jnp.isfinite(outputs))
    message = jax.tree.map(lambda a, b: jnp.where(fine, a, b), message, target.uniform())
    trained = operator.trained
    operator = _when(fine & trained, lambda o: _update(o, incoming, outputs), operator)
    if operator.buffer is not None:
        operator = _when(fine & ~trained, lambda o: _collect(o, incoming, outputs), operator)
        operator = _when(operator.trained & ~trained, lambda o: _train(o, incoming), operator)
    return operator, message, ~fine


def _update(operator: Operator, incoming: Incoming, outputs: Array) -> Operator:
    """Update the regressions of all outputs."""
    point = operator.learner.representation.points(incoming)

    def one(features: TwoStage, regression: BayesianRegression, y: Array) -> BayesianRegression:
        return regression.update(features(point[None])[0], y)

    regressions = jax.vmap(one)(operator.maps, operator.regressions, outputs)
    return eqx.tree_at(lambda o: o.regressions, operator, regressions)


def _collect(operator: Operator, incoming: Incoming, outputs: Array) -> Operator:
    """Append the outputs of an oracle query to the buffer."""
    buffer = operator.buffer
    assert buffer is not None
    index = buffer.count
    stored = Buffer(
        buffer.points.at[index].set(operator.learner.representation.points(incoming)),
        buffer.moments.at[index].set(Moments().points(incoming)),
        buffer.outputs.at[index].set(outputs),
        index + 1,
        buffer.keys,
    )
    return eqx.tree_at(lambda o: o.buffer, operator, stored)


def _train(operator: Operator, incoming: Incoming) -> Operator:
    """Set the kernel by the median heuristic on the buffer, scale the features accordingly, and fit."""
    buffer, learner = operator.buffer, operator.learner
    assert buffer is not None
    chosen = learner.parameters.of_outputs(len(operator.thresholds), buffer.points.dtype)
    maps = draw_maps(buffer.keys, learner, incoming, buffer.moments, chosen)
    regressions = fit_maps(maps, buffer.points, buffer.outputs, operator.regressions.noise)
    return eqx.tree_at(lambda o: (o.maps, o.regressions), operator, (maps, regressions))


def _finite(message: Distribution) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(message)]))


def _stacked(mean: Array, covariance: Array, noise: Array) -> BayesianRegression:
    """Return regressions with a leading axis of outputs."""
    return jax.vmap(BayesianRegression)(mean, covariance, noise)
