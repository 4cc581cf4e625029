"""Random discrete models against enumeration on trees, and against message passing by hand on graphs with cycles.

    python -m tests.fuzz.enumeration [--cases 1000] [--seed 0]

One case is one random model with random evidence. On a tree, the beliefs of all nodes, those of some edges and the
log-partition function are compared with sums over all joint states. With cycles, messages or beliefs are compared after
as many synchronous updates. The oracle is plain NumPy in float64 and shares nothing with the package. Random graphs
have six nodes of two types; the first is a node with nine neighbors, whose products are rescaled. The cases of one
graph are a batch of one compiled program.
"""

import argparse
import dataclasses
import itertools
import operator
import sys
import time
from dataclasses import dataclass

import numpy as np

NUM_NODES = 6
STATES = (3, 4)
"""Number of states of learned variables of each type; those of operators have STATES[0]."""
SWEEPS = 8
TARGET = 1e-10


# --- random problems --------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """A random graph: pairs [pair, 2] with the smaller node type first, and the types of nodes and pairs."""

    pairs: list
    node_type: list
    pair_type: list
    ends: dict

    @property
    def num_nodes(self):
        """Return the number of nodes."""
        return len(self.node_type)

    @property
    def acyclic(self):
        """Return whether there are no cycles, by the way the graphs are made."""
        return len(self.pairs) < self.num_nodes

    @property
    def directed(self):
        """Return (sender, receiver, pair, forth) of each directed edge."""
        forth = [(a, b, e, True) for e, (a, b) in enumerate(self.pairs)]
        return forth + [(b, a, e, False) for e, (a, b) in enumerate(self.pairs)]


def random_problem(rng, num_cycles):
    """Return a random tree with extra edges; a third of the trees lack an edge."""
    order = rng.permutation(NUM_NODES)
    pairs = {tuple(sorted((order[i], order[rng.integers(i)]))) for i in range(1, NUM_NODES)}
    while len(pairs) < NUM_NODES - 1 + num_cycles:
        pairs.add(tuple(sorted(rng.choice(NUM_NODES, 2, replace=False))))
    pairs = [tuple(map(int, rng.permutation(pair))) for pair in sorted(pairs)]
    if num_cycles == 0 and rng.random() < 1 / 3:
        pairs.pop()
    return with_types(rng, pairs, rng.permutation([0, 0, 0, 1, 1, 1]).tolist())


def hub(rng):
    """Return a star of ten nodes."""
    return with_types(rng, [(0, leaf) for leaf in range(1, 10)], rng.permutation([0] * 5 + [1] * 5).tolist())


def with_types(rng, pairs, node_type):
    """Return the problem of some pairs; each combination of node types has one or two edge types."""
    pairs = [tuple(sorted(pair, key=lambda s: node_type[s])) for pair in pairs]
    kinds, types, ends = {}, [], {}
    for a, b in pairs:
        of_pair = node_type[a], node_type[b], int(rng.integers(2))
        types.append(kinds.setdefault(of_pair, len(kinds)))
        ends[types[-1]] = of_pair[:2]
    return Problem(pairs, node_type, types, ends)


# --- the oracle -------------------------------------------------------------------------------------------------------


def on_axes(table, count, *nodes):
    """Give a table of one node, or of two, an axis for each of `count` nodes."""
    table = table if len(nodes) == 1 or nodes[0] < nodes[1] else table.T
    shape = [1] * count
    for node, size in zip(sorted(nodes), table.shape, strict=True):
        shape[node] = size
    return table.reshape(shape)


def enumerate_joint(problem, local, tables):
    """Return the product of local factors and tables [first, second] at each joint state."""
    joint = np.ones([1] * problem.num_nodes)
    for s in range(problem.num_nodes):
        joint = joint * on_axes(local[s], problem.num_nodes, s)
    for (a, b), table in zip(problem.pairs, tables, strict=True):
        joint = joint * on_axes(table, problem.num_nodes, a, b)
    return joint


