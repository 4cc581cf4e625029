"""Messages of expectation propagation: the interface of distributions, products, ratios and KL divergences.

A message is an unnormalized member of an exponential family, exp(<natural parameters, statistics>). Products of
messages add natural parameters and ratios subtract them, so a ratio may be improper (`ratio` handles that). Leading
axes are batches: one object holds one message or many.
"""

import abc
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.kernels.base import as_floats

if TYPE_CHECKING:
    from typing import Self as Self
else:
    Self = TypeVar("Self")  # jaxtyping's runtime checker does not support Self


class Distribution(Checked):
    """A member of an exponential family; fields are arrays with the same leading axes. Base class of custom families.

    `outputs` and `from_outputs` convert a distribution to and from the unbounded numbers that a regression predicts.
    `project` fits a member to weighted samples, by minimizing KL(samples || member).

    Examples:
        >>> from kbpjax import ep
        >>> for p in (ep.Gaussian.from_moments(1.0, 2.0), ep.Beta(2.0, 2.0), ep.Gamma(3.0, 1.0)):
        ...     again = p.from_outputs(p.outputs)
        ...     same, nothing = abs(float(ep.kl(p, again))) < 1e-5, p.uniform()
        ...     print(type(p).__name__, float(p.mean), float((p * nothing).mean), same)
        Gaussian 1.0 1.0 True
        Beta 0.5 0.5 True
        Gamma 3.0 3.0 True
    """

    requires_finite = True

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, "..."]:
        """The mean."""

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Array, "..."]:
        """The variance."""

    @property
    @abc.abstractmethod
    def outputs(self) -> Float[Array, "*batch out"]:
        """The unbounded numbers that a regression predicts."""

    @classmethod
    @abc.abstractmethod
    def from_outputs(cls, outputs: Float[Array, "*batch out"]) -> Self:
        """Return the member with these `outputs`."""

    @abc.abstractmethod
    def relative_outputs(self, reference: Any) -> Float[Array, "*batch out"]:
        """Return the numbers that a regression predicts, in units of another member."""

    @classmethod
    @abc.abstractmethod
    def from_relative(cls, outputs: Float[Array, "*batch out"], reference: Any) -> Self:
        """Return the member with these `relative_outputs`."""

    @abc.abstractmethod
    def __mul__(self, other: Any) -> Self:
        """Return the product."""

    @abc.abstractmethod
    def __truediv__(self, other: Any) -> Self:
        """Return the ratio, which may be improper."""

    @abc.abstractmethod
    def exceeds(self, other: Any) -> Bool[Array, "..."]:
        """Return whether the ratio to another member is a valid message."""

    @abc.abstractmethod
    def keep_mean(self, other: Any) -> Self:
        """Return a message whose product with another has the mean of this."""

    @abc.abstractmethod
    def uniform(self) -> Self:
        """Return the uniform message, of the same shape."""

    @abc.abstractmethod
    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the logarithm of the normalized density."""

    @classmethod
    @abc.abstractmethod
    def project(cls, x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]) -> Self:
        """Return the member that minimizes KL(samples || member), for samples with weights that sum to 1."""

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "draw ..."]:
        """Return samples; needed for importance sampling and `Draws`."""
        name, fix = type(self).__name__, "Give the class a method sample(key, num_samples)."
        raise ValueError(f"{name}: must have a sampler to be drawn from; got a family without one. {fix}")

    def characteristic(self, frequencies: Float[Array, " feature"]) -> tuple[Array, Array]:
        """Return E cos(w x) and E sin(w x) of a single distribution [feature]; needed for `Exact`."""
        name, fix = type(self).__name__, "Represent messages by Moments() or Draws(), or give it the method."
        raise ValueError(f"{name}: must have characteristic(frequencies) for Exact(); got a family without it. {fix}")

    @abc.abstractmethod
    def kl(self, other: Any) -> Float[Array, "..."]:
        """Return KL(self || other), in nats."""

    @property
    def proper(self) -> Bool[Array, "..."]:
        """Whether mean and variance are those of a distribution: finite, and the variance > 0."""
        return jnp.isfinite(self.mean) & jnp.isfinite(self.variance) & (self.variance > 0)

    __repr__ = show_fields


class TwoPositive(Distribution):
    """A family of two positive parameters; regressions predict their logarithms."""

    @property
    def outputs(self) -> Float[Array, "*batch out"]:
        """The logarithms of both parameters [*batch, 2]."""
        return jnp.log(jnp.stack(jax.tree.leaves(self), axis=-1))

    @classmethod
    def from_outputs(cls, outputs: Float[Array, "*batch out"]) -> Self:
        """Return the members with these logarithms of parameters [*batch, 2]."""
        require_two(outputs)
        made = cls.trusted(jnp.exp(outputs[..., 0]), jnp.exp(outputs[..., 1]))
        return _checks.finite_result("outputs", made)

    def relative_outputs(self, reference: Self) -> Float[Array, "*batch out"]:
        """Return the logarithms of the ratios of both parameters [*batch, 2]."""
        return self.outputs - reference.outputs

    @classmethod
    def from_relative(cls, outputs: Float[Array, "*batch out"], reference: Self) -> Self:
        """Invert `relative_outputs`."""
        require_two(outputs)
        return cls.from_outputs(outputs + reference.outputs)


def require_two(outputs: Float[Array, "*batch out"]) -> None:
    """Raise ValueError unless the outputs of a family of two parameters have shape [*batch, 2]."""
    _checks.require_finite("outputs", outputs)
    ok, fix = outputs.ndim > 0 and outputs.shape[-1] == 2, "Pass two numbers for each member."
    _checks.require(ok, "outputs", "must have shape [*batch, 2]", f"shape {outputs.shape}", fix)


Member = TypeVar("Member", bound=Distribution)


def as_parameters(argument: str, *values: Numbers) -> list[Float[Array, "..."]]:
    """Return numbers or arrays as arrays of one shape and dtype; arrays determine the dtype, Python numbers do not."""
    numbers = [isinstance(value, bool | int | float) for value in values]
    arrays = [as_floats(_checks.as_array(argument, value)) for value in values]
    try:
        shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        got = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(f"{argument}: must have shapes that broadcast; got {got}. Give arrays of one shape.") from None
    kinds = [array.dtype for array, number in zip(arrays, numbers, strict=True) if not number]
    kind = jnp.result_type(*kinds) if kinds else jnp.result_type(float)
    return [jnp.broadcast_to(array.astype(kind), shape) for array in arrays]


IMPROPER = "Only ratios of messages may be improper; make those with ratio."
"""Advice for parameters of a message that are not > 0."""


def require_positive(argument: str, values: Any, *, fix: str = IMPROPER) -> None:
    """Raise ValueError unless all numbers are > 0; skipped under tracing."""
    if not _checks.is_traced(values):
        least = float(np.min(np.asarray(values), initial=np.inf))  # NumPy, so that nothing is traced
        _checks.require(least > 0, argument, "must be > 0", f"{least} as the least", fix)


def require_samples(x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]) -> None:
    """Raise ValueError unless there are finite samples and a weight for each."""
    _checks.require_finite("x", x)
    _checks.require_finite("weights", weights)
    ok, fix = x.shape == weights.shape and x.size > 0, "Pass a weight for each sample."
    _checks.require(ok, "x, weights", "must have one shape, not empty", f"{x.shape} and {weights.shape}", fix)


def sample_moments(
    x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Return mean and variance of samples with weights that sum to 1."""
    mean = jnp.sum(weights * x, axis=-1, keepdims=True)
    return mean[..., 0], jnp.sum(weights * (x - mean) ** 2, axis=-1)


