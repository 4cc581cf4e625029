"""The image denoisers that kernel belief propagation is compared with, with their search for options.

Total variation and non-local means come from scikit-image, BM3D from the package bm3d. All are given the standard
deviation of the noise. Their options are chosen on an image and noisy copies of it, by the RMSE against the clean
image, with a coarse search that ends in small steps of the most important option.

The license of the package bm3d allows non-commercial use only. So kbpjax never requires it, and `tune_denoisers` leaves
BM3D out where the package is missing. scikit-image comes with `pip install 'kbpjax[baselines]'`.
"""

import dataclasses
import importlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.denoising.data import SIGMA

logger = logging.getLogger(__name__)

BM3D_NOTE = (
    "BM3D is left out: the package bm3d is not installed. Its license allows non-commercial use only, so kbpjax does "
    "not require it; where you may use it: pip install bm3d."
)
"""Message of `tune_denoisers` where it leaves BM3D out."""


@dataclasses.dataclass(frozen=True)
class Search:
    """A search over options: from `start`, each stage tries all combinations of its values and keeps the best.

    Then the option `fine` is multiplied and divided by each of the factors `steps` in turn while this helps.
    """

    start: dict[str, Any]
    stages: tuple[dict[str, tuple[Any, ...]], ...]
    fine: str
    steps: tuple[float, ...]


