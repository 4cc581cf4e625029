"""Update rules of the paper: finite representations of messages and of products of messages.

All rules share one update, *evaluate, multiply, project* (section 5). They differ in the representation:

| rule           | messages are in the span of         | products are evaluated at    | cost per message |
| -------------- | ----------------------------------- | ---------------------------- | ---------------- |
| `FullRank`     | all training samples (eq. 12)       | all training samples         | O(m^2)           |
| `LinearTime`   | a few landmarks of k (section 5.2)  | all training samples         | O(m l)           |
| `ConstantTime` | a few landmarks of k (section 5.3)  | a few landmarks of k^(d - 1) | O(l l')          |

In all rules, a message is a vector of coordinates in an orthonormal basis. Its 2-norm is its RKHS norm, so damping has
the same meaning for all rules. The three rules agree in the limit eps -> 0.
"""

from collections.abc import Mapping
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.features import (
    Basis,
    FeatureMap,
    LandmarkSelector,
    PivotedCholesky,
    RandomFourier,
    RandomlyPivotedCholesky,
    cholesky_basis,
)
from kbpjax.kernels import Kernel
from kbpjax.kernels.base import as_floats
from kbpjax.learning.data import TrainingData

DEFAULT_DEGREE = 5
"""Default degree: a grid node with an observation, as in the paper."""


class NodeBasis(eqx.Module):
    """Representation of the incoming messages of a node type and of their products.

    Attributes:
        messages: features in which a message is linear.
        products: basis of products of messages, with landmarks `points`; None: `points` are the training samples.
        points: points at which messages are evaluated and multiplied [point, *dim].
        residuals: maximum residual norm of training samples in `messages` and in `products`, relative to the maximum
            feature norm.
    """

    messages: FeatureMap
    products: Basis | None
    points: Shaped[Array, "point *dim"]
    residuals: tuple[Float[Array, ""], Float[Array, ""]]

    __repr__ = show_fields


class FixedLandmarks(Checked):
    """An update rule with fixed landmarks, the result of `kbpjax.fix_landmarks`.

    Attributes:
        rule: the rule that selected the landmarks.
        messages, products, observations: {node type: (landmarks, mask of valid landmarks)} of the bases with landmarks.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3))
        >>> rule = kbp.fix_landmarks(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=1e-2))
        >>> landmarks, valid = rule.messages[0]
        >>> kbp.fit(data, kernel=kbp.RBF(0.6), rule=rule).ranks[0][0] == len(landmarks)  # another kernel
        True
    """

    rule: "LinearTime | ConstantTime"
    messages: dict[int, tuple[Array, Array]]
    products: dict[int, tuple[Array, Array]]
    observations: dict[int, tuple[Array, Array]]

    def node_basis(self, kernel: Kernel, power: int, data: TrainingData, node_type: int) -> NodeBasis:
        """Return the bases of a node type on its fixed landmarks; residuals are not computed and are NaN."""
        unknown = _unknown(data.nodes[node_type])
        self._require(node_type in self.messages or isinstance(self.rule.features, RandomFourier), node_type)
        self._require(node_type in self.products or isinstance(self.rule, LinearTime), node_type)
        if node_type in self.messages:
            messages = cholesky_basis(kernel, *self.messages[node_type])
        else:
            messages, _ = self.rule.features.feature_map(kernel, data.nodes[node_type], self.rule.eps, 1)
        if node_type not in self.products:
            return NodeBasis(messages, None, data.points(node_type), (unknown, unknown))
        products = cholesky_basis(kernel**power, *self.products[node_type])
        return NodeBasis(messages, products, products.landmarks, (unknown, unknown))

    def observation_basis(self, kernel: Kernel, y: Array, node_type: int) -> tuple[FeatureMap, Array]:
        """Return the basis of observations on its fixed landmarks, and the residual NaN."""
        self._require(node_type in self.observations, node_type)
        return cholesky_basis(kernel, *self.observations[node_type]), _unknown(y)

    def check_memory(self, data: TrainingData, nonnegative: bool = False) -> None:
        """Raise ValueError if the matrices of a model would need more than half of the memory."""
        self.rule.check_memory(data, nonnegative)

    def _require(self, ok: bool, node_type: int) -> None:
        fix = "Call kbpjax.fix_landmarks on data with all node types and their observations."
        _checks.require(ok, "rule", f"must have landmarks of node type {node_type}", "none", fix)

    def fix_landmarks(self, nodes: dict[int, NodeBasis], observations: dict[int, FeatureMap]) -> "FixedLandmarks":
        """Return this rule, whose landmarks are already fixed."""
        del nodes, observations
        return self

    __repr__ = show_fields


