"""Tree-reweighted belief propagation on small discrete models: an oracle in float64 NumPy, independent of the package.

    p(x) = 1/Z prod_s psi_s(x_s) prod_st psi_st(x_s, x_t)

Each edge has a weight rho_st > 0: its probability of being in a random spanning tree makes the value of the fixed point
an upper bound of log Z, and rho = 1 is plain belief propagation. As in Wainwright, Jaakkola, Willsky (2005), psi_st is
the whole potential and the updates raise it to 1 / rho_st. Messages are a dict from (sender, receiver) to logarithms
over the states of the receiver. A rho is a number, or a sequence with one number for each edge.
"""

import dataclasses

import numpy as np
import scipy.optimize

# --- models -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Discrete:
    """Edges (s, t), potentials of nodes [k_s] and of edges [k_s, k_t], all > 0. At most one edge joins two nodes."""

    edges: list
    node: list
    edge: list

    def neighbors(self, node):
        """Return the other ends of a node's edges."""
        return [b if a == node else a for a, b in self.edges if node in (a, b)]


def grid_edges(height, width):
    """Return the edges of a grid whose nodes are numbered row by row."""
    right = [(r * width + c, r * width + c + 1) for r in range(height) for c in range(width - 1)]
    down = [(r * width + c, (r + 1) * width + c) for r in range(height - 1) for c in range(width)]
    return right + down


def ising(rng, height, width, coupling, field):
    """Return a grid of spins -1 (state 0) and +1 (state 1), each edge +-coupling, fields uniform in [-field, field]."""
    spins = np.array([-1.0, 1.0])
    edges = grid_edges(height, width)
    fields = rng.uniform(-field, field, height * width)
    couplings = rng.choice([-coupling, coupling], len(edges))
    return Discrete(edges, [np.exp(h * spins) for h in fields], [np.exp(j * np.outer(spins, spins)) for j in couplings])


def spanning_tree_probabilities(edges, num_nodes):
    """Return the probability of each edge to be in a uniformly random spanning tree: its effective resistance."""
    laplacian = np.zeros((num_nodes, num_nodes))
    for a, b in edges:
        laplacian[a, a] += 1
        laplacian[b, b] += 1
        laplacian[a, b] -= 1
        laplacian[b, a] -= 1
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    return np.array([inverse[a, a] + inverse[b, b] - 2 * inverse[a, b] for a, b in edges])


# --- brute force ------------------------------------------------------------------------------------------------------


def log_sum_exp(x):
    """Return log sum exp of all entries."""
    return np.max(x) + np.log(np.sum(np.exp(x - np.max(x))))


def on_joint_states(table, nodes, num_nodes):
    """Give a table over one node, or over two nodes in any order, one axis for each node of the model."""
    shape = [1] * num_nodes
    for node, size in zip(nodes, table.shape, strict=True):
        shape[node] = size
    return (table if nodes == tuple(sorted(nodes)) else table.T).reshape(shape)


def enumerate_log_weights(model):
    """Return the log of the product of all potentials at each joint state [k_0, k_1, ...]."""
    count = len(model.node)
    total = np.zeros([len(psi) for psi in model.node])
    for s, psi in enumerate(model.node):
        total = total + on_joint_states(np.log(psi), (s,), count)
    for (s, t), psi in zip(model.edges, model.edge, strict=True):
        total = total + on_joint_states(np.log(psi), (s, t), count)
    return total


def enumerate_log_partition(model):
    """Return log Z by a sum over all joint states."""
    return log_sum_exp(enumerate_log_weights(model))


def enumerate_joint(model):
    """Return the probability of each joint state [k_0, k_1, ...]."""
    weights = enumerate_log_weights(model)
    return np.exp(weights - log_sum_exp(weights))


def enumerate_marginals(model):
    """Return each node's marginal [k_s] by a sum over all joint states."""
    joint, nodes = enumerate_joint(model), range(len(model.node))
    return [joint.sum(axis=tuple(u for u in nodes if u != s)) for s in nodes]