def reduce_to(joint, *nodes, by=np.sum):
    """Return the marginal or max-marginal of one node or two, normalized."""
    kept = by(joint, axis=tuple(s for s in range(joint.ndim) if s not in nodes))
    return (kept if len(nodes) == 1 or nodes[0] < nodes[1] else kept.T) / kept.sum()


def normalized(message):
    """Scale a message to 2-norm 1."""
    return message / np.linalg.norm(message)


@dataclass
class Updates:
    """Synchronous updates by hand.

    Attributes:
        evaluate: maps a message to values, for each node.
        project: maps a product to a message, for each directed edge (by (sender, receiver)).
        local: factors of each node.
        clamped: nodes that ignore their incoming messages.
        rho: exponent of each pair.
    """

    evaluate: list
    project: dict
    local: list
    clamped: tuple = ()
    rho: np.ndarray | None = None
    floor: float = 0.0
    largest: bool = False

    def first(self):
        """Return {(sender, receiver): message}: the update of the constant 1."""
        updates = {
            ends: matrix.max(axis=1) if self.largest else matrix.sum(axis=1) for ends, matrix in self.project.items()
        }
        return {ends: normalized(update) for ends, update in updates.items()}

    def run(self, problem, messages, num_iters, damping):
        """Return {(sender, receiver): message} after some iterations."""
        for _ in range(num_iters):
            values = {(u, t): self.values(t, m) for (u, t), m in messages.items()}
            new = {}
            for t, s, _, _ in problem.directed:
                product = self.times(problem, t, values) / (1 if t in self.clamped else values[s, t])
                terms = self.project[t, s] * product
                update = terms.max(axis=1) if self.largest else terms.sum(axis=1)
                new[t, s] = damping * messages[t, s] + (1 - damping) * normalized(update)
            messages = new
        return messages

    def values(self, node, message):
        return np.maximum(self.evaluate[node] @ message, self.floor)

    def times(self, problem, t, values):
        """Return the local factor of a node times its incoming messages to their exponents."""
        product = self.local[t]
        for u, receiver, pair, _ in problem.directed:
            if receiver == t and t not in self.clamped:
                product = product * values[u, t] ** (1.0 if self.rho is None else self.rho[pair])
        return product

    def belief(self, problem, node, messages):
        """Return the belief of a node, normalized."""
        values = {(u, t): self.values(t, m) for (u, t), m in messages.items()}
        product = self.times(problem, node, values)
        return product / product.sum()


# --- operators --------------------------------------------------------------------------------------------------------


def random_operators(rng, problem, diagonal):
    """Return evaluate [type, point, rank], tables {pair type: [first, second]} and project [direction, rank, point]."""
    size = STATES[0]
    evaluate = [np.diag(rng.uniform(0.5, 2, size)) for _ in range(2)]
    if not diagonal:
        evaluate = [one + 0.3 * rng.normal(size=(size, size)) for one in evaluate]
    tables = {k: np.exp(rng.normal(size=(size, size))) for k in problem.ends}
    project = []
    for k, (v, w) in sorted(problem.ends.items()):
        project += [np.linalg.inv(evaluate[w]) @ tables[k].T, np.linalg.inv(evaluate[v]) @ tables[k]]
    return np.array(evaluate), tables, np.array(project)


def random_local(rng, sizes):
    """Return positive factors for each node; a third have zeros, of which some leave one state."""
    local = [np.exp(rng.normal(size=size)) for size in sizes]
    for factor in local:
        if rng.random() < 1 / 3:
            factor[rng.permutation(len(factor))[: rng.integers(1, len(factor))]] = 0
    return local