class FullRank(Checked):
    """The exact update rule (eq. 12): all samples are landmarks and evaluation points of products.

    O(m^2) memory and time per message, O(m^3) once: the reference for small m. Repeated samples are kept. With many
    repeated samples, `ConstantTime` with a small `eps` gives the same result at the cost of the distinct samples.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3))
        >>> kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.FullRank()).ranks  # 60 samples
        {0: (60, 60)}
    """

    def node_basis(self, kernel: Kernel, power: int, data: TrainingData, node_type: int) -> NodeBasis:
        """Return bases with all samples as landmarks."""
        del power  # products are evaluated at all samples
        points = data.points(node_type)
        basis, zero = self.observation_basis(kernel, points, node_type)
        return NodeBasis(basis, None, points, (zero, zero))

    def observation_basis(self, kernel: Kernel, y: Array, node_type: int) -> tuple[FeatureMap, Array]:
        """Return the basis with all observations as landmarks, and its residual, 0."""
        del node_type
        # Jitter of the rounding error of len(y) terms makes repeated samples linearly independent.
        basis = cholesky_basis(kernel, y, rounding=len(y))
        return basis, jnp.zeros((), basis.transform.dtype)

    def check_memory(self, data: TrainingData, nonnegative: bool = False) -> None:
        """Raise ValueError if the matrices of a model would need more than half of the memory."""
        _check_memory("FullRank", data, nonnegative)

    def fix_landmarks(self, nodes: dict[int, NodeBasis], observations: dict[int, FeatureMap]) -> "FullRank":
        """Return this rule, whose landmarks are already fixed."""
        del nodes, observations
        return self

    __repr__ = show_fields


class _LandmarkRule(Checked):
    """Base class of the two rules with selected landmarks."""

    eps: float = eqx.field(static=True, default=1e-3, converter=float)
    max_rank: int = eqx.field(static=True, default=128, converter=_checks.whole)
    features: LandmarkSelector = PivotedCholesky()

    def __check_init__(self) -> None:
        fix = "eps is a relative residual, such as 1e-3; the number of landmarks is max_rank=."
        _checks.require_number("eps", self.eps, above=0, below=1, fix=fix)
        _checks.require_count("max_rank", self.max_rank)
        fix = "Pass PivotedCholesky(), RandomFourier(num_features, seed), or a custom `LandmarkSelector`."
        ok = isinstance(self.features, LandmarkSelector)
        _checks.require(ok, "features", "must be a LandmarkSelector", repr(self.features), fix)

    def observation_basis(self, kernel: Kernel, y: Array, node_type: int) -> tuple[FeatureMap, Array]:
        """Select landmarks among observations; return their basis and its residual."""
        del node_type
        return _select(self.features.products, kernel, y, self.eps, self.max_rank)

    def fix_landmarks(self, nodes: dict[int, NodeBasis], observations: dict[int, FeatureMap]) -> FixedLandmarks:
        """Return this rule with the landmarks of the bases fixed."""
        messages, products = ({v: getattr(b, name) for v, b in nodes.items()} for name in ("messages", "products"))
        rule: Any = self  # one of the two classes below
        return FixedLandmarks(rule, _landmarks(messages), _landmarks(products), _landmarks(observations))

    __repr__ = show_fields


