"""Tables of this experiment in the documentation."""

import numpy as np

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"uai": errors(results["rows"])}


def errors(rows: list[Row]) -> str:
    """Return a line for each method: mean errors of marginals by family, converged models, errors of log Z."""
    family = lambda row: row["model"].partition("_")[0]
    families = list(dict.fromkeys(map(family, rows)))
    counts = {f: len({row["model"] for row in rows if family(row) == f}) for f in families}
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        means = [f"{np.mean([row['error'] for row in own if family(row) == f]):.4f}" for f in families]
        known = [abs(row["log_z_error"]) for row in own if row["log_z_error"] is not None]
        log_z = f"{np.median(known):.2f}" if np.isfinite(known).any() else ""
        seconds = f"{np.median([row['seconds'] for row in own]):.1f}"
        body.append([method, *means, f"{sum(row['converged'] for row in own)} of {len(own)}", log_z, seconds])
    head = ["method", *(f"{f} ({counts[f]})" for f in families), "converged", "log Z", "s"]
    return markdown_table(head, body)
