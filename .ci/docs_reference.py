"""The reference: which public names there are, on which page each stands, and the pages themselves."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("", "kernels", "features", "ep", "series")
"""Packages whose public names are their `__all__`."""
MODULES = (
    *("plotting", "io", "estimator", "baselines", "learning.data", "learning.model", "learning.observations"),
    *("learning.rules", "learning.embedding", "inference.operators", "sharded", "graphs.partition", "tuning.scores"),
)
BASELINES = (
    *("discrete", "evidence", "gaussian", "nonparametric"),
    *(
        f"nonparametric.{name}"
        for name in ["particle", "expectation_particle", "pairwise", "density", "mixtures", "products"]
    ),
)
"""Modules in which functions and classes with an example are public."""

PAGES = {
    "data": (
        "Data and graphs",
        "A graph of typed nodes and edges, and training samples of its variables.",
        {
            "Graphs": "Graph grid_graph chain_graph neighbor_graph repeat_graph time_windows choose_edges merge Merged"
            " pack Packed",
            "Windows as observations": "windows window_orbits grid_symmetries",
            "Training data": "TrainingData pool chunked learning.data.Cases",
        },
    ),
    "kernels": (
        "Kernels",
        "Positive definite functions for vectors, finite sets, rotations, strings, graphs and distributions.",
        {
            "Kernels and their algebra": "kernels.Kernel kernels.Sum kernels.Constant kernels.Product kernels.Power"
            " kernels.Scaled kernels.Normalized kernels.Transformed kernels.Part kernels.gram kernels.diagonal",
            "Vectors": "kernels.RBF kernels.ARD kernels.Laplace kernels.Matern kernels.RationalQuadratic"
            " kernels.Periodic kernels.Linear kernels.Polynomial kernels.Projected kernels.RandomProjection"
            " kernels.median_bandwidth",
            "Finite sets, counts and rankings": "kernels.Delta kernels.Jaccard kernels.Kendall kernels.Mallows"
            " kernels.Precomputed kernels.nearest_gram",
            "Directions and rotations": "kernels.Sphere kernels.Rotations kernels.Heat kernels.median_concentration"
            " kernels.unit_vectors kernels.nearest_rotations",
            "Strings": "kernels.Spectrum kernels.Mismatch kernels.Subsequence kernels.LocalAlignment"
            " kernels.Alphabet kernels.mask",
            "Graphs as points": "kernels.ShortestPath kernels.WeisfeilerLehman kernels.encode_graphs",
            "Distributions": "kernels.ExpectedProduct kernels.EmbeddingRBF kernels.MeanVariance kernels.Coordinates"
            " kernels.median_embedding kernels.median_mean_variance",
        },
    ),
    "features": (
        "Landmarks and features",
        "Finite feature maps that approximate a kernel, and the choice of landmarks.",
        {
            "Choice of features": "features.PivotedCholesky features.RandomlyPivotedCholesky"
            " features.RandomFourier features.LandmarkSelector",
            "Features on landmarks": "features.FeatureMap features.features features.Basis features.Pivots"
            " features.cholesky_basis features.incomplete_cholesky features.represented",
            "Random features": "features.FourierBasis features.SampleFeatures features.EmbeddingFeatures"
            " features.MeanVarianceFeatures features.TwoStage features.Concatenated features.Kronecker"
            " features.Restricted features.cosines features.draw_frequencies features.draw_phases",
        },
    ),
    "learning": (
        "Learning",
        "From training data to a model: update rules, marginals and conditional embedding operators.",
        {
            "Models": "fit with_transitions choose_hyperparameters Selection fit_chunks KernelMRF Operators"
            " learning.observations.ObservationModel",
            "Update rules": "ConstantTime LinearTime FullRank fix_landmarks learning.rules.FixedLandmarks",
            "Marginals": "Parzen MeanEmbedding Empirical",
            "Nonnegative operators": "Clipped ConstrainedFit",
            "Conditional embedding operators": "learning.embedding.conditional_operator learning.embedding.ridge_solve"
            " learning.embedding.error_bound learning.embedding.operator_error"
            " learning.embedding.feature_residual",
        },
    ),
    "evidence": (
        "Evidence",
        "Observations, known likelihoods and known values of some variables.",
        {"": "Evidence observe likelihood clamp Expectation DensityRatio"},
    ),
    "inference": (
        "Inference",
        "Messages on trees and on graphs with cycles.",
        {
            "One call": "infer",
            "Belief propagation": "run run_tree Solution",
            "Schedules": "Schedule Synchronous Colored colored",
            "Damping and acceleration": "AdaptiveDamping Anderson",
            "Tree reweighting": "tree_reweighting",
            "Sums, maxima and logarithms": "inference.operators.SumProduct MaxProduct InLogs",
        },
    ),
    "diagnostics": (
        "Convergence and diagnostics",
        "Whether messages converged, why they did not, and the log-partition function.",
        {
            "": "check NotConverged diagnose Diagnosis log_partition skip_value_checks enable_compilation_cache",
            "Warnings": "KbpWarning ConvergenceWarning RankWarning CandidateWarning EvidenceWarning MarginWarning"
            " HolesWarning MissingWarning RelationWarning ScaleWarning",
        },
    ),
    "posterior": (
        "Posterior summaries",
        "The posterior of `infer`, and what to compute from it; summaries also take beliefs, and {node type: belief}.",
        {
            "Beliefs": "Posterior beliefs Belief log_belief edge_beliefs EdgeBelief marginal temper",
            "Point estimates": "mode refine_mode mean circular_mean expectation Estimate",
            "Uncertainty": "std variance covariance quantile interval circular_interval highest_density entropy"
            " coverage log_density",
            "Samples": "sample",
        },
    ),
    "series": (
        "Time series",
        "States behind observations at successive times: filter, smoother, forecasts and paths.",
        {
            "Models": "series.fit series.SeriesModel",
            "Answers": "series.filter series.Filtered series.smooth series.forecast series.sample_paths",
            "Online": "series.start series.update series.State",
        },
    ),
    "hyperparameters": (
        "Hyperparameters",
        "Choice of kernels, ridges, damping and temperature, by rules of thumb, validation or gradient descent.",
        {
            "Hyperparameters": "Hyperparameters median_hyperparameters",
            "Selection and tuning": "select tune Tuned calibrate",
            "Training through inference": "train",
            "Losses": "SquaredError NegativeLogBelief IntervalScore CRPS",
            "Scores in closed form": "tuning.scores.leave_one_out tuning.scores.generalized_cross_validation",
        },
    ),
    "saving": (
        "Saving and plotting",
        "Models and results in files, and plots of them.",
        {
            "Files": "save load io.describe",
            "Plots": "plotting.plot_belief plotting.plot_grid plotting.plot_residuals plotting.plot_messages"
            " plotting.plot_graph plotting.plot_landmarks plotting.plot_costs plotting.plot_reliability",
        },
    ),
    "sharded": (
        "Several devices",
        "Batches of problems side by side, or one graph in blocks that exchange their boundary messages.",
        {
            "": "sharded.shard_batch sharded.partition_graph sharded.Partition",
        },
    ),
    "estimator": (
        "scikit-learn estimator",
        "Structured regression with the interface of scikit-learn.",
        {"": "estimator.GraphRegressor estimator.GraphImputer"},
    ),
    "baselines": (
        "Baselines",
        "Other methods on the same graphs, evidence and beliefs.",
        {
            "Evidence": "baselines.transfer_evidence",
            "Discrete belief propagation": "baselines.discrete.fit baselines.discrete.from_potentials"
            " baselines.discrete.run baselines.discrete.bins baselines.discrete.Indicators",
            "Public discrete models": "baselines.discrete.read_uai baselines.discrete.write_uai"
            " baselines.discrete.from_factors",
            "Exact answers of discrete models": "baselines.elimination.solve baselines.elimination.Solution"
            " baselines.elimination.mode baselines.elimination.beliefs baselines.elimination.order"
            " baselines.elimination.Factors",
            "Gaussian belief propagation": "baselines.gaussian.fit baselines.gaussian.run baselines.gaussian.beliefs"
            " baselines.gaussian.observe baselines.gaussian.likelihood baselines.gaussian.check"
            " baselines.gaussian.walk_summability baselines.gaussian.thin_membrane"
            " baselines.gaussian.GaussianTemplate baselines.gaussian.GaussianMRF baselines.gaussian.GaussianSolution"
            " baselines.gaussian.GaussianFactors",
            "Pairwise potentials": "baselines.pairwise.fit"
            " baselines.pairwise.PairwiseMRF baselines.pairwise.NodePotential"
            " baselines.pairwise.EdgePotential baselines.pairwise.Conditionals"
            " baselines.pairwise.Ratios",
            "Nonparametric belief propagation": "baselines.nonparametric.run baselines.nonparametric.beliefs"
            " baselines.nonparametric.NonparametricSolution baselines.nonparametric.ExactSampler"
            " baselines.nonparametric.GibbsSampler baselines.nonparametric.MultiscaleSampler",
            "Particle belief propagation": "baselines.particle.run"
            " baselines.expectation_particle.run baselines.particle.beliefs"
            " baselines.particle.mean baselines.particle.variance"
            " baselines.particle.ParticleSolution",
            "Products of mixtures": "baselines.products.exact_product"
            " baselines.products.sample_gibbs baselines.products.sample_multiscale"
            " baselines.products.ProductFactors",
            "Conditional densities": "baselines.mixtures.GaussianMixture"
            " baselines.density.ConditionalDensity"
            " baselines.density.RegressionLikelihood baselines.density.fit_conditional"
            " baselines.density.fit_likelihood baselines.density.fit_parzen",
        },
    ),
    "ep": (
        "Expectation propagation",
        "Exact messages, or messages that a kernel regression learns to send.",
        {
            "Models": "ep.logistic_regression ep.logistic_predictive ep.linear_model.linear_model ep.LinearPosterior"
            " ep.Sequential ep.Parallel ep.precision_posteriors",
            "Families": "ep.Distribution ep.Gaussian ep.MultivariateGaussian ep.Beta ep.Gamma",
            "Messages": "ep.ratio ep.kl ep.ImproperHandling ep.MeanPreserving ep.Uniform",
            "Oracles": "ep.Oracle ep.LogisticToZ ep.LogisticToP ep.CompoundGamma ep.ImportanceSampling"
            " ep.ForwardSampler ep.LogDensity ep.logistic_sampler ep.logistic_integrals ep.KLProjection"
            " ep.MatchingMoments",
            "Learned messages": "ep.Operator ep.Learner ep.learn ep.predict ep.Prediction ep.init_operator ep.step"
            " ep.scan ep.Record",
            "Representations and targets": "ep.Moments ep.Exact ep.Draws ep.Targets ep.RelativeBelief"
            " ep.AbsoluteBelief ep.Message",
            "Regression and selection": "ep.fit_regression ep.BayesianRegression ep.leave_one_out_residuals"
            " ep.log_evidence ep.select_parameters ep.LeaveOneOut ep.NegativeLogEvidence ep.Parameters"
            " ep.grid_candidates ep.random_candidates",
        },
    ),
}
"""{file: (title, introduction, {section: names in the order of the page})}; a section "" has no heading."""

HOOKS = """
node_basis observation_basis check_memory sweep next start advance operator point_mass density
floor_of check_types sizes positivity places squared_distance counts colors cut
Graph.plan_of Operators.update Operators.floors FullRank.fix_landmarks FixedLandmarks.fix_landmarks
Synchronous.plan Colored.plan Projected.features RandomProjection.features Partition.axis
SumProduct.cavity_products SumProduct.apply SumProduct.apply_to_one MaxProduct.apply MaxProduct.apply_to_one
InLogs.cavity_products InLogs.apply InLogs.apply_to_one
Moments.points Moments.draw Exact.points Exact.draw Draws.points Draws.draw Learner.parameters Parameters.of_outputs
CompoundGamma.integrals ImportanceSampling.weigh ForwardSampler.draw LogDensity.draw
PairwiseMRF.points ExactSampler.draw GibbsSampler.draw MultiscaleSampler.draw GaussianMRF.check_graph
GaussianMRF.dim GaussianMRF.dtype GaussianTemplate.dim GaussianTemplate.dtype
"""
"""Methods that the library calls, and users do not."""
OPERATORS = ("__call__", "__add__", "__mul__", "__pow__")


@dataclass(frozen=True)
class Entry:
    """A function or class of the reference.

    Attributes:
        path: where it is, without "kbpjax."; where a module has the same name, inside that module.
        page: stem of its page.
    """

    path: str
    page: str

    @property
    def name(self) -> str:
        """The path by which users call it, from "kbpjax." on."""
        module, _, name = self.anchor.rpartition(".")
        short = f"{module.rpartition('.')[0]}.{name}"
        return short if home(public().get(short)) == home(self.value) else self.anchor

    @property
    def anchor(self) -> str:
        """Where it is on its page."""
        return f"kbpjax.{self.path}"

    @cached_property
    def value(self) -> Any:
        """The function or class."""
        return pkgutil.resolve_name(self.anchor)

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, for a cell of a table."""
        first = (inspect.getdoc(self.value) or "").split("\n\n")[0]
        return re.sub(r"(?<!\\)\|", r"\|", " ".join(first.split()))

    def members(self) -> list[str]:
        """Return the methods and properties that users call, but not those that a public base class describes."""
        if not inspect.isclass(self.value):
            return []
        bases = [base for base in self.value.__mro__[1:] if home(base) in described()]
        return [name for name, member in vars(self.value).items() if self._shown(name, member, bases)]

    def _shown(self, name: str, member: Any, bases: list[type]) -> bool:
        function = inspect.unwrap(getattr(member, "__func__", member))
        described = (inspect.isfunction(function) or isinstance(function, property)) and bool(function.__doc__)
        hidden = name.startswith("_") and name not in OPERATORS
        hook = not {name, f"{self.value.__name__}.{name}"}.isdisjoint(HOOKS.split())
        return described and not hidden and not hook and not any(hasattr(base, name) for base in bases)


