"""Messages of any factor by importance sampling: the factor is a forward sampler or a log density.

Variables are in the order of the incoming messages. For a forward sampler, the output comes first, then its inputs.
"""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.ep.gaussian import Gaussian
from kbpjax.ep.messages import Distribution
from kbpjax.ep.oracles import Oracle
from kbpjax.kernels.base import as_floats

WeightedSamples = tuple[list[Float[Array, " draw"]], Float[Array, " draw"]]
"""Values of each variable, and log weights without those of the incoming messages."""


class Factor(Checked):
    """A factor that can be sampled, with weights."""

    @abc.abstractmethod
    def draw(self, key: Key[Array, ""], num_samples: int) -> WeightedSamples:
        """Return samples of all variables [draw], with log weights [draw]."""

    __repr__ = show_fields


class ForwardSampler(Factor):
    """A directed factor x_out ~ f(. | x_in), given by a sampler of its output.

    Args:
        function: traceable function of a key and arrays of the inputs [draw] to an array of outputs [draw].
        proposals: wide proposal distributions, one for each input.

    Raises:
        ValueError: function is not a function; no proposals, or proposals that are not distributions.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> factor = ep.ForwardSampler(lambda key, z: jax.nn.sigmoid(z), (ep.Gaussian.from_moments(0.0, 200.0),))
        >>> oracle = ep.ImportanceSampling(factor, variable=1, num_samples=100_000)
        >>> belief = oracle((ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)), jax.random.key(0))
        >>> round(float(belief.mean), 1)
        0.4
    """

    function: Any
    proposals: tuple[Distribution, ...]

    def __init__(self, function: Any, proposals: Distribution | Sequence[Distribution]):
        self.function, self.proposals = _pytree(function), _distributions(proposals)

    def draw(self, key: Key[Array, ""], num_samples: int) -> WeightedSamples:
        """Return inputs drawn from the proposals and outputs from the factor, with log weights."""
        of_inputs, of_output = jax.random.split(key)
        keys = jax.random.split(of_inputs, len(self.proposals))
        inputs = [r.sample(k, num_samples) for r, k in zip(self.proposals, keys, strict=True)]
        output = self.function(of_output, *inputs)
        shape = jnp.shape(output)
        fix = "Return an array with one output per draw."
        _checks.require(shape == (num_samples,), "function", f"must return shape ({num_samples},)", shape, fix)
        log_proposal = sum(r.log_density(x) for r, x in zip(self.proposals, inputs, strict=True))
        return [output, *inputs], jnp.zeros(num_samples, inputs[0].dtype) - log_proposal


class LogDensity(Factor):
    """A factor of known log density, normalized or not.

    Args:
        function: traceable function of arrays of all variables [draw] to log densities [draw].
        proposals: wide proposal distributions, one for each variable.

    Raises:
        ValueError: function is not a function; no proposals, or proposals that are not distributions.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> near = lambda x, y: -((x - y) ** 2) / 2  # y = x + noise of variance 1
        >>> factor = ep.LogDensity(near, [ep.Gaussian.from_moments(0.0, 9.0)] * 2)
        >>> oracle = ep.ImportanceSampling(factor, variable=1, num_samples=100_000)
        >>> messages = ep.Gaussian.from_moments(0.0, 1.0), ep.Gaussian.from_moments(3.0, 2.0)
        >>> round(float(oracle(messages, jax.random.key(0)).mean), 1)
        1.5
    """

    function: Any
    proposals: tuple[Distribution, ...]

    def __init__(self, function: Any, proposals: Distribution | Sequence[Distribution]):
        self.function, self.proposals = _pytree(function), _distributions(proposals)

    def draw(self, key: Key[Array, ""], num_samples: int) -> WeightedSamples:
        """Return variables drawn from the proposals, with log weights of the factor."""
        keys = jax.random.split(key, len(self.proposals))
        values = [r.sample(k, num_samples) for r, k in zip(self.proposals, keys, strict=True)]
        log_factor = self.function(*values)
        shape, fix = jnp.shape(log_factor), "Return a log density for each draw."
        _checks.require(shape == (num_samples,), "function", f"must return shape ({num_samples},)", shape, fix)
        return values, log_factor - sum(r.log_density(x) for r, x in zip(self.proposals, values, strict=True))


