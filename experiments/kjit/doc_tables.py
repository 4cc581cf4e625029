"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, or_blank


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    parts = (kjit_batch, kjit_uncertainty, kjit_online, kjit_gamma, kjit_real, kjit_bands)
    return {part.__name__: part(results["rows"]) for part in parts}


def kjit_batch(rows: list[Row]) -> str:
    """Return a table of log KL of learned messages, a line for each method, range of sweeps and variable."""
    header = ["method", "to", "sweeps", "mean", "minus KJIT", "sd", "5 %", "median", "95 %", "99 %"]
    header.append("published mean (sd)")
    body = []
    for row in _of(rows, "batch", "method"):
        published = row["published_mean"]
        theirs = "" if published is None else f"{published:.2f} ({row['published_sd']:.2f})"
        cells = [or_blank(row[key], ".2f") for key in ("sd", "q5", "median", "q95", "q99")]
        mean = f"{row['mean']:.2f} ± {row['standard_error']:.2f}"
        apart = "" if row["difference"] is None else f"{row['difference']:+.2f} ± {row['difference_error']:.2f}"
        body.append([row["method"], row["to"], row["sweeps"], mean, apart, *cells, theirs])
    return markdown_table(header, body)


def kjit_uncertainty(rows: list[Row]) -> str:
    """Return a table of the uncertainty of learned messages, a line for each method and range of sweeps."""
    header = ["method", "sweeps", "Spearman", "mean log KL by quartile of uncertainty", "step: line, parabola"]
    body = []
    for row in _of(rows, "uncertainty", "method"):
        quartiles = ", ".join(f"{row[f'quartile_{i}']:.1f}" for i in (1, 2, 3, 4))
        steps, rises = (f"{row[f'{key}_line']:.2f}, {row[f'{key}_parabola']:.2f}" for key in ("step", "rise"))
        cells = [row["method"], row["sweeps"], f"{row['spearman']:.2f}", quartiles, steps]
        body.append([*cells, f"{row['line_above']:.0%}", rises])
    return markdown_table([*header, "line above parabola", "rise: line, parabola"], body)


def kjit_online(rows: list[Row]) -> str:
    """Return a table of the streams of logistic regressions, a line for each kind of targets, oracle and precision."""
    header = ["targets", "oracle", "bits", "problems", "queries: all", "1st, 2nd, 5th, 10th, 30th", "error"]
    header += ["of exact EP", "largest gap", "KL: median, most", "ms a message", "prediction", "prediction and update"]
    body = []
    for row in (row for row in _of(rows, "online", "study") if row["study"] == "summary"):
        queries = ", ".join(str(row[f"queries_{i}"]) for i in (1, 2, 5, 10, 30) if row.get(f"queries_{i}") is not None)
        cells = [row["targets"], row["oracle"], f"{row['bits']}", f"{row['problems']}", f"{row['queries']}", queries]
        cells += [f"{row[key]:.4f}" for key in ("error", "exact_error", "largest_gap")]
        cells.append(f"{row['kl_median']:.2g}, {row['kl_max']:.2g}")
        times = (row.get(key) for key in ("ms_a_message", "predict_ms", "predict_and_update_ms"))
        body.append([*cells, *(or_blank(value, ".2g") for value in times)])
    for row in (row for row in _of(rows, "online", "study") if row["study"] == "oracle"):
        cells = ["no operator", row["oracle"], f"{row['bits']}", "", *[""] * (len(header) - 7)]
        body.append([*cells, f"{row['ms_a_message']:.2g}", "", ""])
    return markdown_table(header, body)


def kjit_gamma(rows: list[Row]) -> str:
    """Return a table of the stream of precisions with a compound gamma prior, beside the published numbers."""
    mine = [row for row in _of(rows, "gamma", "study") if row["study"] != "time"]
    header = ["", "queries", "correlation of log shapes", "of log rates", "log KL: 5, 50, 95, 99 %", "ms a problem"]
    body = []
    for i, row in enumerate(mine):
        quantiles = ", ".join(f"{row[key]:.1f}" for key in ("q5", "median", "q95", "q99"))
        correlations = [f"{row[f'correlation_{name}']:.7f}" for name in ("shape", "rate")]
        body.append([f"stream {i + 1}", f"{row['queries']}", *correlations, quantiles, f"{row['ms']:.2g}"])
    theirs = ["published", f"{mine[0]['published_queries']}", "1", f"{mine[0]['published_correlation_rate']:.6f}"]
    return markdown_table(header, [*body, [*theirs, "", "8"]])


def kjit_real(rows: list[Row]) -> str:
    """Return a table of the real sets, a line for each set and kind of targets."""
    header = ["set", "targets", "exact EP wrong", "KJIT wrong", "queries", "KL to exact EP", "published: exact, KJIT"]
    body = []
    for row in _of(rows, "real", "set"):
        published = f"{row['published_exact']:.4f}, {row['published_kjit']:.4f}"
        wrong = [f"{row[key]}/{row['test']} ({row[key] / row['test']:.4f})" for key in ("exact_wrong", "wrong")]
        queries = f"{row['queries']} of {row['messages']}"
        body.append([row["set"], row["targets"], *wrong, queries, f"{row['kl']:.2g}", published])
    return markdown_table(header, body)


def kjit_bands(rows: list[Row]) -> str:
    """Return a table of what was expected, and whether it was met."""
    body = []
    for row in _of(rows, "bands", "what"):
        ends = [or_blank(row[key], "g") for key in ("least", "most")]
        expected = " to ".join(ends) if all(ends) else f">= {ends[0]}" if ends[0] else f"<= {ends[1]}"
        body.append([row["of"], row["what"], f"{row['value']:.4g}", expected, "met" if row["met"] else "missed"])
    return markdown_table(["part", "number", "ours", "expected", ""], body)


def _of(rows: list[Row], part: str, key: str) -> list[Row]:
    """Return the rows of a part that have a key."""
    return [row for row in rows if row["part"] == part and key in row]
