"""What the search of `fit` varies, and how: one record of all its numbers."""

import dataclasses
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """Numbers that the search varies.

    Attributes:
        bandwidth: bandwidth of the kernels of the variables, in median distances.
        obs_bandwidth: bandwidth of the kernels of the observations, in median distances.
        ridge: lambda of eq. 11 of the message operators.
        obs_ridge: lambda of the observation operators.
        ratio: 1 for the evidence model `DensityRatio`, 0 for `Expectation`.
        power: power of the evidence.
        reweighting: factor of the exponents of `tree_reweighting`.
        strength: number of pairs that the relation of an edge type counts for, where edges have their own.
    """

    bandwidth: Any = 0.25
    obs_bandwidth: Any = 0.25
    ridge: Any = 1e-4
    obs_ridge: Any = 1e-4
    ratio: Any = 0.0
    power: Any = 1.0
    reweighting: Any = 1.0
    strength: Any = 0.0


_LOWEST = Choice(1 / 32, 1 / 32, 1e-7, 1e-7, 0, 0.25, 0.5, 1)
_HIGHEST = Choice(4, 4, 0.3, 0.3, 1, 4, 2, 1e4)
_FACTORS = Choice(2.0, 2.0, 4.0, 4.0, 1.0, 2.0**0.5, 2.0**0.5, 4.0)


@dataclasses.dataclass(frozen=True)
class Search:
    """Options of the search for hyperparameters.

    Attributes:
        bandwidths: first values of the bandwidth; all combinations of first values are compared before the search.
        obs_bandwidths: first values of the bandwidth of observations.
        many_bandwidths: the same for Gaussian kernels of many coordinates, in which all distances are about equal.
        count_bandwidths: first values of the bandwidth with smoothed counts.
        powers: first values of the power of the evidence.
        strengths: first values of the strength.
        lowest: smallest values.
        highest: largest values.
        factors: factors of the coarse steps; the fine steps are their roots.
        refined: what fine steps vary.
        gain: smallest relative gain for which a number is changed.
        clear: smallest relative gain for which relations are smoothed counts, or those of single edges.
        same: relative loss up to which relations are smoothed counts, where what is held out is a part of the graphs
            that the rest is from: that favors the many numbers of a ridge regression (`experiments` on pictures).
        num_iters: largest number of iterations of a compared model; `infer` iterates longer.
        tol: residual at which the messages of a compared model have converged.
        unconverged: relative penalty of a compared model whose messages did not converge.
        resolved: residual of a basis above which a compared model counts as not resolved: of numbers, with a penalty;
            of vectors, so that finer kernels are compared at `fine_rank`.
        rank: rank of the compared models of numbers.
        number_rank: the same for relations with little noise.
        steep: noise, in bandwidths, below which they are compared at that rank, too.
        count_rank: the same with smoothed counts, whose kernels are narrower.
        vector_rank: the same of vectors and other values.
        fine_rank: the same of vectors whose kernels are not resolved. A message costs its square times the points.
        number_points, points, fine_points: number of points of the beliefs of compared models: of numbers, of vectors
            and others, and of both at the larger rank.
        temperatures: temperatures that are compared.
        inside: share of a belief in the regions from which the temperature is chosen.
        flat: relative difference from the best score up to which temperatures score about as well.
        tie: difference of shares up to which regions hold equally well: the temperature nearest to 1 is taken.
        fewest: number of values of variables below which nothing is held out.
        min_cases: number of cases from which whole cases are left out.
        few_pairs: smallest number of pairs of an edge type from which one split is enough, and the relation that scores
            best is taken. Fewer are smoothed counts, drawn to independence.
        folds: number of splits of fewer pairs.
        prior: number of pairs that independence counts for where nothing is held out.
        share: n, where one in n nodes is left out.
        most_nodes: largest number of nodes that are left out.
        block: number of nodes of a block. Those at its edge lack messages and are not scored; fewer, larger blocks
            would leave out whole regions of a picture, and with them values that the rest does not have.
        margin: distance from the edge of a block, in edges, up to which a node is not scored.
        most_pairs: largest number of pairs of each type from which the compared models are learned.
        many: number of coordinates from which observations are projected, if beliefs are better so.
        wide: the same from which they may have a front end.
        better: relative gain at first values from which there is one; the search may gain some percent without it, too.
        seed: seed of what is held out.
        compares: whether alternatives of learning are compared: own margins, front ends, smoothed counts, own relations
            and larger ranks. Else all but the numbers is as given, and margins are own where nodes differ much.
        searched: whether they are compared after a search of all numbers, and at once; else at first values.
        rounds: largest number of rounds in which all numbers are varied.
    """

    bandwidths: tuple[float, ...] = (0.125, 0.25, 0.5)
    obs_bandwidths: tuple[float, ...] = (0.125, 0.25)
    many_bandwidths: tuple[float, ...] = (0.5,)
    count_bandwidths: tuple[float, ...] = (0.088, 0.125, 0.25)
    powers: tuple[float, ...] = (1.0, 2.0)
    strengths: tuple[float, ...] = (10.0, 100.0)
    lowest: Choice = _LOWEST
    highest: Choice = _HIGHEST
    factors: Choice = _FACTORS
    refined: tuple[str, ...] = ("bandwidth", "obs_bandwidth", "power", "reweighting")
    gain: float = 5e-3
    clear: float = 0.02
    same: float = 0.2
    num_iters: int = 40
    tol: float = 1e-2
    unconverged: float = 0.1
    resolved: float = 0.02
    rank: int = 48
    number_rank: int = 256
    steep: float = 0.5
    count_rank: int = 96
    vector_rank: int = 96
    fine_rank: int = 384
    number_points: int = 80
    points: int = 128
    fine_points: int = 512
    temperatures: tuple[float, ...] = (0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
    inside: float = 0.9
    flat: float = 0.01
    tie: float = 0.005
    fewest: int = 20
    min_cases: int = 4
    few_pairs: int = 100
    folds: int = 4
    prior: float = 10.0
    share: int = 4
    most_nodes: int = 2500
    block: int = 300
    margin: int = 1
    most_pairs: int = 16_000
    many: int = 16
    wide: int = 16
    better: float = 0.1
    seed: int = 0
    compares: bool = True
    searched: bool = False
    rounds: int = 3

    def with_temperatures(self, least: float) -> "Search":
        """Return the same options, with temperatures from `least` on."""
        return dataclasses.replace(self, temperatures=tuple(one for one in self.temperatures if one >= least))


EFFORTS = {
    "low": Search(compares=False, rounds=1, refined=(), fine_rank=0, number_rank=0),
    "auto": Search(),
    "high": Search(searched=True, refined=Choice._fields, gain=1e-3, clear=0.0, better=0.0),
}
"""{effort of `fit`: the options of its search}."""