class LinearTime(_LandmarkRule):
    """The update rule with messages on landmarks and products at all training samples (section 5.2): O(m l) time.

    Args:
        eps: tolerance > 0 on the residual norms of training samples, relative to the maximum feature norm.
        max_rank: maximum number of landmarks, >= 1.
        features: landmark selector: `PivotedCholesky()`, `RandomlyPivotedCholesky(seed)`, or
            `RandomFourier(num_features, seed)`, random features without landmarks, which ignore `eps` and `max_rank`.

    Raises:
        ValueError: an option is out of range.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3))
        >>> rank, points = kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.LinearTime(eps=1e-2)).ranks[0]
        >>> rank < 15, points  # landmarks of messages, products at all samples
        (True, 60)
    """

    def node_basis(self, kernel: Kernel, power: int, data: TrainingData, node_type: int) -> NodeBasis:
        """Return the basis of messages on landmarks selected among the samples of a node type."""
        del power  # products are evaluated at all samples
        messages, residual = _select(self.features, kernel, data.nodes[node_type], self.eps, self.max_rank)
        return NodeBasis(messages, None, data.points(node_type), (residual, jnp.zeros_like(residual)))

    def check_memory(self, data: TrainingData, nonnegative: bool = False) -> None:
        """Raise ValueError if the matrices of a model would need more than half of the memory."""
        rank = self.features.num_features if isinstance(self.features, RandomFourier) else self.max_rank
        _check_memory("LinearTime", data, nonnegative, rank)


class ConstantTime(_LandmarkRule):
    """The update rule with messages and products on landmarks (section 5.3): O(l l') time, independent of m.

    Args:
        eps: tolerance > 0 on the residual norms of training samples, relative to the maximum feature norm. Smaller
            values are slower and closer to the full-rank rule; single precision resolves about 1e-3.
        max_rank: maximum number of landmarks of a basis, >= 1.
        features: landmark selector: `PivotedCholesky()`, `RandomlyPivotedCholesky(seed)`, or
            `RandomFourier(num_features, seed)`, random features for messages and landmarks for products only.
        tensor_eps: tolerance of the basis of products; None: `eps`.
        tensor_rank: maximum rank of the basis of products; None: `max_rank`.

    Raises:
        ValueError: an option is out of range.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3))
        >>> coarse, fine = (kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=eps)) for eps in (0.1, 0.001))
        >>> coarse.ranks[0] < fine.ranks[0] < (15, 15)
        True
    """

    tensor_eps: float | None = eqx.field(static=True, default=None)
    tensor_rank: int | None = eqx.field(static=True, converter=_checks.whole, default=None)

    def __check_init__(self) -> None:
        if self.tensor_eps is not None:
            _checks.require_number("tensor_eps", self.tensor_eps, above=0, below=1)
        if self.tensor_rank is not None:
            _checks.require_count("tensor_rank", self.tensor_rank)

    def node_basis(self, kernel: Kernel, power: int, data: TrainingData, node_type: int) -> NodeBasis:
        """Return bases on landmarks selected among the samples; products use the tensor power of the kernel."""
        x = data.nodes[node_type]
        messages, residual = _select(self.features, kernel, x, self.eps, self.max_rank)
        eps = self.eps if self.tensor_eps is None else self.tensor_eps
        max_rank = self.max_rank if self.tensor_rank is None else self.tensor_rank
        products, product_residual = _select(self.features.products, kernel**power, x, eps, max_rank)
        fix = "Its `products` must select landmarks, as PivotedCholesky() does."
        got = type(products).__name__
        _checks.require(isinstance(products, Basis), "features", "must have products on a `Basis`", got, fix)
        products = cast(Basis, products)
        return NodeBasis(messages, products, products.landmarks, (residual, product_residual))

    def check_memory(self, data: TrainingData, nonnegative: bool = False) -> None:
        """Do nothing, because no matrix grows with the training data."""
        del data, nonnegative


Rule = FullRank | LinearTime | ConstantTime | FixedLandmarks


def _unknown(x: Array) -> Float[Array, ""]:
    """Return the residual NaN, in the precision of samples."""
    return jnp.full((), jnp.nan, jax.eval_shape(as_floats, x).dtype)


