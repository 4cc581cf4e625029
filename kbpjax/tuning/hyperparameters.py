"""Hyperparameters of learning and inference in one pytree, which can be optimized and saved."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution, run
from kbpjax.inference.schedules import Schedule
from kbpjax.kernels import Kernel
from kbpjax.kernels.base import as_floats
from kbpjax.learning.data import TrainingData
from kbpjax.learning.learn import learn_model
from kbpjax.learning.margins import with_own_margins
from kbpjax.learning.model import KernelMRF, with_chosen
from kbpjax.learning.observations import EvidenceModel, Expectation
from kbpjax.learning.regression import Positive
from kbpjax.learning.relations import with_cells, with_own_relations
from kbpjax.learning.rules import ConstantTime, Rule, fix_landmarks
from kbpjax.posterior.beliefs import beliefs
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.infer import recipe, solve
from kbpjax.posterior.marginals import Marginal, MeanEmbedding
from kbpjax.tuning.front_ends import KINDS, with_front_ends

Number = Float[Array, ""]


def _number(value: Any) -> Any:
    """Convert a number, or a mapping of numbers by type, to arrays that can be optimized."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {k: _number(v) for k, v in value.items()}
    number = as_floats(_checks.as_array("number", value))
    return number.astype(number.dtype)  # strong type