def enumerate_edge_marginals(model):
    """Return each edge's marginal [k_s, k_t] by a sum over all joint states."""
    joint, nodes = enumerate_joint(model), range(len(model.node))
    tables = [joint.sum(axis=tuple(u for u in nodes if u not in edge)) for edge in model.edges]
    return [table if s < t else table.T for (s, t), table in zip(model.edges, tables, strict=True)]


# --- tree-reweighted belief propagation -------------------------------------------------------------------------------


@dataclasses.dataclass
class Reweighted:
    """Log messages {(sender, receiver): [k_receiver]}, beliefs of nodes [k_s] and edges [k_s, k_t], the residual.

    The residual is the largest change of a log message, normalized to sum of exponentials 1, in an undamped update.
    """

    messages: dict
    node_beliefs: list
    edge_beliefs: list
    residual: float


def edge_weights(model, rho):
    """Return rho as one number for each edge."""
    return np.broadcast_to(np.asarray(rho, float), (len(model.edges),))


def directed(model, rho):
    """Return {(sender, receiver): (log psi_st [k_sender, k_receiver], rho_st)}."""
    table = {}
    for (s, t), psi, weight in zip(model.edges, model.edge, edge_weights(model, rho), strict=True):
        table[s, t] = np.log(psi), weight
        table[t, s] = np.log(psi).T, weight
    return table


def without(model, table, messages, t, s):
    """Return the log of psi_t prod_{u != s} M_ut^{rho_ut} / M_st^{1 - rho_st}, a function of x_t."""
    total = np.log(model.node[t])
    for u in model.neighbors(t):
        rho = table[u, t][1]
        total = total + (rho * messages[u, t] if u != s else -(1 - rho) * messages[s, t])
    return total


def update(model, table, messages, t, s):
    """Return log M_ts(x_s) = log sum_{x_t} psi_st^{1/rho_st} psi_t prod_{u != s} M_ut^{rho_ut} / M_st^{1 - rho_st}."""
    log_psi, rho = table[t, s]
    terms = log_psi / rho + without(model, table, messages, t, s)[:, None]
    largest = np.max(terms, axis=0)
    message = largest + np.log(np.sum(np.exp(terms - largest), axis=0))
    return message - log_sum_exp(message)


def reweighted(model, rho, num_iters=3000, damping=0.3, tolerance=1e-12):
    """Update all messages at once, damped as logarithms, until the residual is at most the tolerance.

    Only at a fixed point do the beliefs of edges agree with those of nodes, and is the value of both a bound.
    """
    table = directed(model, rho)
    messages = {(t, s): np.full(len(model.node[s]), -np.log(len(model.node[s]))) for t, s in table}
    residual = 0.0 if not table else np.inf
    for _ in range(num_iters):
        if residual <= tolerance:
            break
        new = {(t, s): update(model, table, messages, t, s) for t, s in table}
        residual = max(np.max(np.abs(new[edge] - messages[edge])) for edge in table)
        mixed = {edge: damping * messages[edge] + (1 - damping) * new[edge] for edge in table}
        messages = {edge: message - log_sum_exp(message) for edge, message in mixed.items()}

    node_beliefs = []
    for s in range(len(model.node)):
        belief = np.log(model.node[s])
        for u in model.neighbors(s):
            belief = belief + table[u, s][1] * messages[u, s]
        node_beliefs.append(np.exp(belief - log_sum_exp(belief)))
    edge_beliefs = []
    for s, t in model.edges:
        log_psi, rho_st = table[s, t]
        at_s, at_t = without(model, table, messages, s, t), without(model, table, messages, t, s)
        belief = log_psi / rho_st + at_s[:, None] + at_t[None, :]
        edge_beliefs.append(np.exp(belief - log_sum_exp(belief)))
    return Reweighted(messages, node_beliefs, edge_beliefs, float(residual))


def entropy(p):
    """Return -sum p log p over all entries, with 0 log 0 = 0."""
    p = p[p > 0]
    return -np.sum(p * np.log(p))


