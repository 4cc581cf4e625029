"""The landmarks of a model: chosen from training data, and held where the choice is to stay as it is."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array

from kbpjax import _checks
from kbpjax.features import FeatureMap
from kbpjax.kernels import Kernel
from kbpjax.rules import ConstantTime, NodeBasis, Rule
from kbpjax.training import TrainingData

DEFAULT_DEGREE = 5
"""Degree taken where the training data do not tell: a grid node with an observation, as in the paper."""


def hold(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
) -> Rule:
    """Choose the landmarks that `fit` would choose, and return the rule that keeps them whatever the kernels.

    `fit` with that rule is a smooth function of the kernels' parameters, and under `jax.jit` it does not choose again:
    gradient steps want this, with landmarks chosen anew every few steps.

    Args:
        data: training data.
        kernel: as in `fit`.
        obs_kernel: as in `fit`.
        rule: the update rule that chooses.

    Returns:
        The rule with its landmarks; `FullRank`, which chooses none, as it is.

    Raises:
        ValueError: as `fit`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(10), np.linspace(0, 1, 200).reshape(20, 10))
        >>> held = kbp.hold(data, kernel=kbp.RBF(0.3), rule=kbp.ConstantTime(eps=1e-2))
        >>> narrow, wide = (kbp.fit(data, kernel=kbp.RBF(s), rule=held) for s in (0.2, 0.4))
        >>> bool((narrow.points[0] == wide.points[0]).all())
        True
    """
    nodes, observations = choose(data, kernel, obs_kernel, rule)
    return rule.hold(nodes, {v: basis for v, (basis, _) in observations.items()})


def choose(
    data: TrainingData, kernel: Any, obs_kernel: Any, rule: Rule
) -> tuple[dict[int, NodeBasis], dict[int, tuple[FeatureMap, Array]]]:
    """Choose the bases of all node types, and of their observations with the residuals left."""
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, Rule), "rule", "must be an update rule", repr(rule), fix)
    kernels = _kernels("kernel", kernel, data.nodes)
    obs_kernels = _kernels("obs_kernel", obs_kernel, data.observations)
    _check_domains(data, kernels, obs_kernels)
    degrees = dict(data.degrees)
    powers = {v: max(1, degrees.get(v, DEFAULT_DEGREE) - 1) for v in data.nodes}
    chosen = {v: rule.node_basis(kernels[v], powers[v], data, v) for v in data.nodes}
    return chosen, {v: rule.observation_basis(obs_kernels[v], y, v) for v, (_, y) in data.observations.items()}


def _check_domains(data: TrainingData, kernels: dict[int, Kernel], obs_kernels: dict[int, Kernel]) -> None:
    """Show the training samples to the kernels; those of edges too, unless they are known to be among the nodes'."""
    for v, x in data.nodes.items():
        kernels[v].check(f"nodes[{v}]", x)
    for v, (_, y) in data.observations.items():
        obs_kernels[v].check(f"observations[{v}]", y)
    for k, *ends in data.ends if data.rows is None else ():
        for v, x in zip(ends, data.edges[k], strict=True):
            kernels[v].check(f"edges[{k}]", x)


def _kernels(argument: str, kernel: Any, samples: Mapping[int, Any]) -> dict[int, Kernel]:
    """Give every type of `samples` its kernel."""
    if isinstance(kernel, Kernel):
        return dict.fromkeys(samples, kernel)
    given = dict(kernel) if isinstance(kernel, Mapping) else {}
    missing = [v for v in samples if not isinstance(given.get(v), Kernel)]
    rule = f"must be a kernel, or one for each node type {sorted(samples)}"
    got = f"{type(kernel).__name__} without a kernel for {missing}"
    _checks.require(not missing, argument, rule, got, "Pass for instance kbpjax.RBF(bandwidth).")
    return {v: given[v] for v in samples}
