"""Problems from data sets: pictures of the paper, a color photograph, wind speeds, PM10, rain, proteins, depth."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import kbpjax as kbp
from benchmarks.first_try import baselines, networks
from benchmarks.first_try.problems import hide, nearest_pairs
from benchmarks.first_try.scoring import Draw, Problem, Quantity
from experiments.depth import data as scenes_of
from experiments.depth.features import patch_features
from experiments.lib import datasets, gray_images
from experiments.protein import data as chains_of

Rng = np.random.Generator

WIND = (
    "sensors/wind.npz (keys speed [day, station] in m/s, date [day] in days since 1970, position [station, (latitude, "
    "longitude)]). Make it from `wind` of the R package gstat (Haslett and Raftery 1989, StatLib)"
)
PM10 = (
    "sensors/pm10.npz (keys pm10 [day, station] in micrograms/m³, NaN where not measured, date, position as above). "
    "Make it from `air` of the R package spacetime (AirBase of the European Environment Agency)"
)
RAIN = (
    "climate/colorado.npz (keys rain [month, station], NaN where not measured, year, month [month] from 0, position as "
    "above). Make it from `COmonthlyMet` of the R package fields, with the months from 1960 on"
)

IMPUTER, JOINT, THREE_DAYS, COPULA = "IterativeImputer", "joint Gaussian", "joint Gaussian of three days", "copula"
"""Names of methods."""


def sunset(levels: int, rng: Rng, quick: bool, data: Path | None) -> Problem:
    """Picture of the paper with a number of gray levels: learn from it and one noisy copy, denoise another one."""
    image = gray_images.sunset(levels, data)[0]
    image = image[30:50, 40:60] if quick else image
    middle = image if quick else image[25:75, 25:75]
    noisy = lambda picture: picture.reshape(1, -1) + 30 * rng.standard_normal((1, picture.size))
    copy, y, other = noisy(image), noisy(image), noisy(middle)
    truth = image.reshape(1, -1)
    return Problem(
        kbp.grid_graph(*image.shape),
        truth,
        copy,
        Draw(y, truth),
        Draw(other, middle.reshape(1, -1)),
        baselines=baselines.denoisers(Draw(copy, truth)),
        validation_graph=kbp.grid_graph(*middle.shape),
        peak=255.0,
    )


def inpainting(rng: Rng, quick: bool, data: Path | None) -> Problem:
    """Color photograph of which half of the pixels is missing, with noise of 0.1; learned from three other parts."""
    del data
    try:
        from skimage.data import astronaut
    except ImportError:
        raise ValueError("data must come with the package scikit-image: pip install 'kbpjax[baselines]'.") from None
    picture = astronaut()[::2, ::2] / 255.0
    side = 16 if quick else 64

    def draw(*corners: tuple[int, int]) -> Draw:
        x = np.stack([picture[i : i + side, j : j + side].reshape(-1, 3) for i, j in corners])
        y = x + 0.1 * rng.standard_normal(x.shape)
        return Draw(np.where(rng.random((*x.shape[:2], 1)) < 0.5, np.nan, y), x)

    train = draw((100, 20), (100, 150), (180, 90))
    return Problem(
        kbp.grid_graph(side, side),
        train.truth,
        train.y,
        draw((20, 80)),
        draw((20, 160)),
        (Quantity(coordinates=(0, 1, 2)),),
        baselines.inpainting(train, side),
        peak=1.0,
    )


def wind(rng: Rng, quick: bool, data: Path | None, compared: bool = True) -> Problem:
    """Square roots of daily wind speeds at 12 Irish stations, without the season; 30 % of the values hidden.

    Learned on 1961-69, tested on 1970-72. A case is one day, neighbors are the three nearest stations. The joint
    Gaussian of three days sees the days around, which the model does not.
    """
    speed, date, position = _load(data, "sensors/wind.npz", WIND, "speed")
    year = date.astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970
    values, train, test = _without_season(np.sqrt(speed), date, year < 1970)
    return _network(rng, quick, values, train, test, position, 3, 0.3, compared)


def pm10(rng: Rng, quick: bool, data: Path | None, compared: bool = True) -> Problem:
    """Logarithms of PM10 at 70 German stations, without the season, more than half missing; 10 % of the rest hidden.

    Learned on 1998-2003 with their holes, tested on 2004-05. A case is a day, neighbors are the four nearest stations.
    The joint Gaussian of three days sees the days around, which the model does not.
    """
    found, date, position = _load(data, "sensors/pm10.npz", PM10, "pm10")
    year = date.astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970
    values, train, test = _without_season(np.log(np.maximum(found, 1)), date, year < 2004)
    return _network(rng, quick, values, train, test, position, 4, 0.1, compared)


def rain(rng: Rng, quick: bool, data: Path | None) -> Problem:
    """Square roots of monthly precipitation at 287 Colorado stations, less the mean of the station's calendar month.

    A case is a month, with 28 % of the values missing; 30 % of the rest are hidden. Neighbors are the four nearest
    stations. Learned on 1960-81, tested on 1986-93. Options of baselines are chosen on 1982-85, because there are
    fewer months than stations: a covariance would fit best those from which it was learned. Means of calendar months
    are those of 1960-85, and stations those with 60 months in these years.
    """

    def read(path: Path) -> Any:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return tuple(archive[k].astype(np.float64) for k in ("rain", "year", "month", "position"))

    found, year, month, position = datasets.read(data, "climate/colorado.npz", RAIN, read)
    before = np.isfinite(found[year < 1986]).sum(axis=0)
    kept = np.flatnonzero(before >= 60)[: 40 if quick else None]
    values, distance = np.sqrt(found[:, kept]), _distances(position[kept])
    means = [_mean(values[(year < 1986) & (month == m)], values[year < 1986]) for m in range(12)]
    values -= np.stack(means)[month.astype(int)]
    x = values[year < 1982][:: 4 if quick else 1]
    test, validation = (hide(rng, values[rows], 0.3) for rows in (year >= 1986, (year >= 1982) & (year < 1986)))
    graph = network(distance, 4)
    problem = Problem(graph, x, x, test, validation)
    weights = (0.3, 0.5, 0.7, 0.9)  # of the covariance of kriging
    methods = {
        "kriging": [networks.kriging(x, distance)],
        "joint Gaussian, shrunk to kriging": [networks.joint_gaussian(x, 3, distance, w) for w in weights],
        "copula, shrunk to kriging": [networks.copula(x, 3, distance, w) for w in weights],
        IMPUTER: [networks.imputer(x, nearest) for nearest in ((10,) if quick else (30, 100))],
    }
    return dataclasses.replace(problem, baselines={k: networks.best(v, problem) for k, v in methods.items()})


def _mean(values: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Return the mean of each column over the values that are there; without any, that of other rows."""
    there = np.isfinite(values)
    sums = np.where(there, values, 0).sum(axis=0)
    return np.where(there.any(axis=0), sums / np.maximum(there.sum(axis=0), 1), np.nanmean(instead, axis=0))