def operator_cases(rng, problem, count, arithmetic):
    """Compare `count` random operators on one graph; return the deviation of each case."""
    import jax
    import jax.numpy as jnp

    import kbpjax as kbp

    chosen = {"sum": kbp.SumProduct(), "max": kbp.MaxProduct()}
    chosen |= {f"{name} in logs": kbp.InLogs(one) for name, one in chosen.items()}
    largest, tree = arithmetic.startswith("max"), problem.acyclic
    graph = kbp.Graph.from_edges(
        problem.pairs, problem.num_nodes, edge_type=problem.pair_type, node_type=problem.node_type
    )
    schedule = kbp.colored(graph)

    def solve(evaluate, project, floor, local, rho, damping):
        operators = kbp.Operators(evaluate, project, floor=floor, arithmetic=chosen[arithmetic])
        if not tree:
            exponents = None if largest or "logs" in arithmetic else rho
            solution = kbp.run(operators, graph, local, num_iters=SWEEPS, damping=damping, exponents=exponents)
            return [solution.messages], jnp.zeros(())
        solutions = [
            kbp.run(operators, graph, local, num_iters=problem.num_nodes, damping=0.0),
            kbp.run(operators, graph, local, num_iters=problem.num_nodes, damping=0.0, schedule=schedule),
            kbp.run_tree(operators, graph, local),
        ]
        log_z = jnp.zeros(()) if largest else kbp.log_partition(operators, graph, local, solutions[-1])
        return [solution.messages for solution in solutions], log_z

    cases = []
    for _ in range(count):
        evaluate, tables, project = random_operators(rng, problem, diagonal=largest)
        local = random_local(rng, [STATES[0]] * problem.num_nodes)
        floor = 0.0 if tree else rng.choice([0.0, 0.1])
        cases.append((evaluate, tables, project, local, floor, rng.uniform(0.4, 1.2, len(problem.pairs)), rng.random()))
    evaluate, tables, project, local, floor, rho, damping = zip(*cases, strict=True)
    arrays = [jnp.asarray(np.array(part, float)) for part in (evaluate, project, floor, local, rho, damping)]
    answers, log_z = jax.tree.map(np.asarray, jax.jit(jax.vmap(solve))(*arrays))
    place = {ends: i for i, ends in enumerate(zip(*map(np.ravel, (graph.senders, graph.receivers)), strict=True))}
    place = {(int(a), int(b)): i for (a, b), i in place.items()}

    deviations = []
    for i in range(count):
        of_edge = {(a, b): (e, forth) for a, b, e, forth in problem.directed}
        matrices = {
            ends: project[i][2 * problem.pair_type[e] + (0 if forth else 1)] for ends, (e, forth) in of_edge.items()
        }
        powers = None if tree or largest or "logs" in arithmetic else rho[i]
        hand = Updates([evaluate[i][v] for v in problem.node_type], matrices, local[i], (), powers, floor[i], largest)
        found = [{ends: one[i][j] for ends, j in place.items()} for one in answers]
        if tree:
            joint = enumerate_joint(problem, local[i], [tables[i][k] for k in problem.pair_type])
            by = np.max if largest else np.sum
            expected = [reduce_to(joint, s, by=by) for s in range(problem.num_nodes)]
            gaps = [
                np.abs(hand.belief(problem, s, m) - expected[s]).max() for m in found for s in range(problem.num_nodes)
            ]
            gaps += [] if largest else [abs(log_z[i] - np.log(joint.sum()))]
        else:
            expected = hand.run(problem, hand.first(), SWEEPS, damping[i])
            gaps = [np.abs(found[0][ends] - expected[ends]).max() for ends in expected]
        deviations.append(np.max(gaps))  # NaN stays
    return deviations


# --- learned models ---------------------------------------------------------------------------------------------------

NUM_SAMPLES = 60


def random_counts(rng, size, total):
    """Return how often each of `size` values occurs among `total`, each at least four times."""
    return 4 + rng.multinomial(total - 4 * size, rng.dirichlet(np.full(size, 3.0)))


