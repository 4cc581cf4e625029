"""Write the measured tables into README.md and the pages of docs, from the committed results.

python -m experiments.readme            # write
python -m experiments.readme --check    # exit with 1 if they do not hold what the results say
"""

import argparse
import json
import re
from pathlib import Path

from experiments.readme import tables
from experiments.readme.summary import summary

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/images.md",
    "docs/loops.md",
    "docs/learning.md",
    "docs/baselines.md",
    "docs/performance.md",
    "docs/structured.md",
    "docs/real_data.md",
    "docs/expectation_propagation.md",
)
SUMMARIZED = (
    "learned_bandwidths",
    "figure1",
    "depth",
    "protein",
    "categories",
    "orientation",
    "retrieval",
    "words",
    "kjit",
)
BLOCK = re.compile(r"(<!-- begin (\w+): .*? -->\n)(.*?)(<!-- end \w+ -->)", re.DOTALL)


def main(argv: list[str] | None = None) -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is out of date")
    check = parser.parse_args(argv).check
    tables = {
        "denoising": denoising(_rows("experiments/denoising/results/denoising.json")),
        "propagate": propagate(_rows("benchmarks/results/propagate.json")),
        "floor": propagate(_rows("benchmarks/results/propagate.json")),
        "scale": scale(_rows("benchmarks/results/scale.json")),
        "expect": expect(_rows("benchmarks/results/scale.json")),
        "streaming": streaming(_rows("benchmarks/results/streaming.json")),
        "trees": trees(_rows("benchmarks/results/propagate.json", "trees")),
        "rules": rules(_rows("experiments/update_rules/results/update_rules.json")),
        "fit": fit(_rows("benchmarks/results/fit.json")),
        "loops": loops(_rows("experiments/convergence/results/convergence.json")),
        "fixed": fixed(_rows("experiments/convergence/results/convergence.json", "fixed_points")),
        "gradients": gradients(_rows("benchmarks/results/gradients.json")),
        "learned": learned(_rows("experiments/learned_bandwidths/results/learned_bandwidths.json")),
        "levers": levers(_rows("experiments/learned_bandwidths/results/learned_bandwidths.json")),
        "transfer": transfer(_rows("experiments/learned_bandwidths/results/learned_bandwidths.json")),
        "orientation": orientation(_rows("experiments/orientation/results/orientation.json")),
        "lengths": lengths(_rows("experiments/retrieval/results/retrieval.json")),
        "leaves": leaves(_rows("experiments/retrieval/results/retrieval.json")),
        "words": words(_rows("experiments/words/results/words.json")),
        "tables": tables_of_states(_rows("benchmarks/results/discrete.json")),
    }
    compared = _rows("experiments/figure1/results/figure1.json")
    both = [(image, setting) for image in ("whole", "part") for setting in ("paper", "tuned")]
    tables |= {f"{image}_{setting}": figure1(compared, image, setting) for image, setting in both}
    tables |= real_data()
    tables["summary"] = _markdown(
        *summary({name: _rows(f"experiments/{name}/results/{name}.json") for name in SUMMARIZED})
    )
    stale = 0
    for path in (ROOT / name for name in PAGES):
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: found[1] + tables[found[2]] + found[4], old)
        stale += new != old
        if not check:
            path.write_text(new, encoding="utf-8")
    return int(check and stale > 0)


def real_data() -> dict[str, str]:
    """Return the tables of the experiments on real data; those of several sets have the set in their name."""
    found = {"protein": _markdown(*tables.protein(_rows("experiments/protein/results/protein.json")))}
    for lay_out in (tables.depth, tables.categories):
        name = lay_out.__name__
        rows = _rows(f"experiments/{name}/results/{name}.json")
        for one in dict.fromkeys(row["set"] for row in rows):
            found[f"{name}_{one}"] = _markdown(*lay_out([row for row in rows if row["set"] == one]))
    messages = _rows("experiments/kjit/results/kjit.json")
    parts = (
        tables.kjit_batch,
        tables.kjit_uncertainty,
        tables.kjit_online,
        tables.kjit_gamma,
        tables.kjit_real,
        tables.kjit_bands,
    )
    return found | {lay_out.__name__: _markdown(*lay_out(messages)) for lay_out in parts}


