"""The options that searches have chosen: kept in the results, and with `--use` taken from there instead of a search."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.lib import steps


def add_use_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--use`, for `Choices`."""
    use = "results of this experiment (.json) whose options to take; no search"
    parser.add_argument("--use", type=Path, metavar="JSON", help=use)


class Choices:
    """Options by the name of the search that chose them.

    Attributes:
        chosen: {name: options} of this run, to be written to its results as "chosen".
        given: the same, of the results that `--use` names; None without it.
        trials: the trials by which those were chosen, as far as the results have them.
    """

    def __init__(self, path: Path | None):
        """Read the options of earlier results.

        Args:
            path: a results file of this experiment; None: options are searched.

        Raises:
            ValueError: the file cannot be read, or holds no options.
        """
        self.chosen: dict[str, Any] = {}
        self.given: dict[str, Any] | None = None
        self.trials: list[dict[str, Any]] = []
        if path is not None:
            try:
                results = json.loads(path.read_text(encoding="utf-8"))
                self.given, self.trials = _tuples(results["chosen"]), list(results.get("trials", ()))
            except (OSError, ValueError, LookupError, TypeError):
                rule = f"--use: must be results with chosen options; got {path.name!r}"
                raise ValueError(f"{rule}. Pass a results file of this experiment.") from None

    def search(self, name: str, compute: Callable[..., tuple[Any, list[Any]]], *args: Any) -> tuple[Any, list[Any]]:
        """Return the given options and no trials, or else what a search finds, as a step.

        Args:
            name: name of the search, unique in the experiment.
            compute: from `args` to options, which JSON can hold, and trials.
            args: its arguments.

        Raises:
            ValueError: options are given, but none of this search.
        """
        given = self.of(name)
        found = steps.step(f"search {name}", compute, *args) if given is None else (given, [])
        self.chosen[name] = found[0]
        return found

    def of(self, name: str) -> Any:
        """Return the given options of a search; None where none are given at all."""
        if self.given is None:
            return None
        if name not in self.given:
            rule = f"--use: must hold options of {name!r}; got {', '.join(self.given) or 'none'}"
            raise ValueError(f"{rule}. Ask for what those results are of.")
        return self.given[name]


def _tuples(value: Any) -> Any:
    """Turn lists, which JSON has instead of tuples, into tuples."""
    if isinstance(value, dict):
        return {key: _tuples(entry) for key, entry in value.items()}
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value