class ImproperHandling(Checked):
    """The message to send if the ratio of the belief and the incoming message is improper.

    Examples:
        >>> from kbpjax import ep
        >>> class Flat(ep.ImproperHandling):  # a wide message instead of a uniform one
        ...     def __call__(self, belief, incoming):
        ...         return ep.Gaussian.from_moments(0.0, 100.0)
        >>> wide, narrow = ep.Gaussian.from_moments(0.0, 2.0), ep.Gaussian.from_moments(0.0, 1.0)
        >>> round(float(ep.ratio(wide, narrow, improper=Flat()).variance), 3)
        100.0
    """

    @abc.abstractmethod
    def __call__(self, belief: Member, incoming: Member) -> Member:
        """Return the message to send."""

    __repr__ = show_fields


class MeanPreserving(ImproperHandling):
    """Send the least informative message that keeps the mean of the belief.

    Examples:
        >>> from kbpjax import ep
        >>> belief, incoming = ep.Gaussian.from_moments(1.0, 2.0), ep.Gaussian.from_moments(0.0, 1.0)
        >>> sent = ep.ratio(belief, incoming, improper=ep.MeanPreserving())
        >>> float((sent * incoming).mean), float((sent * incoming).variance)
        (1.0, 1.0)
    """

    def __call__(self, belief: Member, incoming: Member) -> Member:
        """Return the message to send."""
        return belief.keep_mean(incoming)