def dependent_pairs(rng, x, y, positive):
    """Reorder y so that it depends on x; both keep how often each of their values occurs.

    Some pairs of values may never occur, unless `positive`.
    """
    while True:
        order = np.argsort(x + rng.normal(scale=rng.uniform(0.5, 1.5) * x.max(), size=len(x)), kind="stable")
        paired = np.empty_like(y)
        paired[order] = np.sort(y) if rng.random() < 0.5 else np.sort(y)[::-1]
        if not positive or frequencies(x, paired, (x.max() + 1, y.max() + 1)).min() > 0:
            return x, paired


def frequencies(x, y, sizes):
    """Return the joint frequencies of two variables."""
    table = np.zeros(sizes)
    np.add.at(table, (x, y), 1 / len(x))
    return table


@dataclass
class Sampled:
    """Samples of a random model, whose edge types agree on the marginals of the node types, and their frequencies.

    Attributes:
        edges, nodes, observations: as in `kbpjax.TrainingData`.
        marginals: frequencies of the states of each node type.
        joints: {edge type: frequencies [first, second]}.
        likelihoods: P(y | x) of each node type [state, observation].
    """

    edges: dict
    nodes: dict
    observations: dict
    marginals: list
    joints: dict
    likelihoods: list


def random_samples(rng, problem, positive):
    """Draw samples of the types of a problem; with `positive`, all pairs of values occur."""
    nodes = {v: np.repeat(np.arange(k), random_counts(rng, k, NUM_SAMPLES)) for v, k in enumerate(STATES)}
    edges = {k: dependent_pairs(rng, nodes[v], nodes[w], positive) for k, (v, w) in problem.ends.items()}
    seen = {v: np.repeat(np.arange(k), random_counts(rng, k, NUM_SAMPLES)) for v, k in enumerate(STATES)}
    observations = {v: dependent_pairs(rng, nodes[v], seen[v], positive) for v in nodes}
    marginals = [np.bincount(nodes[v]) / NUM_SAMPLES for v in nodes]
    joints = {k: frequencies(*edges[k], [STATES[v] for v in ends]) for k, ends in problem.ends.items()}
    of_types = [frequencies(*observations[v], (STATES[v], STATES[v])) for v in nodes]
    likelihoods = [table / table.sum(axis=1, keepdims=True) for table in of_types]
    return Sampled(edges, nodes, observations, marginals, joints, likelihoods)


KINDS = ("expectation", "ratio", "likelihood", "clamp", "everything")
"""Kinds of evidence; the last multiplies two observations, a likelihood to a power, and clamps."""


def random_evidence(rng, problem):
    """Return observations, masks, a likelihood of each node [node, state], a power, and clamped nodes and values."""
    observed = [np.array([rng.integers(STATES[v]) for v in problem.node_type]) for _ in range(2)]
    masks = [rng.random(problem.num_nodes) < 0.6 for _ in range(2)]
    table = np.exp(rng.normal(size=(problem.num_nodes, max(STATES))))
    clamped = rng.choice(problem.num_nodes, 2, replace=False)
    values = np.array([rng.integers(STATES[problem.node_type[s]]) for s in clamped])
    return *observed, *masks, table, rng.uniform(0.3, 2), clamped, values


def factors_of(problem, sampled, kind, evidence):
    """Return the local factors of the oracle, and its clamped nodes."""
    y, again, mask, other, table, power, clamped, values = evidence
    factors = [np.ones(STATES[v]) for v in problem.node_type]
    fixed = clamped if kind in ("clamp", "everything") else ()
    for s, v in enumerate(problem.node_type):
        if kind in ("expectation", "ratio", "everything") and mask[s]:
            factors[s] = factors[s] * sampled.likelihoods[v][:, y[s]]
        if kind == "everything" and other[s]:
            factors[s] = factors[s] * sampled.likelihoods[v][:, again[s]]
        if kind in ("likelihood", "everything"):
            factors[s] = factors[s] * table[s, : STATES[v]] ** power
    for s, value in zip(clamped, values, strict=True):
        if s in fixed:
            factors[s] = factors[s] * np.eye(len(factors[s]))[value]
    return factors, tuple(fixed)


