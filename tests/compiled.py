"""Functions of the package compiled as a whole: one operation at a time, each call would make dozens of programs."""

import equinox as eqx

import kbpjax as kbp

init = eqx.filter_jit(kbp.init)
step = eqx.filter_jit(kbp.step)
observe = eqx.filter_jit(kbp.observe)
clamp = eqx.filter_jit(kbp.clamp)
run = eqx.filter_jit(kbp.run)
run_tree = eqx.filter_jit(kbp.run_tree)
beliefs = eqx.filter_jit(kbp.beliefs)
edge_beliefs = eqx.filter_jit(kbp.edge_beliefs)
log_belief = eqx.filter_jit(kbp.log_belief)
refine_mode = eqx.filter_jit(kbp.refine_mode)
