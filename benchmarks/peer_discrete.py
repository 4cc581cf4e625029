"""Time the package PGMax on the problem of `benchmarks/discrete.py`; prints one line of JSON. Run by that script.

python benchmarks/peer_discrete.py STATES SIDE ITERS REPEATS
"""

import json
import resource
import statistics
import sys
import time

import jax
import numpy as np
from pgmax import fgraph, fgroup, infer, vgroup

states, side, iters, repeats = map(int, sys.argv[1:])
rng = np.random.default_rng(states)
table, local = rng.random((states, states)) + 0.1, rng.random((side * side, states)) + 0.1
start = time.perf_counter()
pixels = vgroup.NDVarArray(num_states=states, shape=(side, side))
across = [[pixels[i, j], pixels[i, j + 1]] for i in range(side) for j in range(side - 1)]
down = [[pixels[i, j], pixels[i + 1, j]] for i in range(side - 1) for j in range(side)]
graph = fgraph.FactorGraph(variable_groups=pixels)
graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=across + down, log_potential_matrix=np.log(table)))
inferer = infer.build_inferer(graph.bp_state, backend="bp")
arrays = inferer.init(evidence_updates={pixels: np.log(local).reshape(side, side, states)})
build_s = time.perf_counter() - start


def run():
    start = time.perf_counter()
    out = jax.block_until_ready(inferer.run(arrays, num_iters=iters, damping=0.2, temperature=1.0))
    return out, time.perf_counter() - start


out, first = run()
seconds = statistics.median(run()[1] for _ in range(repeats))
marginals = infer.get_marginals(inferer.get_beliefs(out))[pixels].reshape(-1, states)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
found = {"build_s": build_s, "first_s": first, "run_s": seconds, "peak_gib": peak}
print(json.dumps({**found, "marginals": np.asarray(marginals)[:3].tolist()}))