VARIANTS = {
    "constant": {"rule": "ConstantTime"},
    "linear": {"rule": "LinearTime"},
    "nonnegative": {"rule": "ConstantTime", "nonnegative": "Clipped"},
}
"""Options of `kbpjax.fit` by name, by the names of their classes."""


def learned_cases(rng, problem, count, kind, variant="constant"):
    """Compare `count` learned models on one graph; return the deviation of each case."""
    import jax
    import jax.numpy as jnp

    import kbpjax as kbp

    graph = kbp.Graph.from_edges(
        problem.pairs, problem.num_nodes, edge_type=problem.pair_type, node_type=problem.node_type
    )
    tree, states = problem.acyclic, {v: np.arange(k) for v, k in enumerate(STATES)}
    pairs = [pair for pair, k in zip(problem.pairs, problem.pair_type, strict=True) if k == problem.pair_type[0]]
    options = {name: getattr(kbp, chosen)() for name, chosen in VARIANTS[variant].items()}
    options["rule"] = dataclasses.replace(options["rule"], eps=1e-9)

    def learn(sampled):
        degrees = dict.fromkeys(states, problem.num_nodes)
        data = kbp.TrainingData(sampled.edges, sampled.nodes, sampled.observations, ends=problem.ends, degrees=degrees)
        none = {"ridge": 0.0, "obs_ridge": 0.0, "floor": 0.0}
        return kbp.fit(data, kernel=kbp.Delta(), obs_kernel=kbp.Delta(), **none, **options)

    def evidence_of(model, y, again, mask, other, table, power, clamped, values):
        ratio = {"evidence_model": kbp.DensityRatio()}
        rows = jax.tree_util.Partial(lambda table, points: table[:, points.astype(int)], table)
        if kind == "expectation":
            return kbp.observe(model, graph, y, mask=mask)
        if kind == "ratio":
            return kbp.observe(model, graph, y, mask=mask, **ratio)
        if kind == "likelihood":
            return kbp.likelihood(model, graph, rows) ** power
        if kind == "clamp":
            return kbp.clamp(model, graph, clamped, values)
        both = kbp.observe(model, graph, y, mask=mask) * kbp.observe(model, graph, again, mask=other, **ratio)
        return both * kbp.likelihood(model, graph, rows) ** power * kbp.clamp(model, graph, clamped, values, **ratio)

    def solve(model, rho, damping, *given):
        evidence = evidence_of(model, *given)
        if tree:
            solutions = [
                kbp.run(model, graph, evidence, num_iters=problem.num_nodes, damping=0.0),
                kbp.run_tree(model, graph, evidence),
            ]
        else:
            solutions = [kbp.run(model, graph, evidence, num_iters=SWEEPS, damping=damping, exponents=rho)]
        nodes = [kbp.beliefs(model, graph, evidence, solution, states) for solution in solutions]
        weights = [{v: belief.weights for v, belief in one.items()} for one in nodes]
        if not tree:
            return weights, (), ()
        joint = kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solutions[-1], states), pairs).weights
        return weights, joint, kbp.log_partition(model, graph, evidence, solutions[-1]) if kind == "likelihood" else ()

    sampled = [random_samples(rng, problem, positive=kind != "likelihood") for _ in range(count)]
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(learn, sampled))
    rho, damping = rng.uniform(0.4, 1.2, (count, len(problem.pairs))), rng.random(count)
    given = [random_evidence(rng, problem) for _ in range(count)]
    arrays = [jnp.asarray(np.array(part)) for part in (rho, damping, *zip(*given, strict=True))]
    answer = jax.tree.map(np.asarray, jax.jit(jax.vmap(solve))(models, *arrays))

    deviations, nodes_of = [], {v: [s for s in range(problem.num_nodes) if problem.node_type[s] == v] for v in states}
    for i in range(count):
        weights, joints, log_z = jax.tree.map(operator.itemgetter(i), answer)
        marginals = [sampled[i].marginals[v] for v in problem.node_type]
        factors, fixed = factors_of(problem, sampled[i], kind, given[i])
        local = [p * f for p, f in zip(marginals, factors, strict=True)]
        if tree:
            of_pairs = [sampled[i].joints[k] for k in problem.pair_type]
            ratios = [
                joint / np.outer(marginals[a], marginals[b])
                for joint, (a, b) in zip(of_pairs, problem.pairs, strict=True)
            ]
            everything = enumerate_joint(problem, local, ratios)
            expected = [reduce_to(everything, s) for s in range(problem.num_nodes)]
            found = zip(pairs, joints, strict=True)
            gaps = [np.abs(joint - reduce_to(everything, *pair)).max() for pair, joint in found]
            gaps += [abs(log_z - np.log(everything.sum()))] if kind == "likelihood" else []
        else:
            last = variant == "nonnegative"  # whose beliefs use the projection of one more update
            expected = by_hand(problem, sampled[i], marginals, factors, fixed, rho[i], damping[i], last)
            gaps = []
        for one in weights:
            gaps += [np.abs(one[v][j] - expected[s]).max() for v in states for j, s in enumerate(nodes_of[v])]
        deviations.append(np.max(gaps))  # NaN stays
    return deviations


