"""Expectation propagation for precisions with a compound gamma prior: one message for each problem of a stream."""

import jax
from jaxtyping import Array, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.ep.gamma import Gamma
from kbpjax.ep.just_in_time import Record, scan
from kbpjax.ep.linear_model import asked
from kbpjax.ep.messages import as_parameters
from kbpjax.ep.operators import Operator
from kbpjax.ep.oracles import CompoundGamma, Oracle


@public
def precision_posteriors(
    counts: Numbers,
    squares: Numbers,
    *,
    oracle: Oracle | None = None,
    operator: Operator | None = None,
    key: Key[Array, ""] | None = None,
) -> tuple[Gamma, Operator | None, Record]:
    """Infer the precisions t of normal samples x_j ~ N(0, 1 / t), with t ~ Gamma(shape, r), r ~ Gamma(...).

    Each problem of the stream is one invocation: the incoming message is Gamma(1 + count / 2, squares / 2), and the
    posterior is its product with the factor's message.

    Args:
        counts: numbers of samples, >= 1 [problem].
        squares: sums of their squares, > 0 [problem].
        oracle: computes beliefs of t; None: `CompoundGamma()`, with all parameters 1.
        operator: as in `linear_model`; carried from problem to problem.
        key: random key of sampling oracles; None: `jax.random.key(0)`.

    Returns:
        Posteriors [problem], the operator, and the record [problem].

    Raises:
        ValueError: counts or squares not > 0.

    Examples:
        >>> from kbpjax import ep
        >>> posterior, _, _ = ep.precision_posteriors([100.0], [25.0])
        >>> round(float(posterior.mean[0]), 1)
        4.0
    """
    number, total = as_parameters("counts, squares", counts, squares)
    some = number.ndim == 1 and number.size > 0
    _checks.require(some, "counts", "must be a list of numbers", f"shape {number.shape}", "Pass [problem].")
    for argument, values in (("counts", number), ("squares", total)):
        fine = _checks.is_traced(values) or bool((values > 0).all())
        _checks.require(fine, argument, "must be > 0", "one that is not", "Leave out problems without samples.")
    incoming = Gamma(1 + number / 2, total / 2)
    key = jax.random.key(0) if key is None else key
    return _stream(incoming, CompoundGamma() if oracle is None else oracle, operator, key)


@jax.jit
def _stream(
    incoming: Gamma, oracle: Oracle, operator: Operator | None, key: Key[Array, ""]
) -> tuple[Gamma, Operator | None, Record]:
    keys = jax.random.split(key, len(incoming.rate))
    if operator is None:
        record = jax.lax.map(lambda of: asked(oracle, (of[0],), of[1]), (incoming, keys), batch_size=oracle.batch_size)
    else:
        operator, record = scan(keys, operator, (incoming,), oracle)
    message = record.message
    assert isinstance(message, Gamma)
    return incoming * message, operator, record
