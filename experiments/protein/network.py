"""A small bidirectional network on whole chains, as is usual for the structure of proteins."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.protein.baselines import Options, Task
from experiments.protein.data import harmonics

CROP, BATCH, WARM = 100, 64, 0.1
"""Residues of a piece that the network is trained on, pieces of a step, and the share of the steps that warm up."""


class Network(eqx.Module):
    """A layer for each residue, gated recurrent units along the chain in both directions, and a linear layer."""

    enter: eqx.nn.Linear
    gates: eqx.nn.Linear
    memory: jax.Array
    leave: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, features: int, hidden: int, dropout: float, key: jax.Array):
        one, two, three, four = jax.random.split(key, 4)
        self.enter = eqx.nn.Linear(features, hidden, key=one)
        self.gates = eqx.nn.Linear(hidden, 6 * hidden, key=two)
        self.memory = jax.random.normal(three, (2, 3 * hidden, hidden)) / hidden**0.5
        self.leave = eqx.nn.Linear(3 * hidden, 8, key=four)
        self.drop = eqx.nn.Dropout(dropout)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return the outputs of the residues of a chain [residue, 8] from inputs [residue, feature]."""
        keys = (None, None) if key is None else jax.random.split(key)
        own = jax.nn.relu(jax.vmap(self.enter)(x))
        own = self.drop(own, key=keys[0], inference=key is None)
        ahead, back = jnp.split(jax.vmap(self.gates)(own), 2, axis=1)
        given = jnp.stack([ahead, back[::-1]], axis=1)  # [residue, direction, 3 hidden]
        states = jax.lax.scan(lambda *pair: self.next_state(*pair), jnp.zeros((2, own.shape[1]), x.dtype), given)[1]
        found = jnp.concatenate([own, states[:, 0], states[::-1, 1]], axis=1)
        return jax.vmap(self.leave)(self.drop(found, key=keys[1], inference=key is None))

    def next_state(self, state: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the state after a residue, twice [direction, hidden]."""
        reset, keep, new = jnp.split(given, 3, axis=1)
        reset_of, keep_of, new_of = jnp.split(jnp.einsum("doh,dh->do", self.memory, state), 3, axis=1)
        keep = jax.nn.sigmoid(keep + keep_of)
        state = keep * state + (1 - keep) * jnp.tanh(new + jax.nn.sigmoid(reset + reset_of) * new_of)
        return state, state


def out_of_fold(task: Task, options: Options) -> np.ndarray:
    """Predict `harmonics` of all residues, those of a training chain from the other parts [residue, 8]."""
    found = np.zeros((len(task.x), 8), np.float32)
    for group in range(-1, task.group.max() + 1):
        found[task.group == group] = predict(task, options, group)
    return found


def predict(task: Task, options: Options, group: int = -1) -> np.ndarray:
    """Predict `harmonics` of the residues of a group, by a network trained on the other training chains [residue, 8].

    The loss is the squared error, whose minimum, the mean of the harmonics, has the direction of the best mean cosine.

    Args:
        task: the fold.
        options: `hidden` units, `dropout`, `epochs` of Adam, and its largest `rate`.
        group: a part of the training chains; -1: the test chains.
    """
    chains, x = task.chains, task.x.astype(np.float32)
    learned = np.zeros(len(x), bool)
    learned[task.train] = task.group[task.train] != group
    targets = np.where(learned[:, None], harmonics(np.nan_to_num(chains.vectors)), 0).astype(np.float32)
    offset = targets[learned].mean(axis=0)
    network = Network(x.shape[1], options["hidden"], options["dropout"], jax.random.key(0))
    network = jax.tree.map(lambda leaf: leaf.astype(x.dtype) if eqx.is_inexact_array(leaf) else leaf, network)
    known = np.bincount(chains.chain[learned], minlength=len(chains.offsets) - 1).astype(np.float32)
    steps = jnp.float32(round(options["epochs"] * learned.sum() / (CROP * BATCH)))
    targets, offsets = jnp.where(learned[:, None], targets - offset, 0), chains.offsets.astype(np.int32)
    given = (jnp.asarray(x), targets, jnp.asarray(learned), jnp.asarray(known), jnp.asarray(offsets))
    network = _train(network, given, steps, jnp.float32(options["rate"]))
    rows = np.flatnonzero(task.group == group)
    longest = int(np.diff(chains.offsets).max())
    asked, place = np.unique(chains.chain[rows], return_inverse=True)
    inputs = np.zeros((len(asked), longest, x.shape[1]), np.float32)
    inputs[place, rows - chains.offsets[asked][place]] = x[rows]
    return np.asarray(_answer(network, inputs))[place, rows - chains.offsets[asked][place]] + offset


@eqx.filter_jit
def _answer(network: Network, x: Any) -> jax.Array:
    return jax.lax.map(network, x, batch_size=16)  # little memory


@eqx.filter_jit
def _train(network: Network, given: tuple[jax.Array, ...], steps: jax.Array, rate: jax.Array) -> Network:
    """Minimize the squared error over random pieces of chains, drawn by their number of `known` residues."""
    x, targets, learned, known, offsets = given
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    moving, fixed = eqx.partition(network, eqx.is_inexact_array)
    starts, ends = offsets[:-1], offsets[1:]

    def loss(moving: Any, key: jax.Array) -> jax.Array:
        which, where, dropping = jax.random.split(key, 3)
        chosen = jax.random.categorical(which, jnp.log(known), shape=(BATCH,))
        room = jnp.maximum(ends[chosen] - starts[chosen] - CROP, 0) + 1
        first = starts[chosen] + jnp.floor(jax.random.uniform(where, (BATCH,)) * room).astype(starts.dtype)
        rows = first[:, None] + jnp.arange(CROP)
        inside = rows < ends[chosen][:, None]
        rows = jnp.minimum(rows, len(x) - 1)
        inputs = jnp.where(inside[..., None], x[rows], 0)
        found = jax.vmap(eqx.combine(moving, fixed))(inputs, jax.random.split(dropping, BATCH))
        counted = inside & learned[rows]
        return jnp.sum(jnp.where(counted[..., None], (found - targets[rows]) ** 2, 0)) / jnp.sum(counted)

    def step(number: Any, carry: Any) -> Any:
        moving, state = carry
        slope = jax.grad(loss)(moving, jax.random.fold_in(jax.random.key(1), number))
        change, state = optimizer.update(slope, state)
        part = number.astype(x.dtype) / steps
        size = rate * jnp.minimum(part / WARM, (1 + jnp.cos(jnp.pi * part)) / 2)
        return eqx.apply_updates(moving, jax.tree.map(lambda of: -size * of, change)), state

    count = steps.astype(offsets.dtype)
    moving, _ = jax.lax.fori_loop(0, count, step, (moving, optimizer.init(moving)))
    return eqx.combine(moving, fixed)