def denoising(rows: list[dict]) -> str:
    """Lay the rows of the denoising experiment out, the settings side by side."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    columns = ["mode", "mean", "coverage", "iterations"]
    body = []
    for image in dict.fromkeys(row["image"] for row in rows):
        cells = [image]
        for setting in settings:
            (row,) = (row for row in rows if row["image"] == image and row["setting"] == setting)
            cells += [f"{row['rmse_mode']:.1f}", f"{row['rmse_mean']:.1f}", f"{row['cover90']:.2f}"]
            cells.append(f"{row['iterations']}" + ("" if row["converged"] else "*"))
        body.append(cells)
    return _markdown(["image", *(f"{name}: {key}" for name in settings for key in columns)], body)


def propagate(rows: list[dict]) -> str:
    """Lay the rows of the benchmark of message passing out."""
    header = ["ranks", "first call s", "loop s", "products s", "loop / products"]
    keys = ("first_call_s", "loop_s", "last_s")
    body = [
        [f"{row['rank']}, {row['points']}", *(f"{row[key]:.3f}" for key in keys), f"{row['loop/last']:.2f}"]
        for row in rows
    ]
    return _markdown(header, body)


def orientation(rows: list[dict]) -> str:
    """Lay the errors of the camera's orientation out, a line for each method."""
    header = ["method", "ambiguous frames", "behind by", "median", "under 10 degrees", "clear frames", "median"]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["frames"]: row for row in rows if row["method"] == method}
        hard, clear = of["ambiguous"], of["clear"]
        behind = f"{hard['ours_ahead']:+.1f} ± {hard['ours_ahead_stderr']:.1f}" if body else ""
        body.append([method, f"{hard['degrees']:.1f} ± {hard['stderr']:.1f}", behind, f"{hard['median']:.1f}"])
        body[-1] += [
            f"{hard['below10']:.0%}",
            f"{clear['degrees']:.1f} ± {clear['stderr']:.1f}",
            f"{clear['median']:.1f}",
        ]
    return _markdown(header, body)


def lengths(rows: list[dict]) -> str:
    """Lay recall against the length of the chain out, a line for each length."""
    return _recalls(rows, "length", "edges")


def leaves(rows: list[dict]) -> str:
    """Lay recall against the number of observed leaves out."""
    return _recalls(rows, "leaves", "observed")


def _recalls(rows: list[dict], tree: str, label: str) -> str:
    rows = [row for row in rows if row["tree"] == tree]
    columns = list(dict.fromkeys((row["regime"], row["method"]) for row in rows))
    body = []
    for count in dict.fromkeys(row["count"] for row in rows):
        of = {(row["regime"], row["method"]): row for row in rows if row["count"] == count}
        body.append([str(count), *(f"{of[key]['recall@1']:.2f} ± {of[key]['se@1']:.2f}" for key in columns)])
    short = {"kernel belief propagation": "KBP"}
    return _markdown([label, *(f"{regime}: {short.get(method, method)}" for regime, method in columns)], body)


