"""Evidence for a pixel of a noisy photograph, from smoothed copies of it.

A grid of single pixels has no part in what non-local means and total variation see: similar patches elsewhere, and
smooth regions. So the observation of a pixel is made from their results. The variable is what non-local means, or BM3D
where it may be used, leaves over: (clean - smoothed) / sigma. Its observation has three entries: the prediction of a
ridge regression on the other smoothers and the noisy value, each less the smoothed value, and the logarithms of two
local standard deviations, which tell how far the prediction can be trusted.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.ndimage import gaussian_filter, uniform_filter
from sklearn.linear_model import Ridge

from experiments.learned_bandwidths.baselines import Denoiser

BASES = ("nlm", "bm3d")
"""What the variable is the rest of: non-local means or BM3D, whose license allows non-commercial use only."""

FLOOR = 0.05
"""Added to local standard deviations, in units of sigma, before the logarithm."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A noisy copy of a photograph.

    Attributes:
        noisy: its gray values [h, w].
        smoothed: the result of non-local means, or of BM3D [h, w].
        inputs: what the regression sees, in units of sigma [h, w, input].
        spreads: logarithms of local standard deviations [h, w, 2].
        residual: (clean - smoothed) / sigma [h, w], NaN where the clean picture is not known.
    """

    noisy: np.ndarray
    smoothed: np.ndarray
    inputs: np.ndarray
    spreads: np.ndarray
    residual: np.ndarray


def copy_of(noisy: np.ndarray, sigma: float, clean: np.ndarray | None = None, base: str = "nlm") -> Copy:
    """Return a noisy picture [h, w] with the smoothed copies that evidence is made from; `base`: of `BASES`."""

    def by(name: str, **options: object) -> np.ndarray:
        return Denoiser(name, options, float("nan"), sigma)(noisy)

    def by_means(h: float, patch_size: int, patch_distance: int) -> np.ndarray:
        return by("nlm", h=h, patch_size=patch_size, patch_distance=patch_distance, fast_mode=True)

    def by_bm3d(strength: float) -> np.ndarray:
        return by("bm3d", profile="np", filter_strength=strength, stages="both", group=None, transform=None)

    smoothed = by_means(0.6, 5, 9) if base == "nlm" else by_bm3d(1.0)
    others = [
        noisy,
        by("tv", algorithm="chambolle", weight=0.75),
        by_means(0.5, 7, 11),
        by_means(0.8, 3, 5),
        gaussian_filter(noisy, 0.7),
        gaussian_filter(noisy, 1.5),
        smoothed + uniform_filter(noisy - smoothed, 3),
    ]
    others += [] if base == "nlm" else [by_means(0.6, 5, 9), by_bm3d(0.8), by_bm3d(1.25)]
    spreads = np.stack([_log_spread(smoothed / sigma, 5), _log_spread((noisy - smoothed) / sigma, 7)], axis=-1)
    inputs = np.concatenate([(np.stack(others, axis=-1) - smoothed[..., None]) / sigma, spreads], axis=-1)
    residual = np.full(noisy.shape, np.nan) if clean is None else (clean - smoothed) / sigma
    return Copy(noisy, smoothed, inputs, spreads, residual.astype(np.float32))


def _log_spread(values: np.ndarray, side: int) -> np.ndarray:
    """Return the logarithm of the standard deviation in the window around each pixel."""
    square = uniform_filter(values**2, side) - uniform_filter(values, side) ** 2
    return np.log(np.sqrt(np.maximum(square, 0)) + FLOOR)


@dataclasses.dataclass(frozen=True)
class Observer:
    """Turns noisy copies into observations, by a regression that was fitted to some of them."""

    regression: Ridge
    center: np.ndarray
    scale: np.ndarray

    def __call__(self, copy: Copy) -> np.ndarray:
        """Return the observations of the pixels of a copy [h, w, 3]."""
        return ((stacked(self.regression, copy) - self.center) / self.scale).astype(np.float32)


def observer_of(copies: Sequence[Copy]) -> tuple[Observer, list[np.ndarray]]:
    """Return what makes observations, and those of the training copies, each predicted from the other copies."""
    alone = [
        stacked(_regression([other for j, other in enumerate(copies) if j != i]), copy) for i, copy in enumerate(copies)
    ]
    rows = np.concatenate([one.reshape(-1, one.shape[-1]) for one in alone])
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    observed = [((one - center) / scale).astype(np.float32) for one in alone]
    return Observer(_regression(copies), center, scale), observed


def _regression(copies: Sequence[Copy]) -> Ridge:
    inputs = np.concatenate([copy.inputs.reshape(-1, copy.inputs.shape[-1]) for copy in copies])
    return Ridge(alpha=1.0).fit(inputs, np.concatenate([copy.residual.ravel() for copy in copies]))


def stacked(regression: Ridge, copy: Copy) -> np.ndarray:
    """Return the prediction of a regression beside the spreads [h, w, 3]."""
    flat = copy.inputs.reshape(-1, copy.inputs.shape[-1])
    predicted = np.asarray(regression.predict(flat)).reshape(*copy.smoothed.shape, 1)
    return np.concatenate([predicted, copy.spreads], axis=-1)
