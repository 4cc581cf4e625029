"""Pairs of images to learn from and to clean, and their noise."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from experiments.lib import datasets, gray_images

SIGMA = 30.0
"""Standard deviation of the noise, in gray levels of 0 .. 255."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One image to learn from and one to clean, gray values 0 .. 255."""

    name: str
    train: np.ndarray
    test: np.ndarray


def read_problems(args: argparse.Namespace) -> tuple[list[Problem], str]:
    """Read the images that the arguments name; return them and where they come from."""
    if (args.train is None) != (args.test is None) or (args.image and args.train):
        raise ValueError("--image: give --image A, or both of --train A --test B; got another mixture of the three.")
    if args.image or args.train:
        if args.levels:
            raise ValueError(f"--levels: belongs to the sunset image; got {args.levels} with an image. Leave one out.")
        train = np.round(gray_images.read_image(args.image or args.train, args.size))
        test = train if args.image else np.round(gray_images.read_image(args.test, args.size))
        if np.ptp(train) == 0:
            raise ValueError(
                f"--image: must have at least two gray levels; got only {train.flat[0]:.0f}. Choose another."
            )
        return [Problem(Path(args.image or args.test).stem, train, test)], "image file"
    directory = datasets.data_directory(args.data)
    levels = args.levels or (() if args.quick else gray_images.SUNSET_LEVELS)
    images = [gray_images.sunset(count, directory) for count in levels]
    problems = [Problem(f"sunset {count}", image, image) for count, (image, _) in zip(levels, images, strict=True)]
    if args.levels is None:
        problems.append(Problem("circles", gray_images.circles(30, 20), gray_images.circles(90, 60)))
    by = f"sunset by {'the authors' if images[0][1] == 'authors' else 'the ring generator'}" if images else "drawn"
    return problems, by


def add_noise(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Return a noisy copy of a float32 image."""
    return image + SIGMA * rng.standard_normal(image.shape).astype(np.float32)
