"""Discrete models as the package sees them: operators of the tables of `tests.reweighted`, and learned Delta models."""

import functools

import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from tests import reweighted as rw


def problem(model, rho=1.0):
    """Return operators, graph and local factors of a model of the oracle; every edge has a type of its own."""
    powers = 1 / rw.edge_weights(model, rho)
    graph = kbp.Graph.from_edges(np.array(model.edges), len(model.node), edge_type=np.arange(len(model.edges)))
    tables = [psi**power for psi, power in zip(model.edge, powers, strict=True)]
    project = np.stack([side for table in tables for side in (table.T, table)])
    return kbp.Operators(jnp.eye(project.shape[1])[None], jnp.asarray(project)), graph, jnp.asarray(model.node)


def node_beliefs(model, solution, rho=1.0):
    """Multiply local factors and messages to the power rho: [node, state]."""
    powers, logs = rw.edge_weights(model, rho), np.log(np.array(model.node))
    messages = np.log(np.asarray(solution.messages))
    for e, (s, t) in enumerate(model.edges):
        logs[t] += powers[e] * messages[e]
        logs[s] += powers[e] * messages[e + len(model.edges)]
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def edge_beliefs(model, solution, rho=1.0):
    """Multiply psi^(1 / rho), both ends' beliefs, and divide by the two messages along each edge: [edge, s, t]."""
    nodes, messages = node_beliefs(model, solution, rho), np.asarray(solution.messages)
    tables, num_edges = [], len(model.edges)
    for e, ((s, t), psi, power) in enumerate(zip(model.edges, model.edge, rw.edge_weights(model, rho), strict=True)):
        at_s, at_t = nodes[s] / messages[e + num_edges], nodes[t] / messages[e]
        table = psi ** (1 / power) * np.outer(at_s, at_t)
        tables.append(table / table.sum())
    return tables


# --- learned ----------------------------------------------------------------------------------------------------------

EDGES = rw.grid_edges(2, 3)
STATES = 3
RULES = {"constant": kbp.ConstantTime(eps=1e-6), "linear": kbp.LinearTime(eps=1e-6), "full": kbp.FullRank()}


@functools.cache
def samples():
    """Draw 80 samples of six dependent variables of three states, such that neighbors show every pair of states."""
    rng = np.random.default_rng(24)
    x = rng.integers(STATES, size=(80, 6))
    for a, b in EDGES:
        x[:, b] = np.where(rng.random(80) < 0.35, x[:, a], x[:, b])
    assert min(table.min() for table in pair_tables(x)) > 0
    return x


def pair_tables(x):
    """Return the joint frequencies of the ends of each edge."""
    return [
        np.array([[np.mean((x[:, a] == i) & (x[:, b] == j)) for j in range(3)] for i in range(3)]) for a, b in EDGES
    ]


def grid(edges=tuple(range(len(EDGES)))):
    """Return the grid, or a part of its edges, with a type for each node and edge."""
    return kbp.Graph.from_edges([EDGES[e] for e in edges], 6, edge_type=np.array(edges), node_type=np.arange(6))


@functools.cache
def learned(rule="constant", nonnegative=None):
    """Return the model that knows the pair tables exactly."""
    options = {"rule": RULES[rule], "ridge": 0.0, "floor": 0.0, "nonnegative": nonnegative}
    return kbp.fit(kbp.pool(grid(), samples()), kernel=kbp.Delta(), **options)


def learned_twin(rho, local, edges=tuple(range(len(EDGES)))):
    """Return the learned model in the oracle's terms: P* local and (P*(x_s, x_t) / P* P*)^rho."""
    pairs = pair_tables(samples())
    nodes = [np.bincount(samples()[:, s], minlength=STATES) / len(samples()) for s in range(6)]
    ratios = [pairs[e] / np.outer(nodes[EDGES[e][0]], nodes[EDGES[e][1]]) for e in edges]
    powered = [ratio**power for ratio, power in zip(ratios, np.broadcast_to(rho, len(edges)), strict=True)]
    return rw.Discrete([EDGES[e] for e in edges], [p * f for p, f in zip(nodes, local, strict=True)], powered)


def likelihoods(seed, spread=1.0):
    """Return random factors of the six variables, each with maximum 1 as `kbp.likelihood` scales them."""
    local = np.exp(spread * np.random.default_rng(seed).normal(size=(6, STATES)))
    return local / local.max(axis=1, keepdims=True)


def evidence(model, graph, local):
    """Return evidence with these factors."""
    return kbp.likelihood(model, graph, lambda x: jnp.asarray(local)[:, x.astype(int)])