SEARCHES = {
    # The weight is in units of sigma for all three algorithms; theirs differ by the way they count the gradient.
    "tv": Search(
        start={"algorithm": "chambolle", "weight": 1.0},
        stages=(
            {
                "algorithm": ("chambolle", "bregman isotropic", "bregman anisotropic"),
                "weight": (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
            },
        ),
        fine="weight",
        steps=(1.19, 1.09, 1.04),
    ),
    # The filtering strength h is in units of sigma. The slow mode weights the pixels of a patch, the fast does not.
    "nlm": Search(
        start={"h": 0.6, "patch_size": 7, "patch_distance": 11, "fast_mode": True},
        stages=(
            {"patch_size": (3, 5, 7, 9, 11, 15), "h": (0.45, 0.6, 0.8, 1.0)},
            {"fast_mode": (False,), "patch_size": (5, 7, 11), "h": (0.6, 0.8, 1.0)},
            {"patch_distance": (5, 8, 15, 23)},
            {"patch_size": (3, 5, 7, 9, 11, 13, 15, 19)},
        ),
        fine="h",
        steps=(1.15, 1.07),
    ),
    # The filter strength multiplies the threshold of the first stage and the noise level of the second.
    "bm3d": Search(
        start={"profile": "np", "filter_strength": 1.0, "stages": "both", "group": None, "transform": None},
        stages=(
            {"profile": ("np", "lc", "vn", "high"), "filter_strength": (1.0, 1.3)},
            {"filter_strength": (0.9, 1.15, 1.5)},
            {"group": (32,)},
            {"transform": ("dct",)},
            {"stages": ("first",)},
        ),
        fine="filter_strength",
        steps=(1.1,),
    ),
}
"""The options tried for each denoiser."""

MOVES = 8
"""Most moves by one factor in the fine part of a search."""


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """A denoiser with its options, and the RMSE in gray levels that it had on the images it was tuned on."""

    name: str
    options: dict[str, Any]
    rmse: float
    sigma: float = SIGMA

    def __call__(self, noisy: np.ndarray) -> np.ndarray:
        """Return the denoised image [h, w] of a noisy one, gray values 0 .. 255.

        Clipping never moves a value away from a clean one, which lies in this range.
        """
        scaled = np.asarray(noisy, dtype=np.float64) / 255
        clean = DENOISERS[self.name](scaled, self.sigma / 255, **self.options)
        return np.clip(255 * np.asarray(clean, dtype=np.float64), 0, 255)


def tune_denoisers(
    train: np.ndarray,
    noisy: Sequence[np.ndarray],
    sigma: float = SIGMA,
    searches: Mapping[str, Search] = SEARCHES,
) -> dict[str, Denoiser]:
    """Choose the options of each denoiser on an image and its noisy copies.

    Args:
        train: The clean image [h, w], gray values 0 .. 255.
        noisy: Noisy copies of it, each [h, w].
        sigma: Standard deviation of the noise in gray levels, given to all denoisers.
        searches: The options to try by name of the denoiser: `"tv"`, `"nlm"`, `"bm3d"`.

    Returns:
        The tuned denoisers by name. Without the package bm3d, BM3D is left out and `BM3D_NOTE` is logged.

    Raises:
        ValueError: A noisy copy is missing or of another shape, a name is unknown, or scikit-image is missing.
    """
    shapes = [np.shape(copy) for copy in noisy]
    if not shapes or np.ndim(train) != 2 or any(shape != np.shape(train) for shape in shapes):
        raise ValueError(
            f"noisy must hold one or more images of the shape [h, w] of train; got {shapes} for {np.shape(train)}. "
            "Add noise to copies of the image itself."
        )
    if unknown := [name for name in searches if name not in DENOISERS]:
        raise ValueError(f"searches must be named {', '.join(DENOISERS)}; got {unknown}. Choose of these.")
    return {name: _tune(name, train, noisy, sigma, search) for name, search in searches.items() if available(name)}


def available(name: str) -> bool:
    """Tell whether the package of a denoiser can be imported; scikit-image must be there, bm3d need not."""
    if name == "bm3d":
        try:
            importlib.import_module("bm3d")
        except ImportError:
            logger.warning(BM3D_NOTE)
            return False
    else:
        _restoration()
    return True


def _tune(name: str, train: np.ndarray, noisy: Sequence[np.ndarray], sigma: float, search: Search) -> Denoiser:
    """Run the search of one denoiser."""
    known: dict[tuple, Denoiser] = {}

    def trial(options: dict[str, Any]) -> Denoiser:
        key = tuple(sorted(options.items()))
        if key not in known:
            denoiser = Denoiser(name, options, float("nan"), sigma)
            error = float(np.mean([np.sqrt(np.mean((denoiser(copy) - train) ** 2)) for copy in noisy]))
            known[key] = dataclasses.replace(denoiser, rmse=error)
        return known[key]

    def better(best: Denoiser, changes: list[dict[str, Any]]) -> Denoiser:
        return min(
            [best, *(trial({**best.options, **change}) for change in changes)], key=lambda denoiser: denoiser.rmse
        )

    best = trial(search.start)
    for stage in search.stages:
        combinations = itertools.product(*stage.values())
        best = better(best, [dict(zip(stage, values, strict=True)) for values in combinations])
    for step in search.steps:
        for _ in range(MOVES):
            value, last = best.options[search.fine], best
            best = better(best, [{search.fine: value * step}, {search.fine: value / step}])
            if best is last:
                break
    return best


def total_variation(noisy: np.ndarray, sigma: float, algorithm: str, weight: float) -> np.ndarray:
    """Denoise an image with gray values 0 .. 1 by total variation, with the weight in units of sigma."""
    restoration = _restoration()
    if algorithm == "chambolle":
        return restoration.denoise_tv_chambolle(noisy, weight=weight * sigma, eps=1e-6, max_num_iter=1000)
    # The weight of this function is that of the data.
    isotropic = algorithm == "bregman isotropic"
    return restoration.denoise_tv_bregman(
        noisy, weight=1 / (weight * sigma), eps=1e-6, max_num_iter=300, isotropic=isotropic
    )


def nonlocal_means(noisy: np.ndarray, sigma: float, h: float, **options: Any) -> np.ndarray:
    """Denoise an image with gray values 0 .. 1 by non-local means, with the filtering strength in units of sigma."""
    return _restoration().denoise_nl_means(noisy, h=h * sigma, sigma=sigma, **options)


def block_matching(
    noisy: np.ndarray,
    sigma: float,
    profile: str,
    filter_strength: float,
    stages: str,
    group: int | None,
    transform: str | None,
) -> np.ndarray:
    """Denoise an image with gray values 0 .. 1 by BM3D; None keeps the group size or transform of the profile."""
    bm3d = importlib.import_module("bm3d")  # so that type checks do not need the package
    profiles = {
        "np": bm3d.BM3DProfile,
        "lc": bm3d.BM3DProfileLC,
        "vn": bm3d.BM3DProfileVN,
        "high": bm3d.BM3DProfileHigh,
    }
    chosen = profiles[profile]()
    chosen.filter_strength = filter_strength
    # With more threads the order of the sums, and so the last digits, would change from run to run.
    chosen.num_threads = 1
    if group is not None:
        chosen.max_3d_size_ht = group
    if transform is not None:
        chosen.transform_2d_ht_name = transform
    both = stages == "both"
    return bm3d.bm3d(noisy, sigma, chosen, bm3d.BM3DStages.ALL_STAGES if both else bm3d.BM3DStages.HARD_THRESHOLDING)


def _restoration() -> Any:
    """Import scikit-image's denoisers."""
    try:
        return importlib.import_module("skimage").restoration  # the attribute is imported on first use
    except ImportError:
        raise ValueError(
            "the baselines need scikit-image; got a Python without it. Install it: pip install 'kbpjax[baselines]'."
        ) from None


DENOISERS: dict[str, Callable[..., np.ndarray]] = {
    "tv": total_variation,
    "nlm": nonlocal_means,
    "bm3d": block_matching,
}
"""The denoisers by name: called with an image of gray values 0 .. 1, sigma on that scale, and their options."""
