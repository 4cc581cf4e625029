"""A slow NumPy twin of the core, in float64 with plain loops, written from the mathematics, not from the package.

A kernel is here a function of two points that returns a number, a graph is a list of pairs, messages are a dict from
(sender, receiver) to coefficients. No jitter, tiling, padding or logarithms: where twin and package agree, those are
harmless.
"""

import dataclasses
import math

import numpy as np

# --- kernels ----------------------------------------------------------------------------------------------------------


def rbf(bandwidth):
    def kernel(x, y):
        distance = math.dist(np.ravel(x).astype(float).tolist(), np.ravel(y).astype(float).tolist())
        return math.exp(-(distance**2) / (2 * float(bandwidth) ** 2))

    return kernel


def linear():
    return lambda x, y: math.fsum(float(a) * float(b) for a, b in zip(np.ravel(x), np.ravel(y), strict=True))


def delta():
    return lambda x, y: 1.0 if np.array_equal(x, y) else 0.0


def add(left, right):
    return lambda x, y: left(x, y) + right(x, y)


def multiply(left, right):
    return lambda x, y: left(x, y) * right(x, y)


def power(base, exponent):
    return lambda x, y: math.prod([base(x, y)] * exponent)


def gram(kernel, x, y):
    return np.array([[kernel(a, b) for b in y] for a in x], float).reshape(len(x), len(y))


def median_bandwidth(points):
    """Median of all pairwise distances; of those that are not 0, where over half of them are."""
    points = np.asarray(points, float)
    distances = [np.linalg.norm(points[i] - points[j]) for i in range(len(points)) for j in range(i)]
    median = np.median(distances)
    return median if median > 0 else np.median([d for d in distances if d > 0])


# --- features ---------------------------------------------------------------------------------------------------------


def residuals(kernel, x, indices):
    """Squared distance of each phi(x_i) from the span of the chosen ones: the Schur complement, from scratch."""
    full = gram(kernel, x, x)
    indices = list(indices)
    if not indices:
        return np.diag(full).copy()
    inner, cross = full[np.ix_(indices, indices)], full[indices]
    return np.diag(full) - np.sum(cross * np.linalg.solve(inner, cross), axis=0)


def incomplete_cholesky(kernel, x, eps, max_rank):
    """PivotedCholesky choice of landmarks: (indices, residual norm left), in units of the largest feature norm."""
    indices = []
    largest = max(kernel(point, point) for point in x)
    while True:
        left = np.maximum(residuals(kernel, x, indices), 0)
        left[indices] = 0
        residual = np.sqrt(left.max() / largest)
        if residual <= eps or len(indices) == min(max_rank, len(x)):
            return indices, residual
        indices.append(int(np.argmax(left)))


def gram_schmidt(kernel, landmarks, x):
    """Coordinates [sample, rank] of phi(x) on the basis that Gram-Schmidt makes of the landmarks' features.

    A basis vector is held as its weights on the landmarks; <sum_i a_i phi_i, sum_j b_j phi_j> = a' K b.
    """
    inner = gram(kernel, landmarks, landmarks)
    basis = []
    for i in range(len(landmarks)):
        vector = np.eye(len(landmarks))[i]
        for _ in range(2):  # twice is enough
            for other in basis:
                vector = vector - (other @ inner @ vector) * other
        basis.append(vector / np.sqrt(vector @ inner @ vector))
    return gram(kernel, x, landmarks) @ np.array(basis).T


# --- embeddings -------------------------------------------------------------------------------------------------------


def conditional_operator(given, target, ridge):
    """The ridge regression (R'R + ridge m I)^{-1} R'G by its normal equations."""
    m, rank = given.shape
    normal = sum(np.outer(row, row) for row in given) + ridge * m * np.eye(rank)
    return np.linalg.solve(normal, sum(np.outer(a, b) for a, b in zip(given, target, strict=True)))


