"""Discrete models in the UAI format: a reader, the package's problem, and belief propagation in NumPy.

The reader takes models of factors with one or two variables. `propagate` shares nothing with the package.
"""

import dataclasses
from pathlib import Path

import numpy as np


@dataclasses.dataclass
class Model:
    """A pairwise model.

    Attributes:
        node: table of each variable; 1 without one.
        edge: {(first, second): table [first, second]}, first < second.
        marginals: exact marginals of the variables, of the file NAME.uai.MAR.
        log_z: exact log-partition function, of the file NAME.uai.PR; None without that file.
    """

    node: list
    edge: dict
    marginals: list
    log_z: float | None = None


def read(path):
    """Return the model of a file NAME.uai, with the answers in the files beside it."""
    path = Path(path)
    words = iter(path.read_text().split())
    assert next(words) == "MARKOV"
    sizes = [int(next(words)) for _ in range(int(next(words)))]
    scopes = [[int(next(words)) for _ in range(int(next(words)))] for _ in range(int(next(words)))]
    node, edge = [np.ones(size) for size in sizes], {}
    for scope in scopes:
        count, shape = int(next(words)), [sizes[s] for s in scope]
        table = np.array([float(next(words)) for _ in range(count)]).reshape(shape)
        if len(scope) == 1:
            node[scope[0]] = node[scope[0]] * table
        else:
            pair, table = (tuple(scope), table) if scope[0] < scope[1] else ((scope[1], scope[0]), table.T)
            edge[pair] = edge.get(pair, 1.0) * table
    answers = Path(f"{path}.PR")
    log_z = float(answers.read_text().split()[1]) * np.log(10) if answers.exists() else None
    return Model(node, edge, _marginals(Path(f"{path}.MAR")), log_z)


def _marginals(path):
    numbers = iter(path.read_text().split()[1:])
    return [np.array([float(next(numbers)) for _ in range(int(next(numbers)))]) for _ in range(int(next(numbers)))]


def problem(model, **options):
    """Return the package's model, graph and evidence: an edge type for each edge, a node type for each size.

    Potentials of nodes are a known likelihood. Node types are ordered by size, as edges must run from the smaller type
    to the larger.
    """
    import jax.numpy as jnp

    import kbpjax as kbp
    from kbpjax.baselines import discrete

    sizes = [len(table) for table in model.node]
    types = {size: v for v, size in enumerate(sorted(set(sizes)))}
    node_type = [types[size] for size in sizes]
    pairs, tables, ends = [], {}, {}
    for k, ((s, t), table) in enumerate(model.edge.items()):
        forth = node_type[s] <= node_type[t]
        pairs.append((s, t) if forth else (t, s))
        tables[k] = table if forth else table.T
        ends[k] = tuple(node_type[end] for end in pairs[-1])
    states = {v: np.arange(size) for size, v in types.items()}
    known = discrete.from_potentials(
        states, {v: np.ones(size) for size, v in types.items()}, tables, ends=ends, **options
    )
    graph = kbp.Graph.from_edges(pairs, len(sizes), edge_type=np.arange(len(pairs)), node_type=node_type)
    rows = {v: np.stack([t for t in model.node if len(t) == size]) for size, v in types.items()}
    look_up = lambda v: lambda x: jnp.asarray(rows[v])[:, x]
    return known, graph, kbp.likelihood(known, graph, {v: look_up(v) for v in rows})


def weights_of(model, beliefs):
    """Return the beliefs of each variable, from {node type: beliefs} of `problem`."""
    rows = {v: iter(np.asarray(belief.weights)) for v, belief in beliefs.items()}
    types = {size: v for v, size in enumerate(sorted({len(table) for table in model.node}))}
    return [next(rows[types[len(table)]]) for table in model.node]


def propagate(model, num_iters, damping):
    """Return the beliefs of each variable after synchronous updates from constant messages, of 2-norm 1.

    Tables are padded with zeros to a common number of states.
    """
    count, size = len(model.node), max(map(len, model.node))
    local = np.stack([np.pad(table, (0, size - len(table))) for table in model.node])
    pad = lambda table: np.pad(table, [(0, size - n) for n in table.shape])
    tables = np.stack([pad(table).T for table in model.edge.values()] + [pad(table) for table in model.edge.values()])
    pairs = np.array(list(model.edge))
    senders, receivers = np.concatenate([pairs, pairs[:, ::-1]]).T
    # The messages to each node, in slots; empty slots hold ones.
    slot = np.array([np.sum(receivers[:e] == receivers[e]) for e in range(len(receivers))])
    reverse = np.roll(np.arange(len(senders)), len(pairs))
    messages = np.stack([np.arange(size) < len(model.node[s]) for s in receivers]).astype(float)
    messages /= np.linalg.norm(messages, axis=1, keepdims=True)

    def incoming(messages):
        values = np.ones((count, 2 + slot.max(), size))
        values[receivers, slot] = messages
        return values

    for _ in range(num_iters):
        values = incoming(messages)
        before = np.cumprod(np.concatenate([local[:, None], values], 1), axis=1)[:, :-1]
        after = np.cumprod(values[:, ::-1], axis=1)[:, ::-1]
        others = before[:, :-1] * after[:, 1:]
        raw = np.einsum("eop,ep->eo", tables, others[senders, slot[reverse]])
        messages = damping * messages + (1 - damping) * raw / np.linalg.norm(raw, axis=1, keepdims=True)
    beliefs = local * incoming(messages).prod(axis=1)
    beliefs /= beliefs.sum(axis=1, keepdims=True)
    return [row[: len(table)] for row, table in zip(beliefs, model.node, strict=True)]


def error(model, beliefs):
    """Return the mean absolute difference from the exact marginals."""
    return float(np.mean(np.concatenate([np.abs(a - b) for a, b in zip(beliefs, model.marginals, strict=True)])))