def _select(
    selector: LandmarkSelector, kernel: Kernel, x: Array, eps: float, max_rank: int
) -> tuple[FeatureMap, Float[Array, ""]]:
    """Return the feature map of a selector and its residual; raise ValueError if traced values decide its rank."""
    by_values = isinstance(selector, PivotedCholesky | RandomlyPivotedCholesky)
    ok = not (by_values and _checks.is_traced((kernel, x)))
    rule = "must have fixed landmarks inside jax.jit, vmap or grad"
    fix = "Select them outside: rule=kbpjax.fix_landmarks(data, kernel=..., ...)."
    _checks.require(ok, "rule", rule, f"{type(selector).__name__} of traced data or kernels", fix)
    return selector.feature_map(kernel, x, eps, max_rank)


def _landmarks(bases: Mapping[int, FeatureMap | None]) -> dict[int, tuple[Array, Array]]:
    """Return the landmarks of the bases that have landmarks, and masks of valid landmarks."""
    selected = {v: basis for v, basis in bases.items() if isinstance(basis, Basis)}
    return {v: (basis.landmarks, jnp.diagonal(basis.transform) != 0) for v, basis in selected.items()}


def _check_memory(rule: str, data: TrainingData, nonnegative: bool, rank: int | None = None) -> None:
    """Raise ValueError if the matrices of a model would need more than half of the memory.

    A model has one `evaluate` per node type and two `project` per edge type, padded to the largest node type. `rank`
    None means the number of points. It then also has the Gram matrix, its factor and the normal equations, of variables
    and of observations.
    """
    points = max(len(data.points(v)) for v in data.nodes)
    observed = max((len(y) for _, y in data.observations.values()), default=0)
    work = points * rank if rank else 3 * points**2 + 2 * observed**2
    edges = 2 * (1 + max(data.edges, default=-1))
    numbers = points * (rank or points) * (1 + max(data.nodes) + edges) + work + nonnegative * edges * points**2
    floats = [x.dtype for x in data.nodes.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    itemsize = max((dtype.itemsize for dtype in floats), default=jnp.result_type(float).itemsize)
    need, have = numbers * itemsize, _checks.memory()
    fix = "Use kbpjax.ConstantTime, whose matrices are independent of the number of samples, or fewer samples."
    got = f"{_checks.gib(need)} for {points} samples of a node type and {edges} directed edge types"
    _checks.require(
        need <= have / 2, "rule", f"matrices of {rule} must fit in half of {_checks.gib(have)} memory", got, fix
    )


@public
def fix_landmarks(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
    pad: bool = False,
) -> Rule:
    """Return the rule with the landmarks fixed that `fit` would select.

    The number of landmarks depends on values, so they cannot be selected inside `jax.jit`, `jax.vmap` or `jax.grad`.
    Call this function outside and `fit` inside. With fixed landmarks, `fit` is a smooth function of the kernel
    parameters: use it in gradient descent, and select landmarks again every few steps.

    Args:
        data: training data.
        kernel: as in `fit`.
        obs_kernel: as in `fit`.
        rule: the update rule that selects the landmarks.
        pad: whether to pad the landmarks to the maximum ranks of the rule, with features that are 0. A program compiled
            for one selection then serves all others, but does the work of the maximum ranks.

    Returns:
        The rule with fixed landmarks. `FullRank` selects no landmarks and is returned unchanged.

    Raises:
        ValueError: as `fit`; the data or the kernels are traced.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(10), np.linspace(0, 1, 200).reshape(20, 10))
        >>> fixed = kbp.fix_landmarks(data, kernel=kbp.RBF(0.3), rule=kbp.ConstantTime(eps=1e-2))
        >>> narrow, wide = (kbp.fit(data, kernel=kbp.RBF(s), rule=fixed) for s in (0.2, 0.4))
        >>> bool((narrow.points[0] == wide.points[0]).all())
        True
    """
    nodes, observations = build_bases(data, kernel, obs_kernel, rule)
    fixed = rule.fix_landmarks(nodes, {v: basis for v, (basis, _) in observations.items()})
    return _pad_landmarks(fixed, data) if pad and isinstance(fixed, FixedLandmarks) else fixed


def _pad_landmarks(rule: FixedLandmarks, data: TrainingData) -> FixedLandmarks:
    """Return fixed landmarks padded to the maximum ranks, or to the numbers of samples if these are smaller."""
    nodes, observations = data.nodes, {v: y for v, (_, y) in data.observations.items()}
    most = rule.rule.max_rank
    of_products = rule.rule.tensor_rank if isinstance(rule.rule, ConstantTime) else None
    return FixedLandmarks(
        rule.rule,
        {v: _padded(pair, min(most, len(nodes[v]))) for v, pair in rule.messages.items()},
        {v: _padded(pair, min(of_products or most, len(nodes[v]))) for v, pair in rule.products.items()},
        {v: _padded(pair, min(most, len(observations[v]))) for v, pair in rule.observations.items()},
    )


def _padded(landmarks: tuple[Array, Array], rank: int) -> tuple[Array, Array]:
    """Return landmarks padded with the first one, and the mask of valid landmarks."""
    points, valid = landmarks
    missing = max(0, rank - len(points))
    return jnp.concatenate([points, jnp.repeat(points[:1], missing, axis=0)]), jnp.pad(valid, (0, missing))


def check_kernels(data: TrainingData, kernel: Any, obs_kernel: Any, rule: Rule) -> None:
    """Raise ValueError unless `build_bases` can build bases for data of these shapes; no landmarks are selected."""

    def build(data: TrainingData) -> Any:
        nodes = {v: (x, jnp.ones(len(x), bool)) for v, x in data.nodes.items()}
        observations = {v: (y, jnp.ones(len(y), bool)) for v, (_, y) in data.observations.items()}
        if not isinstance(rule, LinearTime | ConstantTime):
            return build_bases(data, kernel, obs_kernel, rule)
        messages = {} if isinstance(rule.features, RandomFourier) else nodes
        return build_bases(data, kernel, obs_kernel, FixedLandmarks(rule, messages, nodes, observations))

    jax.eval_shape(build, data)


def build_bases(
    data: TrainingData, kernel: Any, obs_kernel: Any, rule: Rule
) -> tuple[dict[int, NodeBasis], dict[int, tuple[FeatureMap, Array]]]:
    """Return {node type: bases of messages and products} and {node type: (basis of observations, residual)}."""
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, Rule), "rule", "must be an update rule", repr(rule), fix)
    kernels = _kernels("kernel", kernel, data.nodes)
    obs_kernels = kernels_of_observations(data, obs_kernel)
    _check_domains(data, kernels, obs_kernels)
    degrees = dict(data.degrees)
    powers = {v: max(1, degrees.get(v, DEFAULT_DEGREE) - 1) for v in data.nodes}
    bases = {v: rule.node_basis(kernels[v], powers[v], data, v) for v in data.nodes}
    return bases, {v: rule.observation_basis(obs_kernels[v], y, v) for v, (_, y) in data.observations.items()}