def conditional_operator_dual(given, target, ridge):
    """The same in the dual: R'(RR' + ridge m I)^{-1} G, one equation for each sample."""
    m = len(given)
    return given.T @ np.linalg.solve(given @ given.T + ridge * m * np.eye(m), target)


def kernel_form_update(kernel, landmarks, product_kernel, product_landmarks, x_receiver, x_sender, ridge):
    """Eq. 15 without orthonormal bases: A [landmark, product landmark] with m_ts(x) = k(x, landmarks) A values.

    W = K_II^{-1} K_I. writes a sample's feature on the landmarks; A = W_s (W_s' L_JJ W_s + ridge m I)^{-1} W_t'.
    """
    m = len(x_receiver)
    inner = gram(kernel, landmarks, landmarks)
    on_receiver = np.linalg.solve(inner, gram(kernel, landmarks, x_receiver))
    products = gram(product_kernel, product_landmarks, product_landmarks)
    on_sender = np.linalg.solve(products, gram(product_kernel, product_landmarks, x_sender))
    regression = on_receiver.T @ inner @ on_receiver + ridge * m * np.eye(m)
    return on_receiver @ np.linalg.solve(regression, on_sender.T)


# --- training ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Graph:
    """Pairs and types; a pair of different node types belongs the way round that has the smaller type first."""

    edges: list
    node_type: list
    edge_type: list

    def ends(self):
        """{edge type: node types of its ends, the smaller first}."""
        ends = {}
        for (a, b), k in zip(self.edges, self.edge_type, strict=True):
            ends[k] = tuple(sorted((self.node_type[a], self.node_type[b])))
        return ends

    def oriented(self):
        """[(type, first, second)] with first and second in the orientation of the type."""
        ends = self.ends()
        rows = []
        for (a, b), k in zip(self.edges, self.edge_type, strict=True):
            agrees = (self.node_type[a], self.node_type[b]) == ends[k]
            rows.append((k, a, b) if agrees else (k, b, a))
        return rows

    def neighbors(self, node):
        return [b if a == node else a for a, b in self.edges if node in (a, b)]

    def nodes_of_type(self, node_type):
        return [i for i, v in enumerate(self.node_type) if v == node_type]


def pool(graph, samples, observations=None):
    """Pool samples [sample, node, *dim]: (edges, nodes, observations, degrees), each a dict by type."""
    edges = {k: ([], []) for k in graph.ends()}
    types = sorted(set(graph.node_type))
    nodes, observed = {v: [] for v in types}, {v: ([], []) for v in types}
    for i in range(len(samples)):
        for k, first, second in graph.oriented():
            edges[k][0].append(samples[i][first])
            edges[k][1].append(samples[i][second])
        for node, v in enumerate(graph.node_type):
            nodes[v].append(samples[i][node])
            if observations is not None:
                observed[v][0].append(samples[i][node])
                observed[v][1].append(observations[i][node])
    extra = 0 if observations is None else 1
    degrees = {v: extra + max(len(graph.neighbors(i)) for i in graph.nodes_of_type(v)) for v in types}
    edges = {k: (np.array(a), np.array(b)) for k, (a, b) in edges.items()}
    observed = {v: (np.array(a), np.array(b)) for v, (a, b) in observed.items()} if extra else {}
    return edges, {v: np.array(x) for v, x in nodes.items()}, observed, degrees


@dataclasses.dataclass
class Model:
    """Everything by type: kernels, landmarks, and the matrices of the updates."""

    kernels: dict
    landmarks: dict
    product_landmarks: dict
    evaluate: dict
    project: dict  # {(edge type, 0 first to second or 1 back): matrix}
    obs_kernels: dict
    obs_landmarks: dict
    obs_operators: dict
    marginals: dict
    floor: float


