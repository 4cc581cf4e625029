"""One iteration at a time: `kbp.run` with `num_iters=1`, from the messages of the last one."""

from typing import Any, NamedTuple

import jax.numpy as jnp

import kbpjax as kbp
from kbpjax.inference.loopy import constant_messages


class State(NamedTuple):
    """The messages [edge, coordinate] after `count` iterations, and the last residual."""

    messages: Any
    residual: Any
    count: Any


def init(model, graph):
    """Return the state before the first iteration."""
    messages = constant_messages(model, graph)
    return State(messages, jnp.array(jnp.inf, messages.dtype), jnp.int32(0))


def step(model, graph, evidence, state, **options):
    """Return the state after one iteration."""
    solution = kbp.run(model, graph, evidence, num_iters=1, start=start(state), **options)
    return State(solution.messages, solution.residual, state.count + 1)


def start(state):
    """Return a solution with the messages of a state, which `run` starts from as they are."""
    none = jnp.asarray(state.residual)
    return kbp.Solution(state.messages, jnp.array(False), jnp.asarray(state.count), none, none[None])