def _check_domains(data: TrainingData, kernels: dict[int, Kernel], obs_kernels: dict[int, Kernel]) -> None:
    """Raise ValueError unless all samples lie in the domains of their kernels; with `rows`, edges repeat nodes."""
    for v, x in data.nodes.items():
        kernels[v].check(f"nodes[{v}]", x)
    for v, (_, y) in data.observations.items():
        obs_kernels[v].check(f"observations[{v}]", y)
    for k, *ends in data.ends if data.rows is None else ():
        for v, x in zip(ends, data.edges[k], strict=True):
            kernels[v].check(f"edges[{k}]", x)


def kernels_of_observations(data: TrainingData, obs_kernel: Any) -> dict[int, Kernel]:
    """Return {node type: kernel} for all observed node types."""
    return _kernels("obs_kernel", obs_kernel, data.observations)


def _kernels(argument: str, kernel: Any, samples: Mapping[int, Any]) -> dict[int, Kernel]:
    """Return {node type: kernel} for all types of `samples`."""
    if isinstance(kernel, Kernel):
        return dict.fromkeys(samples, kernel)
    given = dict(kernel) if isinstance(kernel, Mapping) else {}
    missing = [v for v in samples if not isinstance(given.get(v), Kernel)]
    rule = f"must be a kernel, or one kernel per node type {sorted(samples)}"
    got = f"{type(kernel).__name__} without a kernel for {missing}"
    _checks.require(not missing, argument, rule, got, "Pass for instance kbpjax.RBF(bandwidth).")
    return {v: given[v] for v in samples}