class Uniform(ImproperHandling):
    """Send the uniform message.

    Examples:
        >>> from kbpjax import ep
        >>> belief, incoming = ep.Gaussian.from_moments(1.0, 2.0), ep.Gaussian.from_moments(0.0, 1.0)
        >>> sent = ep.ratio(belief, incoming, improper=ep.Uniform())
        >>> float((sent * incoming).mean), float((sent * incoming).variance)
        (0.0, 1.0)
    """

    def __call__(self, belief: Member, incoming: Member) -> Member:
        """Return the message to send."""
        return incoming.uniform()


@public
def ratio(belief: Member, incoming: Member, *, improper: ImproperHandling = MeanPreserving()) -> Member:
    """Return the outgoing message of a factor: its belief divided by the incoming message.

    If the belief is wider than the incoming message (Gaussian: smaller precision; Beta, Gamma: a smaller parameter),
    the ratio is improper, and `improper` determines the message.

    Args:
        belief: the projected belief [*batch].
        incoming: the message from the variable [*batch], of the same family.
        improper: `MeanPreserving()` or `Uniform()`.

    Raises:
        ValueError: different families.

    Examples:
        >>> from kbpjax.ep import Gaussian, ratio
        >>> sent = ratio(Gaussian.from_moments(1.0, 2.0), Gaussian.from_moments(0.0, 1.0))
        >>> float(sent.precision), float(sent.shift)
        (0.0, 1.0)
    """
    same, names = type(belief) is type(incoming), f"{type(belief).__name__} and {type(incoming).__name__}"
    _checks.require(same, "belief, incoming", "must be of one family", names, "Project the belief to that of incoming.")
    fine = belief.exceeds(incoming)
    return jax.tree.map(lambda a, b: jnp.where(fine, a, b), belief / incoming, improper(belief, incoming))


@public
def kl(p: Member, q: Member) -> Float[Array, "..."]:
    """Return the Kullback-Leibler divergence KL(p || q) in nats [*batch].

    Args:
        p: distributions [*batch].
        q: distributions [*batch], of the same family.

    Raises:
        ValueError: different families.

    Examples:
        >>> from kbpjax.ep import Gaussian, kl
        >>> float(kl(Gaussian.from_moments(0.0, 1.0), Gaussian.from_moments(1.0, 1.0)))
        0.5
    """
    names = f"{type(p).__name__} and {type(q).__name__}"
    _checks.require(type(p) is type(q), "p, q", "must be of one family", names, "Project one to the other's.")
    return p.kl(q)