def protein(rng: Rng, quick: bool, data: Path | None) -> Problem:
    """Directions of the backbone (unit vectors) of protein chains, given profiles of seven residues around each.

    60 chains to learn from, 40 to predict, drawn at random; all chains of a set are one graph.
    """
    chains = chains_of.load(data)
    counts = (4, 2, 2) if quick else (60, 10, 40)
    order = rng.permutation(len(chains.offsets) - 1)[: sum(counts)]
    found = []
    for chosen in np.split(order, np.cumsum(counts)[:-1]):
        part = chains.part(np.sort(chosen))
        first = np.flatnonzero(part.linked)
        graph = kbp.Graph.from_edges(np.stack([first, first + 1], axis=1), len(part.linked))
        y = np.where(part.observed[:, None], chains_of.windows(part, 7), np.nan)
        found.append((graph, Draw(y[None], part.vectors[None])))
    (train_graph, train), (validation_graph, validation), (graph, test) = found
    return Problem(
        graph,
        train.truth,
        train.y,
        test,
        validation,
        (Quantity(coordinates=(0, 1, 2)),),
        baselines.regressions(train),
        train_graph=train_graph,
        validation_graph=validation_graph,
    )


def depth(rng: Rng, quick: bool, data: Path | None) -> Problem:
    """Log10 depth of the cells of street scenes, given standardized features of each cell, NaN where not measured.

    Learned from 5 scenes of the drive, evenly spaced, tested on 2 of its last quarter; the middle half of the columns.
    """
    del rng
    scenes = scenes_of.load("street", data)
    train, test = np.flatnonzero(scenes.train), np.flatnonzero(scenes.test)
    spaced = lambda rows, count: rows[np.linspace(0, len(rows) - 1, count).round().astype(int)]
    learned = spaced(train, 2 if quick else 5)
    chosen = [learned, np.setdiff1d(train, learned)[:1], spaced(test, 1 if quick else 2)]
    rows = slice(20, 30) if quick else slice(None)
    columns = slice(40, 55) if quick else slice(37, 112)
    draws, center, scale = [], 0.0, 1.0
    for which in chosen:
        part = scenes.part(np.isin(np.arange(len(scenes.ids)), which))
        features = patch_features(part)[:, rows, columns]
        if not draws:
            center, scale = features.mean(axis=(0, 1, 2)), features.std(axis=(0, 1, 2)) + 1e-6
        target = np.log10(part.depth[:, rows, columns])
        draws.append(Draw(((features - center) / scale).reshape(len(which), -1, 273), target.reshape(len(which), -1)))
    graph = kbp.grid_graph(*target.shape[1:])
    learn, validation, last = draws
    return Problem(graph, learn.truth, learn.y, last, validation, baselines=baselines.regressions(learn))