class Hyperparameters(Checked):
    """Hyperparameters of `fit`, `observe`, `run` and `beliefs` in one object; `tune` optimizes its numbers.

    Without a schedule, inference is that of `infer`: exact on forests, tree-reweighted and converged on graphs with
    cycles. The floor is 1e-3, which keeps gradients small, and there are fewer landmarks than in `fit`, because each
    step of `tune` fits a model.

    Args:
        kernel: kernel of the variables, or {node type: kernel}.
        obs_kernel: kernel of the observations, or {node type: kernel}.
        ridge: lambda of eq. 11, or {edge type: lambda}.
        obs_ridge: lambda of the observation operators, or {node type: lambda}; None: `ridge`.
        floor: minimum value of an evaluated message, relative to the maximum, in [0, 1).
        damping: weight of the old message, in [0, 1); None: 0.2. Only with a schedule.
        exponents: exponent of the messages: one number, {edge type: number}, or one for each undirected edge [pair].
            None: those of `tree_reweighting`; with a schedule 1, belief propagation.
        evidence_power: likelihood tempering exponent, > 0.
        temperature: temperature of the beliefs, > 0; see `temper`.
        rule: the update rule. The time of tuning is proportional to the squared ranks: keep them small.
        nonnegative: `Clipped()` or `ConstrainedFit()`, which make updates nonnegative; None: as estimated with a
            schedule or on forests, else clipped.
        schedule: message schedule of `kbpjax.run`, such as `Synchronous()`; `colored(graph)` is valid for one graph
            only. None: as `infer`, with a colored schedule and Anderson acceleration, for graphs that are not traced.
        evidence_model: evidence model, `Expectation()` or `DensityRatio()`.
        num_iters: number of iterations of belief propagation on graphs with cycles; with `tol`, the maximum. Forests
            are solved exactly (without exponents).
        own_margins: node types whose values are standardized for each node (see `kbpjax.fit`, margins="node"); their
            kernels are in these units.
        front_ends: (node type, kind of regression) of observations that are replaced by predictions of the variable:
            "trees" or "kernel ridge". `obs_kernel` is the kernel of the predictions. `fit` learns the regressions.
        tol: residual at which iterations stop, with derivatives of the fixed point; None: run all `num_iters`
            iterations, and differentiate through them.
        relation: estimator of the relations, "ridge" or "counts"; see `kbpjax.fit`.
        own_strength: number of pairs that the relation of an edge type counts for in those of its edges; None: they
            have the relation of their type. See `kbpjax.fit`, sharing.
        reweighting: factor of the exponents of `tree_reweighting`, which are at most 1, > 0.
        edge_features: whether relations vary with the features of edges (`Graph.edge_features`).
        own_starts: node types whose nodes without an incoming edge have a separate marginal; see `kbpjax.fit`, starts.

    Raises:
        ValueError: floor, damping, evidence_power or temperature is out of range, or damping without a schedule. `fit`
            and `run` check the other fields.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(0, 1, 200).reshape(20, 10)
        >>> graph = kbp.chain_graph(10)
        >>> data = kbp.pool(graph, x, observations=x)
        >>> hyperparameters = kbp.Hyperparameters(kbp.RBF(0.3), kbp.RBF(0.2))
        >>> belief = hyperparameters.answer(hyperparameters.fit(data), graph, x[3], np.linspace(0, 1, 21))
        >>> belief.weights.shape
        (10, 21)
    """

    requires_finite = True

    kernel: Kernel | dict[int, Kernel]
    obs_kernel: Kernel | dict[int, Kernel] | None = None
    ridge: Number | dict[int, Number] = eqx.field(default=1e-6, converter=_number)
    obs_ridge: Number | dict[int, Number] | None = eqx.field(default=None, converter=_number)
    floor: Number = eqx.field(default=1e-3, converter=_number)
    damping: Number | None = eqx.field(default=None, converter=_number)
    exponents: Float[Array, "*pair"] | dict[int, Number] | None = eqx.field(default=None, converter=_number)
    evidence_power: Number = eqx.field(default=1.0, converter=_number)
    temperature: Number = eqx.field(default=1.0, converter=_number)
    rule: Rule = ConstantTime(eps=1e-3, max_rank=32)
    nonnegative: Positive | None = None
    schedule: Schedule | None = None
    evidence_model: EvidenceModel = Expectation()
    num_iters: int = eqx.field(static=True, converter=_checks.whole, default=200)
    tol: float | None = eqx.field(static=True, default=1e-3)
    own_margins: tuple[int, ...] = eqx.field(static=True, default=())
    relation: str = eqx.field(static=True, default="ridge")
    own_strength: float | None = eqx.field(static=True, default=None)
    reweighting: Number = eqx.field(default=1.0, converter=_number)
    front_ends: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())
    edge_features: bool = eqx.field(static=True, default=False)
    own_starts: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        _checks.require_number("floor", self.floor, least=0, below=1)
        if self.damping is not None:
            _checks.require_number("damping", self.damping, least=0, below=1)
            fix = "Leave it out: the default needs no damping. Or pass schedule=kbpjax.Synchronous()."
            unused = self.schedule is None
            _checks.require(not unused, "damping", "must be None without a schedule", "a number", fix)
        for name in ("evidence_power", "temperature", "reweighting"):
            _checks.require_number(name, getattr(self, name), above=0)
        unknown = [kind for _, kind in self.front_ends if kind not in KINDS]
        fix = "Pass for instance ((0, 'trees'),)."
        _checks.require(not unknown, "front_ends", f"must be of the kinds {list(KINDS)}", unknown, fix)

    def fit(self, data: TrainingData) -> KernelMRF:
        """Return the model fitted to the data (`kbpjax.fit`), with this evidence model, power and temperature."""
        return _learned(self, data)

    def standardized(self, data: TrainingData) -> TrainingData:
        """Return the data with standardized values of the node types with own margins, and predicted ones."""
        return with_front_ends(with_own_margins(data, self.own_margins), self.front_ends)

    def fix_landmarks(self, data: TrainingData, *, pad: bool = False) -> Rule:
        """Select landmarks, and return the rule with these landmarks fixed (`kbpjax.fix_landmarks`)."""
        return fix_landmarks(
            self.standardized(data), kernel=self.kernel, obs_kernel=self.obs_kernel, rule=self.rule, pad=pad
        )

    def run(self, model: KernelMRF, graph: Graph, evidence: Evidence | None) -> Solution:
        """Return the solution of belief propagation: exact on a forest, else as `infer`, or of `kbpjax.run`."""
        options: Any = {"num_iters": self.num_iters, "tol": self.tol, "exponents": self._exponents(graph)}
        exact = self.exponents is None
        if self.schedule is None or (exact and graph.forest is not None) or graph.num_edges == 0:
            return solve(model, graph, evidence, recipe(graph, exact=exact), **options)
        damping = 0.2 if self.damping is None else self.damping
        return run(model, graph, evidence, damping=damping, schedule=self.schedule, **options)

    def observe(
        self, model: KernelMRF, graph: Graph, y: Numbers | Mapping[int, Numbers], *, mask: Numbers | None = None
    ) -> Evidence:
        """Return the evidence of observations (`kbpjax.observe`), raised to `evidence_power`."""
        return observe(model, graph, y, mask=mask, evidence_model=self.evidence_model, power=self.evidence_power)

    def answer(
        self,
        model: KernelMRF,
        graph: Graph,
        y: Numbers | Mapping[int, Numbers],
        points: Numbers | Mapping[int, Numbers],
        *,
        mask: Numbers | None = None,
        marginal: Marginal = MeanEmbedding(),
    ) -> Any:
        """Return the beliefs given observations at evaluation points, in the format of `beliefs`.

        Observations that are NaN, or where `mask` is False, are missing.
        """
        evidence = self.observe(model, graph, y, mask=mask)
        solution = self.run(model, graph, evidence)
        options: Any = {"marginal": marginal, "temperature": self.temperature}
        return beliefs(model, graph, evidence, solution, points, **options)

    def _exponents(self, graph: Graph) -> Array | None:
        """Return the exponent of each undirected edge [pair], or `exponents` if it is not a mapping."""
        if not isinstance(self.exponents, dict):
            return self.exponents
        missing = [k for k, *_ in graph.edge_types if k not in self.exponents]
        rule = "must be one number, or one number per edge type of the graph"
        _checks.require(not missing, "exponents", rule, f"none for {missing}", "Add them.")
        table = jnp.ones(1 + max(self.exponents), self.temperature.dtype)
        for k, value in self.exponents.items():
            table = table.at[k].set(value.astype(table.dtype))
        return table[graph.edge_type[: graph.num_edges // 2]]

    __repr__ = show_fields


def _learned(chosen: Hyperparameters, data: TrainingData, levels: Mapping[int, Array] | None = None) -> KernelMRF:
    """Return the model fitted to the data, with smoothed counts at levels {node type: points}; None: chosen."""
    data, own = with_cells(data) if chosen.edge_features else (data, None)
    if chosen.own_strength is not None:
        data, own = with_own_relations(data, chosen.own_strength, own)
    model = learn_model(
        chosen.standardized(data),
        kernel=chosen.kernel,
        obs_kernel=chosen.obs_kernel,
        rule=chosen.rule,
        ridge=chosen.ridge,
        obs_ridge=chosen.obs_ridge,
        floor=chosen.floor,
        nonnegative=chosen.nonnegative,
        relation=chosen.relation,
        levels=levels,
        own=own,
        starts=chosen.own_starts,
    )
    return with_chosen(model, chosen.evidence_model, chosen.evidence_power, chosen.temperature, chosen.reweighting)


def refit_of(model: KernelMRF, levels: Mapping[int, Array] | None = None) -> Callable[[TrainingData], KernelMRF] | None:
    """Return what fits a model of smoothed counts to other data, at the same levels; None without hyperparameters.

    Args:
        model: the model.
        levels: other levels of some node types.
    """
    chosen = model.hyperparameters
    if chosen is None or chosen.relation != "counts":
        return None
    return partial(_learned, chosen, levels=dict(model.points) | dict(levels or {}))