def fit(edges, nodes, observations, ends, degrees, kernels, obs_kernels, *, eps, max_rank, ridge, floor):
    def landmarks(kernel, x):
        return x[incomplete_cholesky(kernel, x, eps, max_rank)[0]]

    powers = {v: max(1, degrees[v] - 1) for v in nodes}
    product_kernels = {v: power(kernels[v], powers[v]) for v in nodes}
    chosen = {v: landmarks(kernels[v], x) for v, x in nodes.items()}
    products = {v: landmarks(product_kernels[v], x) for v, x in nodes.items()}
    evaluate = {v: gram_schmidt(kernels[v], chosen[v], products[v]) for v in nodes}

    def update(sender, receiver, x_sender, x_receiver):
        """Interpolate values at the sender's product landmarks on its samples, then regress on the receiver."""
        given = gram_schmidt(kernels[receiver], chosen[receiver], x_receiver)
        inner = gram(product_kernels[sender], products[sender], products[sender])
        target = np.linalg.solve(inner, gram(product_kernels[sender], products[sender], x_sender)).T
        return conditional_operator(given, target, ridge)

    project = {}
    for k, (a, b) in ends.items():
        project[k, 0] = update(a, b, edges[k][0], edges[k][1])
        project[k, 1] = update(b, a, edges[k][1], edges[k][0])
    obs_landmarks = {v: landmarks(obs_kernels[v], y) for v, (_, y) in observations.items()}
    obs_operators = {
        v: conditional_operator(
            gram_schmidt(kernels[v], chosen[v], x), gram_schmidt(obs_kernels[v], obs_landmarks[v], y), ridge
        )
        for v, (x, y) in observations.items()
    }
    largest = max(np.linalg.norm(row) for matrix in evaluate.values() for row in matrix)
    return Model(
        kernels,
        chosen,
        products,
        evaluate,
        project,
        obs_kernels,
        obs_landmarks,
        obs_operators,
        {v: np.mean(gram_schmidt(kernels[v], chosen[v], x), axis=0) for v, x in nodes.items()},
        floor * largest,
    )


# --- inference --------------------------------------------------------------------------------------------------------


def normalized(message):
    norm = np.linalg.norm(message)
    return message / norm if norm > 0 else message


def values(model, node_type, message):
    """A message at its receiver's evaluation points, with the floor."""
    return np.maximum(model.evaluate[node_type] @ message, model.floor)


def observe(model, graph, y, mask):
    """Messages of 2-norm 1 from the observations: {node: coefficients}, only of nodes that have one."""
    messages = {}
    for node, v in enumerate(graph.node_type):
        if mask[node] and v in model.obs_operators:
            observed = gram_schmidt(model.obs_kernels[v], model.obs_landmarks[v], y[node : node + 1])[0]
            messages[node] = normalized(model.obs_operators[v] @ observed)
    return messages


def directed(model, graph):
    """{(sender, receiver): matrix of its update}."""
    matrices = {}
    for k, first, second in graph.oriented():
        matrices[first, second] = model.project[k, 0]
        matrices[second, first] = model.project[k, 1]
    return matrices


def init(model, graph):
    return {edge: normalized(matrix @ np.ones(matrix.shape[1])) for edge, matrix in directed(model, graph).items()}


def step(model, graph, evidence, messages, damping):
    new = {}
    for (t, s), matrix in directed(model, graph).items():
        v = graph.node_type[t]
        product = values(model, v, evidence[t]) if t in evidence else np.ones(len(model.evaluate[v]))
        for u in graph.neighbors(t):
            if u != s:
                product = product * values(model, v, messages[u, t])
        new[t, s] = damping * messages[t, s] + (1 - damping) * normalized(matrix @ product)
    return new


def run(model, graph, evidence, num_iters, damping):
    messages = init(model, graph)
    for _ in range(num_iters):
        messages = step(model, graph, evidence, messages, damping)
    return messages