def _load(data: Path | None, name: str, layout: str, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    def read(path: Path) -> Any:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return tuple(archive[k].astype(np.float64) for k in (key, "date", "position"))

    values, date, position = datasets.read(data, name, layout, read)
    return values, date.astype(np.int64), position


def _without_season(values: np.ndarray, date: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, ...]:
    """Subtract a constant and two harmonics of the year, fitted to the mean over stations of the training days."""
    phase = 2 * np.pi * date / 365.25
    waves = np.stack([np.ones(len(date)), *(f(k * phase) for k in (1, 2) for f in (np.cos, np.sin))], axis=1)
    used = train & np.isfinite(values).any(axis=1)
    mean = np.zeros(len(values))
    mean[used] = np.nanmean(values[used], axis=1)
    season = waves @ np.linalg.lstsq(waves[used], mean[used], rcond=None)[0]
    return values - season[:, None], np.flatnonzero(train), np.flatnonzero(~train)


def _network(rng, quick, values, train, test, position, neighbors, hidden, compared) -> Problem:
    """Make a problem of days at stations; the observation of a value is the value itself.

    Unless `compared`, it has no baselines, some of which take a minute to learn.
    """
    distance = _distances(position)
    graph = network(distance, neighbors)
    if quick:
        train, test = train[::40], test[:10]  # consecutive days, for the method that sees those around
    x, iterations = values[train], 3 if quick else 12
    validation = hide(rng, x[rng.choice(len(x), min(len(x), 100), replace=False)], hidden)
    if not compared:
        return Problem(graph, x, x, hide(rng, values[test], hidden), validation)
    methods = {
        JOINT: networks.joint_gaussian(x, iterations),
        COPULA: networks.copula(x, iterations),
        IMPUTER: networks.imputer(x, *([None] if len(distance) < 20 else [10, 20, 40])),
        "kriging": networks.kriging(x, distance),
    }
    more = {THREE_DAYS: networks.three_days(x, iterations)}
    return Problem(graph, x, x, hide(rng, values[test], hidden), validation, baselines=methods, seeing_more=more)


def network(distance: np.ndarray, neighbors: int) -> kbp.Graph:
    """Return the graph of nearest stations; distances are features of its edges."""
    pairs = nearest_pairs(distance, neighbors)
    return kbp.Graph.from_edges(pairs, len(distance), edge_features=distance[pairs[:, 0], pairs[:, 1]])


def _distances(position: np.ndarray) -> np.ndarray:
    """Return the distances of places [(latitude, longitude)] in radians, on the plane that touches their middle."""
    radians = np.deg2rad(position)
    place = np.stack([radians[:, 0], radians[:, 1] * np.cos(radians[:, 0].mean())], axis=1)
    return np.linalg.norm(place[:, None] - place[None], axis=-1)


PROBLEMS = {
    "sunset-100": lambda *given: sunset(100, *given),
    "sunset-10": lambda *given: sunset(10, *given),
    "inpainting": inpainting,
    "wind": wind,
    "pm10": pm10,
    "rain": rain,
    "protein": protein,
    "depth": depth,
}
"""{name: builder}; a builder gets random numbers, whether the run is quick, and the folder of the data sets."""
