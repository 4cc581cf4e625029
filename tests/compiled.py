"""Functions of the package compiled as a whole: one operation at a time, each call would make dozens of programs."""

import equinox as eqx
import jax

import kbpjax as kbp

init = eqx.filter_jit(kbp.init)
step = eqx.filter_jit(kbp.step)
observe = eqx.filter_jit(kbp.observe)
likelihood = eqx.filter_jit(kbp.likelihood)
clamp = eqx.filter_jit(kbp.clamp)
run = eqx.filter_jit(kbp.run)
run_tree = eqx.filter_jit(kbp.run_tree)
beliefs = eqx.filter_jit(kbp.beliefs)
log_belief = eqx.filter_jit(kbp.log_belief)
refine_mode = eqx.filter_jit(kbp.refine_mode)
log_partition = eqx.filter_jit(kbp.log_partition)


def edge_beliefs(model, graph, evidence, solution, edges, points):
    """Close over the graph, the edges and the points: which edges are asked for must be known."""

    def answer(model, evidence, solution):
        return kbp.edge_beliefs(model, graph, evidence, solution, edges, points)

    return jax.jit(answer)(model, evidence, solution)
