"""What the regression of an operator predicts, and how a message is made of it."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from kbpjax.ep.messages import Distribution, Improper, ratio


class Targets(eqx.Module):
    """A pair of maps between the belief or message of a factor and the outputs of a regression."""

    @abc.abstractmethod
    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the outputs to learn, of a belief, the outgoing message, and the incoming message of the variable."""

    @abc.abstractmethod
    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: Improper
    ) -> tuple[Distribution, Distribution]:
        """Return belief and outgoing message of predicted outputs."""


class RelativeBelief(Targets):
    """The belief in units of the incoming message: (mean - m) / sqrt(v) and log(variance / v) for a Gaussian N(m, v).

    Our own. An error then moves the outgoing message in proportion, however narrow the belief is.
    """

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the belief's `relative_outputs`."""
        return belief.relative_outputs(incoming)

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: Improper
    ) -> tuple[Distribution, Distribution]:
        """Return the belief, and its ratio to the incoming message."""
        belief = type(incoming).from_relative(outputs, incoming)
        return belief, ratio(belief, incoming, improper=improper)


class AbsoluteBelief(Targets):
    """The belief: mean and log variance of a Gaussian, logarithms of the parameters of Beta and Gamma (the paper's)."""

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the belief's `outputs`."""
        return belief.outputs

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: Improper
    ) -> tuple[Distribution, Distribution]:
        """Return the belief, and its ratio to the incoming message."""
        belief = type(incoming).from_outputs(outputs)
        return belief, ratio(belief, incoming, improper=improper)


class Message(Targets):
    """The outgoing message itself, made proper before it is learned; the paper has it for the compound gamma factor."""

    def encode(self, belief: Distribution, message: Distribution, incoming: Distribution) -> Float[Array, "*batch out"]:
        """Return the message's `outputs`."""
        return message.outputs

    def decode(
        self, outputs: Float[Array, "*batch out"], incoming: Distribution, improper: Improper
    ) -> tuple[Distribution, Distribution]:
        """Return the message times the incoming one, and the message."""
        message = type(incoming).from_outputs(outputs)
        return message * incoming, message