def _pytree(function: Any) -> Any:
    _checks.require(
        callable(function), "function", "must be a function", repr(function), "Pass one that JAX can trace."
    )
    is_pytree = isinstance(function, eqx.Module | jax.tree_util.Partial)
    return function if is_pytree else jax.tree_util.Partial(function)


def _distributions(proposals: Any) -> tuple[Distribution, ...]:
    given = tuple(proposals) if isinstance(proposals, list | tuple) else (proposals,)
    fine = len(given) > 0 and all(isinstance(r, Distribution) and not jnp.shape(r.mean) for r in given)
    fix = "Pass for instance (Gaussian.from_moments(0.0, 200.0),)."
    _checks.require(fine, "proposals", "must be single distributions, one for each variable drawn", repr(given), fix)
    return given


class ImportanceSampling(Oracle):
    """Beliefs by self-normalized importance sampling: draws of the factor with weights prod_V m_V(x_V) / proposal.

    Args:
        factor: `ForwardSampler` or `LogDensity`.
        variable: index, among the incoming messages, of the variable whose belief is computed.
        num_samples: number of draws.

    Raises:
        ValueError: num_samples < 1; variable < 0; another number of messages than variables (when called).

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> oracle = ep.ImportanceSampling(ep.logistic_sampler(), variable=1, num_samples=100_000)
        >>> messages = ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)
        >>> belief, effective = oracle.weigh(messages, jax.random.key(0))
        >>> round(float(belief.mean), 1), 1_000 < float(effective) < 100_000  # most weights are close to 0
        (0.4, True)
    """

    factor: Factor
    variable: int = eqx.field(static=True, converter=_checks.whole)
    num_samples: int = eqx.field(static=True, converter=_checks.whole, default=500_000)

    def __check_init__(self) -> None:
        _checks.require_count("num_samples", self.num_samples)

    @property
    def batch_size(self) -> int:
        """Number of messages with 200,000 draws in total."""
        return max(1, 200_000 // self.num_samples)

    def __call__(self, incoming: tuple[Distribution, ...], key: Key[Array, ""]) -> Distribution:
        """Return the belief; NaN, or with variance 0, if almost all weights are 0."""
        return self.weigh(incoming, key)[0]

    @_checks.skip_value_checks()  # a belief of no draws is NaN
    def weigh(self, incoming: tuple[Distribution, ...], key: Key[Array, ""]) -> tuple[Distribution, Float[Array, ""]]:
        """Return the belief and the effective sample size (sum w)^2 / sum w^2."""
        values, log_weights = self.factor.draw(key, self.num_samples)
        fix = "Pass one message per variable of the factor, that of the output first."
        rule = f"must be {len(values)} messages"
        ok = len(incoming) == len(values) and self.variable < len(values)
        _checks.require(ok, "incoming", rule, f"{len(incoming)}, with variable={self.variable}", fix)
        for message, x in zip(incoming, values, strict=True):
            log_weights = log_weights + message.log_density(as_floats(x))
        log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
        weights = jax.nn.softmax(log_weights)
        belief = type(incoming[self.variable]).project(values[self.variable], weights)
        return belief, 1 / jnp.sum(weights**2)


def _logistic(key: Key[Array, ""], z: Float[Array, " draw"]) -> Float[Array, " draw"]:
    del key
    p = jax.nn.sigmoid(z)
    ends = jnp.finfo(p.dtype)
    return jnp.clip(p, ends.tiny, 1 - ends.epsneg)


@public
def logistic_sampler() -> ForwardSampler:
    """Return the logistic factor p = 1 / (1 + exp(-z)) as a forward sampler, with the paper's proposal N(0, 200).

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> (p, z), log_weights = ep.logistic_sampler().draw(jax.random.key(0), 5)
        >>> bool(abs(p - jax.nn.sigmoid(z)).max() < 1e-6), log_weights.shape
        (True, (5,))
    """
    return ForwardSampler(_logistic, (Gaussian.from_moments(0.0, 200.0),))