def beliefs(model, graph, evidence, messages, points, node):
    """The belief of one node on candidate points: marginal, evidence and all messages multiplied, summing to 1."""
    v = graph.node_type[node]
    at_points = gram_schmidt(model.kernels[v], model.landmarks[v], points)
    product = np.maximum(at_points @ model.marginals[v], model.floor)
    if node in evidence:
        product = product * np.maximum(at_points @ evidence[node], model.floor)
    for u in graph.neighbors(node):
        product = product * np.maximum(at_points @ messages[u, node], model.floor)
    return product / product.sum()


# --- the full-rank rule -----------------------------------------------------------------------------------------------


class FullRank:
    """Eq. 12 word for word: beta_ts = (L + ridge m I)^{-1} prod_u K beta_ut over the training pairs of the edge's type.

    A function is a pair (samples, beta), x -> sum_i beta_i k(samples_i, x), of RKHS norm 1. Kernels with k(x, x) = 1.
    """

    def __init__(self, graph, pooled, kernels, obs_kernels, *, ridge, floor):
        self.graph, self.kernels, self.obs_kernels, self.ridge, self.floor = graph, kernels, obs_kernels, ridge, floor
        self.edges, self.nodes, self.observed, _ = pooled
        self.grams = {}
        self.where = {}  # {(sender, receiver): (samples of the sender, samples of the receiver)}, each (edge type, end)
        for k, first, second in graph.oriented():
            self.where[first, second] = (k, 0), (k, 1)
            self.where[second, first] = (k, 1), (k, 0)

    def samples(self, place):
        return self.observed[place[1]][0] if place[0] == "observed" else self.edges[place[0]][place[1]]

    def gram(self, node, left, right):
        v = self.graph.node_type[node]
        if (v, left, right) not in self.grams:
            self.grams[v, left, right] = gram(self.kernels[v], self.samples(left), self.samples(right))
        return self.grams[v, left, right]

    def normalized(self, node, place, beta):
        return place, beta / np.sqrt(beta @ self.gram(node, place, place) @ beta)

    def observe(self, y, mask, ratio=False):
        """E[k(y, Y) | x], or with the regression on y undone as well P(y | x) / P(y)."""
        functions = {}
        for node, v in enumerate(self.graph.node_type):
            if mask[node]:
                place, seen = ("observed", v), self.observed[v][1]
                penalty = self.ridge * len(seen) * np.eye(len(seen))
                weights = gram(self.obs_kernels[v], seen, y[node : node + 1])[:, 0]
                if ratio:
                    weights = np.linalg.solve(gram(self.obs_kernels[v], seen, seen) + penalty, weights)
                beta = np.linalg.solve(self.gram(node, place, place) + penalty, weights)
                functions[node] = self.normalized(node, place, beta)
        return functions

    def update(self, t, s, product):
        """From the values of a product at the sender's samples to coefficients on the receiver's."""
        inner = self.gram(s, self.where[t, s][1], self.where[t, s][1])
        return np.linalg.solve(inner + self.ridge * len(inner) * np.eye(len(inner)), product)

    def run(self, evidence, num_iters, damping=0.0):
        def start(t, s):
            count = len(self.samples(self.where[t, s][0]))
            return self.normalized(s, self.where[t, s][1], self.update(t, s, np.ones(count)))

        messages = {edge: start(*edge) for edge in self.where}
        for _ in range(num_iters):
            new = {}
            for t, s in self.where:
                here, there = self.where[t, s]
                factors = [messages[u, t] for u in self.graph.neighbors(t) if u != s]
                factors += [evidence[t]] if t in evidence else []
                product = np.ones(len(self.samples(here)))
                for place, beta in factors:
                    product = product * np.maximum(self.gram(t, here, place) @ beta, self.floor)
                _, unit = self.normalized(s, there, self.update(t, s, product))
                new[t, s] = there, damping * messages[t, s][1] + (1 - damping) * unit
            messages = new
        return messages

    def values(self, node, function, points):
        place, beta = function
        return gram(self.kernels[self.graph.node_type[node]], points, self.samples(place)) @ beta

    def beliefs(self, evidence, messages, points, node):
        x = self.nodes[self.graph.node_type[node]]
        product = np.maximum(gram(self.kernels[self.graph.node_type[node]], points, x).mean(axis=1), self.floor)
        factors = [messages[u, node] for u in self.graph.neighbors(node)]
        for function in factors + ([evidence[node]] if node in evidence else []):
            product = product * np.maximum(self.values(node, function, points), self.floor)
        return product / product.sum()