def entries() -> list[Entry]:
    """Return all functions and classes of the reference."""
    sections = [(page, names) for page, (_, _, found) in PAGES.items() for names in found.values()]
    return [Entry(path, page) for page, names in sections for path in names.split()]


@cache
def public() -> dict[str, Any]:
    """Return {path: function or class} of all public names; those with several paths repeat."""
    everything = [*PACKAGES, *MODULES, *(f"baselines.{name}" for name in BASELINES)]
    found = {}
    for path in everything:
        module = importlib.import_module(f"kbpjax.{path}".rstrip("."))
        of_module = {name: value for name, value in vars(module).items() if is_public(module, name, value)}
        found |= {f"{module.__name__}.{name}": value for name, value in of_module.items()}
    return found


def is_public(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a name of a module is a public function or class."""
    origin = getattr(value, "__module__", None) or ""
    if name.startswith("_") or inspect.ismodule(value) or not callable(value) or not origin.startswith("kbpjax"):
        return False
    path = module.__name__.partition(".")[2]
    if hasattr(module, "__all__"):
        return name in module.__all__
    inside = origin.startswith("kbpjax.baselines") if path.startswith("baselines") else origin == module.__name__
    return inside and ">>>" in (inspect.getdoc(value) or "")


def home(value: Any) -> str:
    """Return where a function or class is defined, which tells them apart by whatever path they are found."""
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"


@cache
def described() -> set[str]:
    """Return where all functions and classes of the reference are defined."""
    return {home(entry.value) for entry in entries()}


def missing() -> list[str]:
    """Return the public names that stand on no page, and those that stand on several."""
    places = [home(entry.value) for entry in entries()]
    left = [f"{path} is on no page" for path, value in public().items() if home(value) not in places]
    return left + [f"{e.name} is on several pages" for e in entries() if places.count(home(e.value)) > 1]


def write_reference(folder: Path) -> None:
    """Write the pages of reference and their index."""
    problems = missing()
    if problems:
        raise SystemExit("PAGES of .ci/docs_reference.py: " + "; ".join(problems))
    folder.mkdir()
    by_path = {entry.path: entry for entry in entries()}
    index = ["# Reference", "", "Public functions and classes by task. `kbp` is `import kbpjax as kbp`.", ""]
    for stem, (title, introduction, sections) in PAGES.items():
        groups = {section: [by_path[path] for path in names.split()] for section, names in sections.items()}
        page = [f"# {title}", "", introduction, "", *overview(groups)]
        for section, group in groups.items():
            page += [f"## {section}", ""] if section else []
            page += [line for entry in group for line in rendered(entry)]
        (folder / f"{stem}.md").write_text("\n".join(page), encoding="utf-8")
        index += [f"## [{title}]({stem}.md)", "", introduction, ""]
        index += [", ".join(linked_name(entry) for group in groups.values() for entry in group) + ".", ""]
    (folder / "index.md").write_text("\n".join([*index, *TYPES]), encoding="utf-8")


TYPES = [
    "## Types in signatures",
    "",
    'Arrays are annotated with [jaxtyping](https://docs.kidger.site/jaxtyping/): `Float[Array, "node point"]` has two'
    " axes, one entry for each node and each point.",
    "",
    "- `ArrayLike`: an array of JAX or NumPy, a number, or nested lists of numbers.",
    "- `ScalarLike`: one number, in Python, NumPy or JAX.",
    "- `Rule`: `ConstantTime`, `LinearTime`, `FullRank` or `learning.rules.FixedLandmarks`.",
    "- `Schedule`: `Synchronous`, `Colored` or `ResidualFirst`.",
    "- `Positive`: `Clipped` or `ConstrainedFit`.",
    "- `Exponents`: one number for each undirected edge, one for all, or None.",
    "",
]


def overview(groups: dict[str, list[Entry]]) -> list[str]:
    """Return a table of the functions and classes of a page."""
    lines = ["| Name | Summary |", "| :-- | :-- |"]
    for section, group in groups.items():
        lines += [f"| **{section}** | |"] if section and len(groups) > 1 else []
        lines += [f"| {linked_name(entry)} | {entry.summary} |" for entry in group]
    return [*lines, ""]


def linked_name(entry: Entry) -> str:
    """Return the name of an entry, without the module in which all of its page are, as a link."""
    return f"[`{entry.name.removeprefix('kbpjax.')}`][{entry.anchor}]"


def rendered(entry: Entry) -> list[str]:
    """Return the lines that ask for the description of an entry."""
    members = entry.members()
    lines = [f"::: {entry.anchor}", "    options:"]
    lines += [f"      heading: {entry.name}", f"      toc_label: {entry.name.rpartition('.')[2]}"]
    lines += [f"      members: {members}", f"      inherited_members: {members}", ""]
    return lines
