"""Baselines: other kinds of belief propagation, over the same graphs, with the same evidence and beliefs.

`discrete` has states and tables, `gaussian` joint Gaussians. `nonparametric` (mixtures of Gaussians), `particle` and
`expectation_particle` work on the models of `pairwise`, whose potentials are functions or learned by `density`. Each of
these five has the functions

    run(model, graph, evidence=None, *, num_iters=30, damping=0.2, tol=None, key=None, ...) -> solution
    beliefs(model, graph, evidence, solution, points) -> kbpjax.Belief

and every solution has `messages` (particles: `log_messages`), `converged`, `num_iters` and `residuals` [max_iters]. The
key is one of `jax.random`; None means `jax.random.key(0)`, and deterministic methods ignore it.

`elimination` has the exact answers of discrete models whose graphs are narrow.
"""

from kbpjax.baselines import discrete, elimination, gaussian, nonparametric
from kbpjax.baselines.evidence import transfer_evidence
from kbpjax.baselines.nonparametric import density, expectation_particle, mixtures, pairwise, particle, products

__all__ = [
    "density",
    "discrete",
    "elimination",
    "expectation_particle",
    "gaussian",
    "mixtures",
    "nonparametric",
    "pairwise",
    "particle",
    "products",
    "transfer_evidence",
]