def mutual_information(belief):
    """Return the Kullback-Leibler divergence of a table from the product of its own marginals."""
    return entropy(belief.sum(axis=1)) + entropy(belief.sum(axis=0)) - entropy(belief)


def free_energy_log_partition(model, rho, node_beliefs, edge_beliefs):
    """Return sum_s <log psi_s> + sum_st <log psi_st> + sum_s H(b_s) - sum_st rho_st I(b_st).

    This is log Z where the beliefs are exact on a tree with rho = 1. An edge's I is that of its own table, so the value
    means something only where the tables agree with the beliefs of the nodes.
    """
    value = 0.0
    for psi, belief in zip(model.node, node_beliefs, strict=True):
        value += np.sum(belief * np.log(psi)) + entropy(belief)
    for psi, belief, weight in zip(model.edge, edge_beliefs, edge_weights(model, rho), strict=True):
        value += np.sum(belief * np.log(psi)) - weight * mutual_information(belief)
    return float(value)


# --- the same optimum without messages --------------------------------------------------------------------------------


def maximise_pseudo_marginals(model, rho, least=1e-10):
    """Maximize the same value for a binary model by SLSQP: (value, node beliefs, edge beliefs).

    The unknowns z are mu_s = b_s(1) of each node and mu_st = b_st(1, 1) of each edge. All the entries p of all beliefs
    are affine in z, p = A z + c, and the value is sum_i p_i log psi_i - w_i p_i log p_i; w is rho_st on the entries of
    an edge and 1 - sum_t rho_st on those of a node. It is concave in z where rho are probabilities of spanning trees.
    """
    num_nodes, num_edges = len(model.node), len(model.edges)
    rho = edge_weights(model, rho)
    rows, constants, log_psi, weights = [], [], [], []

    def entry(coefficients, constant, potential, weight):
        row = np.zeros(num_nodes + num_edges)
        for index, coefficient in coefficients.items():
            row[index] = coefficient
        rows.append(row)
        constants.append(constant)
        log_psi.append(np.log(potential))
        weights.append(weight)

    for s, psi in enumerate(model.node):
        weight = 1 - sum(rho[e] for e, edge in enumerate(model.edges) if s in edge)
        entry({s: -1}, 1, psi[0], weight)
        entry({s: 1}, 0, psi[1], weight)
    for e, ((s, t), psi) in enumerate(zip(model.edges, model.edge, strict=True)):
        both = num_nodes + e
        entry({s: -1, t: -1, both: 1}, 1, psi[0, 0], rho[e])
        entry({t: 1, both: -1}, 0, psi[0, 1], rho[e])
        entry({s: 1, both: -1}, 0, psi[1, 0], rho[e])
        entry({both: 1}, 0, psi[1, 1], rho[e])
    matrix, constants, log_psi, weights = np.array(rows), np.array(constants), np.array(log_psi), np.array(weights)

    def loss(z):
        p = np.maximum(matrix @ z + constants, least)
        return -np.sum(p * log_psi - weights * p * np.log(p))

    def gradient(z):
        p = np.maximum(matrix @ z + constants, least)
        return -matrix.T @ (log_psi - weights * (np.log(p) + 1))

    start = np.concatenate([np.full(num_nodes, 0.5), np.full(num_edges, 0.25)])
    positive = {"type": "ineq", "fun": lambda z: matrix @ z + constants - least, "jac": lambda z: matrix}
    options = {"maxiter": 1000, "ftol": 1e-12}
    result = scipy.optimize.minimize(loss, start, jac=gradient, method="SLSQP", constraints=[positive], options=options)
    if not result.success:
        raise RuntimeError(f"SLSQP: {result.message}")
    p = matrix @ result.x + constants
    node_beliefs = list(p[: 2 * num_nodes].reshape(num_nodes, 2))
    edge_beliefs = list(p[2 * num_nodes :].reshape(num_edges, 2, 2))
    return float(-result.fun), node_beliefs, edge_beliefs
