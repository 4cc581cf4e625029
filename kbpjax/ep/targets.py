"""Regression targets of an operator, and their conversion to messages."""

import abc

from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked
from kbpjax.ep.messages import Distribution, ImproperHandling, ratio


class Targets(Checked):
    """A pair of maps between the belief or message of a factor and the outputs of a regression.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax import ep
        >>> class Natural(ep.Targets):  # precision and shift of the message
        ...     def encode(self, belief, message, incoming):
        ...         return jnp.stack([message.precision, message.shift], axis=-1)
        ...
        ...     def decode(self, outputs, incoming, improper):
        ...         message = ep.Gaussian(outputs[..., 0], outputs[..., 1])
        ...         return message * incoming, message
        >>> learner = ep.Learner(targets=Natural())
    """

    @abc.abstractmethod
    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the regression outputs of a belief and outgoing message, given the variable's incoming message."""

    @abc.abstractmethod
    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: ImproperHandling
    ) -> tuple[Distribution, Distribution]:
        """Return the belief and the outgoing message of predicted outputs."""

    __repr__ = show_fields


class RelativeBelief(Targets):
    """The belief in units of the incoming message: (mean - m) / sqrt(v) and log(variance / v) for a Gaussian N(m, v).

    Not in the paper. Errors of the outputs change the outgoing message in proportion, however narrow the belief is.

    Examples:
        >>> from kbpjax import ep
        >>> belief, incoming = ep.Gaussian.from_moments(3.0, 2.0), ep.Gaussian.from_moments(0.0, 4.0)
        >>> outputs = ep.RelativeBelief().encode(belief, belief / incoming, incoming)
        >>> [round(number, 2) for number in outputs.tolist()]  # (3 - 0) / sqrt(4) and log(2 / 4)
        [1.5, -0.69]
        >>> learner = ep.Learner(targets=ep.RelativeBelief())  # the default
    """

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the belief's `relative_outputs`."""
        return belief.relative_outputs(incoming)

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: ImproperHandling
    ) -> tuple[Distribution, Distribution]:
        """Return the belief, and its ratio to the incoming message."""
        belief = type(incoming).from_relative(outputs, incoming)
        return belief, _checks.finite_result("outputs", ratio(belief, incoming, improper=improper))


class AbsoluteBelief(Targets):
    """The belief, as in the paper: mean and log variance of a Gaussian, log parameters of Beta and Gamma.

    Examples:
        >>> from kbpjax import ep
        >>> belief, incoming = ep.Gaussian.from_moments(3.0, 2.0), ep.Gaussian.from_moments(0.0, 4.0)
        >>> outputs = ep.AbsoluteBelief().encode(belief, belief / incoming, incoming)
        >>> [round(number, 2) for number in outputs.tolist()]  # mean and log variance
        [3.0, 0.69]
        >>> learner = ep.Learner(targets=ep.AbsoluteBelief())
    """

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the belief's `outputs`."""
        return belief.outputs

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: ImproperHandling
    ) -> tuple[Distribution, Distribution]:
        """Return the belief, and its ratio to the incoming message."""
        belief = type(incoming).from_outputs(outputs)
        return belief, _checks.finite_result("outputs", ratio(belief, incoming, improper=improper))


class Message(Targets):
    """The outgoing message, made proper before training, as in the paper for the compound gamma factor.

    Examples:
        >>> from kbpjax import ep
        >>> belief, incoming = ep.Gaussian.from_moments(3.0, 2.0), ep.Gaussian.from_moments(0.0, 4.0)
        >>> outputs = ep.Message().encode(belief, belief / incoming, incoming)
        >>> [round(number, 2) for number in outputs.tolist()]  # the message is N(6, 4)
        [6.0, 1.39]
        >>> learner = ep.Learner(targets=ep.Message())
    """

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the message's `outputs`."""
        return message.outputs

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: ImproperHandling
    ) -> tuple[Distribution, Distribution]:
        """Return the message times the incoming one, and the message."""
        message = type(incoming).from_outputs(outputs)
        return _checks.finite_result("outputs", message * incoming), message