def by_hand(problem, sampled, marginals, factors, fixed, rho, damping, last):
    """Return the beliefs after as many updates, and a last one without damping, of the conditional tables."""
    project = {}
    for a, b, e, forth in problem.directed:
        joint = sampled.joints[problem.pair_type[e]]
        project[a, b] = (joint.T if forth else joint) / marginals[b][:, None]
    hand = Updates([np.eye(len(p)) for p in marginals], project, factors, fixed, rho)
    messages = hand.run(problem, hand.first(), SWEEPS, damping)
    messages = hand.run(problem, messages, 1, 0.0) if last else messages
    beliefs = [hand.belief(problem, s, messages) * p for s, p in enumerate(marginals)]
    return [belief / belief.sum() for belief in beliefs]


# --- all --------------------------------------------------------------------------------------------------------------

ARITHMETICS = ("sum", "max", "sum in logs", "max in logs")


def compare(seed, num_graphs, batch, report=print):
    """Compare all kinds of cases on random graphs, the first a star, every second a tree; return all deviations."""
    rng, deviations = np.random.default_rng(seed), []
    variants = itertools.cycle(VARIANTS)
    for number in range(num_graphs):
        num_cycles = 0 if number % 2 == 0 else int(rng.integers(1, 4))
        problem = hub(rng) if number == 0 else random_problem(rng, num_cycles)
        name = f"{num_cycles} cycles" if num_cycles else "tree" if number else "star"
        calls = [(f"operators, {one}", operator_cases, (one,)) for one in ARITHMETICS]
        for kind, variant in zip(KINDS, variants, strict=False):
            calls.append((f"learned ({variant}), {kind}", learned_cases, (kind, variant)))
        for label, call, arguments in calls:
            start, found = time.perf_counter(), call(rng, problem, batch, *arguments)
            report(f"{name:9} {label:36} {len(found):4} {np.max(found):8.1e} {time.perf_counter() - start:6.1f} s")
            deviations += found
    return np.array(deviations)


def main(arguments=None):
    """Run from the command line; the exit status is 1 if a deviation exceeds the target."""
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.enumeration", description=about)
    parser.add_argument("--cases", type=int, default=1000, help="at least so many")
    parser.add_argument("--graphs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # the programs are short: most of the time is compilation
    batch = -(-options.cases // (options.graphs * (len(ARITHMETICS) + len(KINDS))))
    deviations = compare(options.seed, options.graphs, batch)
    largest = np.max(deviations)
    print(f"{len(deviations)} cases, largest deviation {largest:.1e} (target {TARGET:.0e}), seed {options.seed}")
    return 0 if largest <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