# --- answers ----------------------------------------------------------------------------------------------------------


def mode(points, weights):
    return np.array([points[max(range(len(points)), key=lambda i: row[i])] for row in weights])


def mean(points, weights):
    return np.array([sum(w * np.asarray(x, float) for w, x in zip(row, points)) for row in weights])


def variance(points, weights):
    """E[X^2] - E[X]^2, coordinate by coordinate."""
    return mean(np.asarray(points, float) ** 2, weights) - mean(points, weights) ** 2


def quantile(points, weights, level):
    """The least point x with P(X <= x) >= level."""
    answers = []
    for row in weights:
        for x in sorted(points):
            if math.fsum(w for w, p in zip(row, points) if p <= x) >= level - 1e-12:
                answers.append(x)
                break
    return np.array(answers)


def interpolated_quantile(points, row, level):
    """Walk along the points: half of each weight lies below its point, straight lines between, flat outside."""
    pairs = sorted(zip(points, row, strict=True))
    reached = [math.fsum(b for _, b in pairs[:i]) + pairs[i][1] / 2 for i in range(len(pairs))]
    if level <= reached[0]:
        return pairs[0][0]
    for i in range(1, len(pairs)):
        if level <= reached[i]:
            share = (level - reached[i - 1]) / (reached[i] - reached[i - 1])
            return pairs[i - 1][0] + share * (pairs[i][0] - pairs[i - 1][0])
    return pairs[-1][0]


# --- examples ---------------------------------------------------------------------------------------------------------


def loopy_example(num_samples=12, seed=0):
    """A graph of three node and three edge types with loops, a leaf and an isolated node; samples on it.

    Some edges are given against the orientation of their type (the smaller node type comes first).
    """
    graph = Graph(
        edges=[(0, 1), (4, 3), (1, 2), (5, 4), (0, 3), (1, 3), (4, 2)],
        node_type=[0, 1, 2, 0, 1, 2, 2],
        edge_type=[0, 0, 1, 1, 2, 0, 1],
    )
    random = np.random.default_rng(seed)
    common = random.normal(size=(num_samples, 1))
    offsets = np.array([0.0, 0.5, -0.5, 0.3, 0.8, 0.0, 0.1])
    samples = np.tanh(common * np.array([1, -1, 0.5, 1, -1, 0.5, 1]) + offsets) + 0.3 * random.normal(
        size=(num_samples, 7)
    )
    observations = samples + 0.2 * random.normal(size=samples.shape)
    return graph, samples, observations


LOOPY_BANDWIDTHS = {0: 0.6, 1: 0.9, 2: 1.4}
LOOPY_OBS_BANDWIDTHS = {0: 0.5, 1: 0.7, 2: 0.6}
LOOPY_SETTINGS = {"eps": 1e-2, "max_rank": 9, "ridge": 1e-3, "floor": 1e-6}


def loopy_model():
    """The twin's model of `loopy_example`, all types observed."""
    graph, samples, observations = loopy_example()
    edges, nodes, observed, degrees = pool(graph, samples, observations)
    kernels = {v: rbf(b) for v, b in LOOPY_BANDWIDTHS.items()}
    obs_kernels = {v: rbf(b) for v, b in LOOPY_OBS_BANDWIDTHS.items()}
    return fit(edges, nodes, observed, graph.ends(), degrees, kernels, obs_kernels, **LOOPY_SETTINGS)
