"""Papers with text, categories and citations: reading them, tf-idf, and the paper's random splits."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from experiments.lib import datasets

SETS = ("citeulike_t", "cora_hierarchical", "acmv9")
"""Names of the data sets; the first is the main one."""
COUNTED = {"citeulike_t": True, "cora_hierarchical": False, "acmv9": True}
"""Whether the features are word counts; otherwise they are tf-idf weights."""
SOURCES = {
    "citeulike_t": "GitHub js05212/citeulike-t, mult.dat, citations.dat and tag-item.dat",
    "cora_hierarchical": "GitHub APEX-WSU/CoRA, its JSON files",
    "acmv9": "GitHub shenxiaocam/ACDNE, ACDNE_codes/input/acmv9.mat",
}
HUB = 10
"""Papers with more links than this are in the training part of every split."""


class Papers(NamedTuple):
    """A citation network; papers are numbered from 0."""

    name: str
    texts: Any  # sparse, tf-idf, rows of norm 1, or 0 where a paper has no words [paper, term]
    labels: np.ndarray  # which categories a paper has, 0 or 1 [paper, category]
    links: np.ndarray  # pairs of papers, each unordered pair once [link, 2]

    @property
    def degree(self) -> np.ndarray:
        """Numbers of links [paper]."""
        return np.bincount(self.links.reshape(-1), minlength=len(self.labels))

    @property
    def worded(self) -> np.ndarray:
        """Mask of the papers with words [paper]."""
        return np.asarray(np.diff(self.texts.indptr) > 0)

    @property
    def labeled(self) -> np.ndarray:
        """Mask of the papers with categories [paper]."""
        return np.asarray(self.labels.any(1))


class Split(NamedTuple):
    """Indices of the papers with labels in training, and of the test papers."""

    train: np.ndarray
    test: np.ndarray


def load(directory: Path | None, name: str) -> Papers:
    """Read a citation network.

    Args:
        directory: the folder of `datasets.data_directory`.
        name: one of `SETS`.

    Raises:
        ValueError: no such set, no such file, or a damaged one.
    """
    if name not in SETS:
        raise ValueError(f"name must be one of {', '.join(SETS)}; got {name!r}. Choose one of these.")
    layout = (
        f"citations/{name}.npz: X_data, X_indices, X_indptr, X_shape (papers x terms, CSR), Y_indices, Y_indptr, "
        f"Y_shape (papers x categories, CSR of ones) and edges [link, 2], made from {SOURCES[name]}"
    )
    return datasets.read(directory, f"citations/{name}.npz", layout, lambda path: _read(path, name))


def _read(path: Path, name: str) -> Papers:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    counts = _csr(arrays["X_data"].astype(np.float64), arrays, "X")
    labels = _csr(np.ones(len(arrays["Y_indices"])), arrays, "Y")
    if counts.shape[0] != labels.shape[0]:
        raise ValueError("texts and categories of different papers")
    if not np.isfinite(counts.data).all() or (counts.data < 0).any():
        raise ValueError("weights of words that are no numbers >= 0")
    return Papers(
        name, tf_idf(counts, COUNTED[name]), labels.toarray() > 0, links_of(arrays["edges"], len(counts.indptr) - 1)
    )


def _csr(values: np.ndarray, arrays: dict[str, np.ndarray], key: str) -> Any:
    """Build a sparse matrix, or raise ValueError where the arrays do not fit together."""
    parts = values, arrays[f"{key}_indices"].astype(np.int32), arrays[f"{key}_indptr"].astype(np.int32)
    matrix = sp.csr_matrix(parts, shape=tuple(arrays[f"{key}_shape"].tolist()))
    matrix.check_format(full_check=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def links_of(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return links without direction: each unordered pair once, no paper with itself [link, 2]."""
    if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and (pairs.min() < 0 or pairs.max() >= count)):
        raise ValueError("links that are no pairs of papers")
    links = np.unique(np.sort(pairs.astype(np.int64), axis=1), axis=0)
    return links[links[:, 0] != links[:, 1]]


def tf_idf(counts: Any, counted: bool = True) -> Any:
    """Return rows of norm 1 of (1 + log count) (1 + log((1 + papers) / (1 + papers with the term))).

    Texts of all papers count for the frequency of terms; categories are not looked at. Weights that are tf-idf already
    (`counted` false) are scaled to norm 1 only.
    """
    return TfidfTransformer(sublinear_tf=True).fit_transform(counts) if counted else normalize(counts)


def split(papers: Papers, rng: np.random.Generator) -> Split:
    """Draw a third of the papers for training, those with more than `HUB` links all among them; the rest are tests."""
    count = len(papers.labels)
    hubs = papers.degree > HUB
    others = rng.permutation(np.flatnonzero(~hubs))
    drawn = max(0, round(count / 3) - int(hubs.sum()))
    return Split(np.sort(np.concatenate([np.flatnonzero(hubs), others[:drawn]])), np.sort(others[drawn:]))


def hold_out(papers: Papers, train: np.ndarray, rng: np.random.Generator, share: float = 1 / 3) -> Split:
    """Set a share of the training papers that are no hubs aside, to choose settings on; the others stay known."""
    hubs = papers.degree[train] > HUB
    others = rng.permutation(train[~hubs])
    aside = round(share * len(others))
    return Split(np.sort(np.concatenate([train[hubs], others[aside:]])), np.sort(others[:aside]))


def adjacency(papers: Papers) -> sp.csr_matrix:
    """Return the symmetric matrix of links, 0 or 1 [paper, paper]."""
    a, b = papers.links.T
    size = len(papers.labels)
    ones = np.ones(2 * len(papers.links))
    return sp.csr_matrix((ones, (np.concatenate([a, b]), np.concatenate([b, a]))), shape=(size, size))


def part(papers: Papers, count: int) -> Papers:
    """Return the papers nearest to the one with the most links, `count` of them, and the links among them."""
    order = sp.csgraph.breadth_first_order(adjacency(papers), int(papers.degree.argmax()), return_predecessors=False)
    kept = np.sort(order[:count])
    place = np.full(len(papers.labels), -1)
    place[kept] = np.arange(len(kept))
    links = place[papers.links]
    return papers._replace(texts=papers.texts[kept], labels=papers.labels[kept], links=links[(links >= 0).all(1)])


def counts(papers: Papers) -> dict[str, Any]:
    """Count what there is, and what is missing."""
    return {
        "papers": len(papers.labels),
        "terms": papers.texts.shape[1],
        "categories": papers.labels.shape[1],
        "links": len(papers.links),
        "without words": int((~papers.worded).sum()),
        "without categories": int((~papers.labeled).sum()),
        "without links": int((papers.degree == 0).sum()),
        "hubs": int((papers.degree > HUB).sum()),
        "most links": int(papers.degree.max(initial=0)),
    }
