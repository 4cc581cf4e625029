"""Public discrete models: files in the format of the UAI inference competitions, and their factors as pairs.

A file has the word MARKOV or BAYES, the number of states of each variable, the variables of each table, and the tables,
whose last variable changes fastest. The words differ in what tables mean (potentials, or the conditional distribution
of the last variable), not in the product that they define.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.baselines.elimination import Factors
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import Arithmetic, SumProduct
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.evidence import Evidence
from kbpjax.posterior.likelihood import likelihood

KINDS = ("MARKOV", "BAYES")

MOST_STATES = 1024
"""Largest number of possible joint states of a table of more than two variables, by default."""


class _Words:
    """The words of a file, read one after another."""

    def __init__(self, argument: str, path: Path):
        self.argument, self.path, self.place = argument, path, 0
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{argument}: must be a text file that can be read; got {path} ({error}).") from None
        self.words = [word for line in lines if not line.lstrip().startswith("#") for word in line.split()]

    def numbers(self, what: str, count: int, kind: type = int) -> list[Any]:
        """Return the next numbers."""
        taken = self.words[self.place : self.place + count]
        fix = "Look whether the file is complete, and in the UAI format."
        got = f"{len(taken)} more words in {self.path.name}"
        _checks.require(len(taken) == count, self.argument, f"must have {count} numbers of {what}", got, fix)
        try:
            found = [kind(word) for word in taken]
        except ValueError:
            wrong = f"{' '.join(taken[:5])!r} in {self.path.name}"
            _checks.require(False, self.argument, f"must have numbers of {what}", wrong, fix)
            raise
        self.place += count
        return found

    def count(self, what: str, most: int) -> int:
        """Return the next number, which counts something."""
        (found,) = self.numbers(what, 1)
        fix = "Look whether the file is in the UAI format."
        _checks.require(0 <= found <= most, self.argument, f"must have 0 .. {most} as {what}", found, fix)
        return found


@public
def read_uai(path: str | Path, evidence: str | Path | Mapping[int, int] | None = None) -> Factors:
    """Return the model of a file in the UAI format.

    Args:
        path: the file, with MARKOV or BAYES as its first word.
        evidence: known states {variable: state}, or a file of them: their number, then variable and state of each.

    Returns:
        The tables, as `kbpjax.baselines.elimination` takes them; `from_factors` makes a model for message passing.

    Raises:
        ValueError: a file that cannot be read or is not complete, or evidence of unknown variables or states.

    Examples:
        >>> import pathlib, tempfile
        >>> from kbpjax.baselines import discrete
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.uai"
        >>> _ = path.write_text("MARKOV 2 2 3 1 2 0 1 6 1.0 2.0 3.0 4.0 5.0 6.0")
        >>> discrete.read_uai(path).tables[0].tolist()
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    """
    words = _Words("path", _checks.as_path("path", path))
    most = len(words.words)
    kind = words.words[0].upper() if words.words else ""
    _checks.require(kind in KINDS, "path", f"must begin with one of {KINDS}", repr(kind[:20]), "Pass a UAI file.")
    words.place = 1
    sizes = words.numbers("states", words.count("number of variables", most))
    scopes = []
    for _ in range(words.count("number of tables", most)):
        scopes.append(tuple(words.numbers("variables of a table", words.count("size of a table's scope", most))))
    tables = []
    for scope in scopes:
        known = all(0 <= v < len(sizes) for v in scope)
        fix = "Variables are numbered from 0."
        _checks.require(known, "path", f"must have variables < {len(sizes)}", scope[:8], fix)
        shape = tuple(sizes[v] for v in scope)
        count, expected = words.count("number of entries", most), int(np.prod(shape))
        rule = f"must have {expected} entries for variables {scope}"
        fix = "Look at the numbers of states and the scopes."
        _checks.require(count == expected, "path", rule, count, fix)
        tables.append(np.array(words.numbers("entries", count, float)).reshape(shape))
    factors = Factors(sizes, scopes, tables)
    if evidence is None:
        return factors
    return factors.given(evidence if isinstance(evidence, Mapping) else _read_evidence(evidence))


def _read_evidence(path: str | Path) -> dict[int, int]:
    words = _Words("evidence", _checks.as_path("evidence", path))
    found = words.numbers("evidence", len(words.words))
    if not found or found == [0]:
        return {}
    if len(found) == 2 + 2 * found[1] and found[0] == 1:  # the format of 2010: the number of samples first
        found = found[1:]
    fix = "Give the number of known variables, then variable and state of each."
    ok = len(found) == 1 + 2 * found[0]
    _checks.require(ok, "evidence", "must be a number and as many pairs", f"{len(found)} numbers", fix)
    return dict(zip(found[1::2], found[2::2], strict=True))


@public
def write_uai(path: str | Path, factors: Factors) -> None:
    """Write a model as a file in the UAI format, as potentials (MARKOV).

    Args:
        path: the file; one in this format, or an empty one, that is there is replaced.
        factors: the model.

    Raises:
        ValueError: the path cannot be written, or has another file.

    Examples:
        >>> import pathlib, tempfile
        >>> from kbpjax.baselines import discrete, elimination
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.uai"
        >>> discrete.write_uai(path, elimination.Factors([2, 2], [(0, 1)], [[[3.0, 1.0], [1.0, 3.0]]]))
        >>> discrete.read_uai(path).tables[0].tolist()
        [[3.0, 1.0], [1.0, 3.0]]
    """
    target = _checks.path_to_write("path", path)
    first = target.read_bytes().split(maxsplit=1)[:1] if target.exists() else []
    ours = not first or first[0].decode(errors="replace") in KINDS  # none in an empty file
    rule, fix = "must be new, or a file in the UAI format", "Delete it first, or pass another path."
    _checks.require(ours, "path", rule, f"{target}, another file", fix)
    lines = ["MARKOV", str(len(factors.sizes)), " ".join(map(str, factors.sizes)), str(len(factors.scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in factors.scopes]
    for table in factors.tables:
        lines += ["", str(table.size), " ".join(repr(float(x)) for x in table.ravel())]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


@public
def from_factors(
    factors: Factors, *, max_states: int = MOST_STATES, arithmetic: Arithmetic = SumProduct()
) -> tuple[KernelMRF, Graph, Evidence]:
    """Return a model, a graph and evidence for message passing: `kbpjax.infer(model, graph, evidence=evidence)`.

    Nodes are the variables, with their numbers. A table of more than two variables becomes a node more, after these,
    whose states are the joint states that the table allows, with an edge to each of its variables. Tables of one
    variable are evidence. Edges with equal tables share an edge type; variables with equally many states share a node
    type.

    Args:
        factors: the model.
        max_states: largest number of states of a node for a table of more than two variables, >= 1.
        arithmetic: as in `from_potentials`.

    Raises:
        ValueError: a table allows more joint states than `max_states`, or no joint state at all.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import discrete, elimination
        >>> agree = [[3.0, 1.0], [1.0, 3.0]]
        >>> factors = elimination.Factors([2, 2, 2], [(0, 1), (1, 2), (0,)], [agree, agree, [1.0, 2.0]])
        >>> model, graph, evidence = discrete.from_factors(factors)
        >>> posterior = kbp.infer(model, graph, evidence=evidence)
        >>> posterior.weights.round(3)[2].tolist(), round(float(kbp.log_partition(posterior)), 3)  # log 48
        ([0.458, 0.542], 3.871)
    """
    from kbpjax.baselines.discrete import from_potentials

    _checks.require_count("max_states", max_states)
    sizes, constant = list(factors.sizes), 1.0
    single = [np.ones(n) for n in sizes]
    pairs: dict[tuple[int, int], np.ndarray] = {}

    def add(a: int, b: int, table: np.ndarray) -> None:
        if a > b:
            a, b, table = b, a, table.T
        pairs[a, b] = pairs[a, b] * table if (a, b) in pairs else table

    for i, (scope, table) in enumerate(zip(factors.scopes, factors.tables, strict=True)):
        if not scope:
            constant *= float(table)
        elif len(scope) == 1:
            single[scope[0]] = single[scope[0]] * table
        elif len(scope) == 2:
            add(*scope, table)
        else:
            allowed = np.argwhere(table > 0)
            fix = "Raise max_states, or use kbpjax.baselines.elimination."
            ok = 0 < len(allowed) <= max_states
            rule = f"must allow 1 .. {max_states} joint states of its {len(scope)} variables"
            _checks.require(ok, f"factors.tables[{i}]", rule, len(allowed), fix)
            own = len(sizes)
            sizes.append(len(allowed))
            single.append(table[tuple(allowed.T)])
            for axis, v in enumerate(scope):
                add(v, own, (np.arange(sizes[v])[:, None] == allowed[:, axis]).astype(float))
    single[0] = single[0] * constant
    lengths = sorted(set(sizes))
    types = np.array([lengths.index(n) for n in sizes])
    numbers: dict[tuple[int, int, bytes], int] = {}
    edges, kinds, tables, ends = [], [], {}, {}
    for (a, b), table in pairs.items():
        if types[a] > types[b]:
            a, b, table = b, a, table.T
        table = np.ascontiguousarray(table)
        name = int(types[a]), int(types[b]), table.tobytes()
        if name not in numbers:
            number = numbers[name] = len(numbers)
            tables[number], ends[number] = jnp.asarray(table, jnp.result_type(float)), name[:2]
        edges.append((a, b))
        kinds.append(numbers[name])
    graph = Graph.from_edges(np.array(edges, int).reshape(-1, 2), len(sizes), node_type=types, edge_type=kinds)
    states = {v: jnp.arange(n) for v, n in enumerate(lengths)}
    ones = {v: jnp.ones(n) for v, n in enumerate(lengths)}
    model = from_potentials(states, ones, tables, ends=ends, arithmetic=arithmetic)
    own_tables = {}
    for v in range(len(lengths)):
        rows = np.stack([single[t] for t in np.flatnonzero(types == v)])
        own_tables[v] = Partial(_at, jnp.asarray(rows, jnp.result_type(float)))
    return model, graph, likelihood(model, graph, own_tables)


def _at(table: Array, points: Array) -> Array:
    return table[:, points.astype(int)]
