"""Trajectories of a rotating camera and its rendered frames."""

import argparse
import dataclasses

import numpy as np
from sklearn.decomposition import PCA

from experiments.orientation import rendering

AMBIGUOUS = 0.95
"""Share of a frame on the repeated walls from which on it counts as ambiguous."""

GAIN = 0.15
"""Standard deviation of the logarithm of a frame's brightness."""


@dataclasses.dataclass(frozen=True)
class Frames:
    """Trajectories of the camera: rotations [m, T, 3, 3], frames [m, T, pixel], and which are ambiguous [m, T]."""

    rotations: np.ndarray
    pixels: np.ndarray
    ambiguous: np.ndarray


def draw(args: argparse.Namespace, seed: int) -> tuple[Frames, Frames, Frames]:
    """Draw frames to learn from, to choose settings by, and to test on."""
    rng, room, camera = np.random.default_rng(seed), rendering.Room.of_photographs(), rendering.Camera()
    sets = []
    for count, length in ((args.trajectories, 100), (3 * args.tests, 80), (args.tests, 80)):
        rotations = walk(rng, count, length)
        flat = rotations.reshape(-1, 3, 3)
        frames = room.frames(camera, flat)
        frames = frames * np.exp(GAIN * rng.standard_normal((len(flat), 1, 1)))
        frames = frames + args.noise * rng.standard_normal(frames.shape)
        ambiguous = room.share(camera, flat) >= AMBIGUOUS
        pixels = frames.reshape(count, length, -1).astype(np.float32)
        sets.append(Frames(rotations.astype(np.float32), pixels, ambiguous.reshape(count, length)))
    train, validation, test = sets
    return train, validation, test


def walk(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Draw smooth random motion [count, length, 3, 3]: all around in yaw, some degrees in pitch and roll."""

    def process(deviation: float, memory: float) -> np.ndarray:
        """Draw stationary autoregressive processes [count, length] in degrees."""
        noise = rng.standard_normal((length, count)) * np.sqrt(1 - memory**2)
        values = [noise[0] / np.sqrt(1 - memory**2)]
        for step in noise[1:]:
            values.append(memory * values[-1] + step)
        return deviation * np.stack(values, axis=1)

    yaw = rng.uniform(0, 360, (count, 1)) + np.cumsum(process(4.0, 0.9), axis=1)
    pitch, roll = process(10.0, 0.95), process(6.0, 0.95)
    return rendering.rotations_of(*map(np.deg2rad, (yaw, pitch, roll)))


def features_of(train: Frames, test: Frames, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Free frames of brightness, and project them on principal components of the training frames [m, T, component]."""
    plain = []
    for pixels in (train.pixels, test.pixels):
        centered = pixels - pixels.mean(axis=-1, keepdims=True)
        plain.append(centered / np.linalg.norm(centered, axis=-1, keepdims=True))
    size = train.pixels.shape[-1]
    pca = PCA(components, svd_solver="covariance_eigh").fit(plain[0].reshape(-1, size))
    ours, theirs = (pca.transform(frames.reshape(-1, size)).reshape(*frames.shape[:2], -1) for frames in plain)
    return ours, theirs