def words(rows: list[dict]) -> str:
    """Lay recall at 1 and 5 over all target languages out, a line for each number of observed languages."""
    rows = [row for row in rows if row["target"] == "all"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = []
    for count in dict.fromkeys(row["observed"] for row in rows):
        of = {row["method"]: row for row in rows if row["observed"] == count}
        body.append([str(count), *(f"{of[m]['recall@1']:.2f}, {of[m]['recall@5']:.2f}" for m in methods)])
    return _markdown(["observed", *methods], body)


def scale(rows: list[dict]) -> str:
    """Lay the rows of the benchmark of sizes and kinds of graphs out."""
    header = ["case", "messages", "build s", "ns a message", "loop / products", "to grid", "peak GiB"]
    body = [
        [row["case"], f"{row['messages']:,}", f"{row['build_s']:.2g}", f"{row['ns_per_message']:.0f}"]
        + [f"{row[key]:.2f}" for key in ("loop/bare", "to grid", "peak_gib")]
        for row in rows
        if row["case"] not in ("discrete", "fit")
    ]
    return _markdown(header, body)


def expect(rows: list[dict]) -> str:
    """Say what large graphs take, from the time for a message on the largest grid and the memory held for one."""
    grids = [row for row in rows if row["case"].startswith("grid")]
    seconds = grids[-1]["ns_per_message"] / 1e9
    held = 2**30 * (grids[-1]["peak_gib"] - grids[0]["peak_gib"]) / (grids[-1]["messages"] - grids[0]["messages"])
    body = [
        [f"{count:.0e}".replace("e+", "e"), _amount(held * count / 2**30, "GiB"), _amount(30 * seconds * count, "s")]
        for count in (1e6, 1e8, 1e10)
    ]
    return _markdown(["messages", f"memory ({held:.0f} bytes each)", "30 iterations, two cores"], body)


def streaming(rows: list[dict]) -> str:
    """Lay the rows of the benchmark of learning out of core out."""
    header = ["pairs", "fit s", "microseconds a pair", "fit / products", "peak GiB"]
    keys = ("fit_s", "us_per_pair", "fit/products", "peak_gib")
    body = [[f"{row['pairs']:,}", *(f"{row[key]:.2g}" for key in keys)] for row in rows]
    return _markdown(header, body)


def rules(rows: list[dict]) -> str:
    """Lay the rows of the study of update rules on the small image out, with multiples of constant time."""
    side = min(row["side"] for row in rows)
    mine = [row for row in rows if row["side"] == side]
    body = []
    for row in mine:
        same = [other for other in mine if other["rule"] == "constant" and other["eps"] == (row["eps"] or 1e-3)]
        name = "full rank" if row["rule"] == "full" else f"{row['rule']} time"
        eps = "" if row["eps"] is None else f"{row['eps']:g}"
        cells = [name, eps, f"{row['rank']}, {row['points']}", f"{row['rmse_mode']:.2f}", f"{row['run_s']:.3g}"]
        body.append([*cells, f"{row['run_s'] / same[0]['run_s']:.0f}"])
    return _markdown(["rule", "eps", "rank, points", "RMSE of the mode", "run s", "run s / constant"], body)


def fit(rows: list[dict]) -> str:
    """Lay the rows of the benchmark of fit out."""
    header = ["pairs", "rank", "first fit s", "fit s", "peak GiB", "3 x features + 1 GiB"]
    body = [
        [
            f"{row['pairs']:,}",
            f"{row['rank']}",
            *(f"{row[key]:.2g}" for key in ("fit_s", "again_s")),
            *(f"{row[key]:.2f}" for key in ("peak_gib", "bound_gib")),
        ]
        for row in rows
    ]
    return _markdown(header, body)


def loops(rows: list[dict]) -> str:
    """Lay the methods out, one column of iterations to the tolerance for each problem; the last residual where none."""
    problems = list(dict.fromkeys((row["problem"], row["setting"]) for row in rows))
    found = {(row["method"], row["problem"], row["setting"]): row for row in rows}

    def cell(row: dict) -> str:
        return f"{row['iters_to_tol']}" if row["iters_to_tol"] else f"({row['last_residual']:.1g})"

    body = [
        [method, *(cell(found[method, *problem]) for problem in problems)]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    names = [name if setting == "graphs" else f"{name.removeprefix('sunset ')} {setting}" for name, setting in problems]
    return _markdown(["method", *names], body)


def fixed(rows: list[dict]) -> str:
    """Lay the fixed points of the sunset images out."""
    ways = ("synchronous", "coloured", "coloured, Anderson")
    header = ["levels", "setting", "ranks", *(f"{way}: iterations (s)" for way in ways), "mode", "mean"]
    body = []
    for row in rows:
        cells = [row["problem"].removeprefix("sunset "), row["setting"], f"{row['rank']}, {row['points']}"]
        cells += [f"{row[f'{way}: iters']} ({row[f'{way}: s']:.2f})" for way in ways]
        cells += [f"{row['rmse_mode']:.1f}", f"{row['rmse_mean']:.1f}"]
        cells += [f"{row['starts_differ_by']:.0e}", f"{row['bp_residual']:.1f}"]
        body.append([*cells, f"{row['constrained: iters']}, {row['constrained: rmse_mode']:.1f}"])
    return _markdown([*header, "starts differ by", "plain: residual", "constrained: iterations, mode"], body)


def learned(rows: list[dict]) -> str:
    """Lay the comparison of denoisers out: RMSE of the posterior mean, in brackets seconds an image."""
    mine = [row for row in rows if row["study"] in ("sunset", "photograph")]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for image in dict.fromkeys(row["image"] for row in mine):
        found = {row["method"]: row for row in mine if row["image"] == image}
        best = min(row["rmse_mean"] for row in found.values())
        cells = [image.removeprefix("sunset ")]
        for method in methods:
            row = found[method]
            error = f"{row['rmse_mean']:.2f}"
            cells.append((f"**{error}**" if row["rmse_mean"] == best else error) + f" ({row['run_s']:.2g})")
        body.append([*cells, f"{found['learned']['cover90']:.2f}", f"{found['learned']['learn_s']:.0f}"])
    return _markdown(["image", *methods, "learned: cover", "learned: s to learn"], body)


def figure1(rows: list[dict], image: str, setting: str) -> str:
    """Lay methods out by gray levels: RMSE, in brackets seconds an image; the least error is bold."""
    mine = [row for row in rows if (row["image"], row["setting"]) == (image, setting)]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for levels in dict.fromkeys(row["levels"] for row in mine):
        found = {row["method"]: row for row in mine if row["levels"] == levels}
        best = min(row["rmse"] for row in found.values())
        cells = [f"{levels}"]
        for method in methods:
            row = found[method]
            error = f"**{row['rmse']:.1f}**" if row["rmse"] == best else f"{row['rmse']:.1f}"
            cells.append(f"{error} ({row['run_s']:.2g})")
        body.append(cells)
    return _markdown(["levels", *methods], body)


def tables_of_states(rows: list[dict]) -> str:
    """Lay the benchmark of discrete belief propagation out."""
    header = ["states", "run s", "dense s", "run / dense", "peak GiB", "max-product s"]
    header += ["PGMax s", "its set-up s", "its peak GiB"]
    keys = ("run_s", "dense_s", "run/dense", "peak_gib", "max_product_s")
    keys += ("pgmax_run_s", "pgmax_build_s", "pgmax_peak_gib")
    body = [[f"{row['states']}", *("" if row.get(key) is None else f"{row[key]:.2f}" for key in keys)] for row in rows]
    return _markdown(header, body)


def gradients(rows: list[dict]) -> str:
    """Lay memory and time of gradients out."""
    header = ["model", "iterations", "run MiB", "gradient MiB", "gradient / run", "kept, in messages", "time / run"]
    body = []
    for row in rows:
        cells = [row["model"], row["iterations"], *(f"{row[key]:.0f}" for key in ("run_mib", "gradient_mib"))]
        cells += [f"{row['gradient / run']:.2f}", "" if row["kept"] is None else f"{row['kept']:.1f}"]
        body.append([*cells, f"{row['gradient_s / run_s']:.1f}"])
    return _markdown(header, body)


def levers(rows: list[dict]) -> str:
    """Lay out what each group of learned numbers is worth."""
    mine = [row for row in rows if row["study"] == "levers"]
    body = [
        [("+ " if i else "") + row["method"], *(f"{row[key]:.2f}" for key in ("rmse_mean", "rmse_mode", "cover90"))]
        for i, row in enumerate(mine)
    ]
    return _markdown(["learned", "RMSE of the mean", "of the mode", "cover"], body)


def transfer(rows: list[dict]) -> str:
    """Lay out what one image teaches for others."""
    mine = [row for row in rows if row["study"] == "transfer"]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for image in dict.fromkeys(row["image"] for row in mine):
        found = {row["method"]: row["rmse_mean"] for row in mine if row["image"] == image}
        body.append([image, *(f"{found[method]:.2f}" for method in methods)])
    return _markdown(["tested on", *methods], body)


def trees(rows: list[dict]) -> str:
    """Lay the rows of the benchmark of exact trees out."""
    header = ["tree", "nodes", "levels", "build s", "run_tree s", "one iteration of run s"]
    keys = ("build_s", "run_tree_s", "iteration_s")
    body = [
        [row["tree"], f"{row['nodes']:,}", f"{row['levels']:,}", *(f"{row[key]:.2g}" for key in keys)] for row in rows
    ]
    return _markdown(header, body)


def _amount(number: float, unit: str) -> str:
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _rows(path: str, key: str = "rows") -> list[dict]:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))[key]


def _markdown(header: list[str], body: list[list[str]]) -> str:
    lines = [header, [":---", *["---:"] * (len(header) - 1)], *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
