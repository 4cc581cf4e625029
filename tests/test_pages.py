"""The pages tell the truth: their programs run and print what they show, their command lines exist, links lead on."""

import ast
import contextlib
import importlib
import inspect
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kbpjax
from tests.checkout import needs_results
from tests.programs import SHORT, python

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
TEXTS = {"README": (ROOT / "README.md").read_text(encoding="utf-8"), **PAGES}
RUNNING = [name for name, text in PAGES.items() if "```python" in text]
TOLERANCES = {"kernels": (0.02, 0.002), "composing": (0.25, 0.002), "evidence": (0.1, 0.02)}
"""{page: relative, absolute}: shares may differ in their last figure on another processor, errors by more."""


def blocks(text, language):
    """Return the code blocks of a page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+\.?\d*", text)]


def check_loops(printed):
    rmse, radius = numbers(printed)
    assert rmse < 15 and radius < 1 and "oscillates False" in printed


def check_learning(printed):
    first, last, rmse, _, before, after = numbers(printed)
    assert last < 0.9 * first and rmse < 15 and abs(after - 0.9) < abs(before - 0.9)


def check_baselines(printed):
    said = dict(re.findall(r"(\w+) \[(.*?)\]", printed))
    assert set(said) == {"discrete", "Gaussian", "particles", "mixtures"}
    assert all(0 <= x <= 255 for values in said.values() for x in numbers(values))


CHECKS = {"loops": check_loops, "learning": check_learning, "baselines": check_baselines}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
def test_pages_run_and_print_what_they_say(name, tmp_path):
    if name == "serving":
        pytest.importorskip("flatbuffers", reason="the extra kbpjax[serving] is not installed")
    (tmp_path / "page.py").write_text("\n".join(blocks(PAGES[name], "python")), encoding="utf-8")
    outcome = python("-W", "error", "page.py", folder=tmp_path, **SHORT)
    assert outcome.returncode == 0, outcome.stderr
    if name in CHECKS:
        CHECKS[name](outcome.stdout)
    said = "".join(blocks(PAGES[name], "text"))
    if said:
        words = [re.findall(r"[A-Za-z_.']{2,}", text) for text in (outcome.stdout, said)]
        assert words[0] == words[1]
        share, least = TOLERANCES.get(name, (0.2, 0.002))
        both = zip(numbers(outcome.stdout), numbers(said), strict=True)
        assert all(abs(got - shown) <= max(share * abs(shown), least) for got, shown in both), outcome.stdout
    for line in commands(PAGES[name]):
        if line.startswith("python -m kbpjax "):  # with the files that the program has made
            outcome = python(*line.split()[1:], folder=tmp_path, **SHORT)
            assert outcome.returncode == 0, outcome.stderr


@pytest.mark.slow
def test_the_server_of_the_page_imports_jax_alone(tmp_path):
    pytest.importorskip("flatbuffers", reason="the extra kbpjax[serving] is not installed")
    export, serve = blocks(PAGES["serving"], "python")
    absent = "import sys; sys.modules |= dict.fromkeys(['kbpjax', 'equinox', 'jaxtyping', 'optax', 'chex'])\n"
    for program in (export, absent + serve):
        outcome = python("-W", "error", "-c", program, folder=tmp_path, **SHORT)
        assert outcome.returncode == 0, outcome.stderr
    assert numbers(outcome.stdout) == pytest.approx(numbers("".join(blocks(PAGES["serving"], "text"))), rel=0.2)


@pytest.mark.parametrize("name", TEXTS)
def test_every_block_is_of_a_language_that_is_tested(name):
    fences = re.findall(r"^ *```(.*)$", TEXTS[name], re.MULTILINE)
    assert len(fences) % 2 == 0 and set(fences[1::2]) <= {""}
    assert set(fences[::2]) <= {"python", "text", "sh", ""}  # without a language: a formula
    assert bool(blocks(TEXTS[name], "python")) == ("```python" in TEXTS[name])


@needs_results
@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name):
    folder = ROOT if name == "README" else ROOT / "docs"
    links = re.findall(r"\]\(([^)#]+)\)", TEXTS[name])
    assert links or name in {"sharded", "streaming"}
    assert all((folder / link).exists() for link in links if "://" not in link)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_ends_with_a_next_step(name):
    last = PAGES[name].rpartition("\n\nNext:")[2]
    assert re.search(r"\]\([\w./]+\.(?:md|ipynb)", last) and "\n#" not in last and "```" not in last


@pytest.mark.slow
def test_the_figure_of_the_pages_is_drawn_by_its_program(tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    target = tmp_path / "drawn.png"
    outcome = python(str(ROOT / "docs" / "figures" / "how_it_works.py"), str(target), folder=tmp_path, **SHORT)
    assert outcome.returncode == 0, outcome.stderr
    committed = ROOT / "docs" / "assets" / "how_it_works.png"
    assert max(path.stat().st_size for path in (target, committed)) < 120_000
    with image.open(target) as drawn, image.open(committed) as shown:
        assert drawn.size == shown.size


def commands(text):
    """Return the command lines of the sh blocks of a page, without their comments."""
    lines = "".join(blocks(text, "sh")).splitlines()
    return [command for line in lines for command in line.split("#")[0].strip().split(" && ") if command]


PROGRAM = r"python (-m (?:experiments|benchmarks|kbpjax)[\w.]*|benchmarks/\w+\.py)"
CALL = re.compile(PROGRAM + r"(?: (denoise|info))?(.*)")


def calls():
    """Return {what Python is asked to run: options used with it}, of sh blocks with their comments and of text."""
    found = {}
    for text in TEXTS.values():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        quoted = re.findall(r"`([^`]+)`|<!-- begin \w+: (.*?) -->", prose)
        lines = [*"".join(blocks(text, "sh")).splitlines(), *(part for pair in quoted for part in pair)]
        for command in (part for line in lines for part in line.split(" && ")):
            if match := CALL.search(command):
                target, verb, rest = match.groups()
                found.setdefault((*target.split(), *([verb] if verb else [])), set()).update(options(rest))
    return found


def options(text):
    return set(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", text))


CALLS = calls()


@cache
def help_of(target):
    outcome = python(*target, "--help", **SHORT)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


PROGRAMS = sorted(target for target, used in CALLS.items() if target[-1] != "kbpjax" or used)
"""All but the mere name of the package."""


@pytest.mark.slow
@pytest.mark.parametrize("target", PROGRAMS, ids=" ".join)
def test_command_lines_name_programs_and_options_that_exist(target):
    assert CALLS[target] <= options(help_of(target)) | {"--help"}


def test_calls_are_found():
    assert CALLS["-m", "experiments.denoising"] >= {"--levels", "--image", "--train", "--test", "--help"}
    assert CALLS["-m", "experiments.multihost"] == {"--join", "--process", "--processes"}
    assert CALLS["-m", "kbpjax", "denoise"] == {"--learn", "--noise", "--save", "--model"}
    assert CALLS["benchmarks/discrete.py",] == {"--peer"}
    assert len(CALLS) > 20


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "```sh" in text])
def test_shell_lines_are_of_programs_that_are_tested(name):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    others = {"python3 -m venv .venv", "source .venv/bin/activate"}
    for command in commands(TEXTS[name]):
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command
        elif command.startswith("pip install "):
            assert set(re.findall(r"\w+", command.partition("[")[2])) <= set(extras), command
        else:
            assert CALL.match(command) or command in others, command


def test_make_targets_in_the_text_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {target for text in TEXTS.values() for target in re.findall(r"`make (\w+)`", text)}
    assert "docs" in targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


NOTEBOOKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*.py"))}
PLACES = ("", ".kernels", ".features", ".ep", ".baselines", ".sharded", ".plotting", ".tuning.scores")
"""Modules whose functions the pages may call by their bare names."""
FILES = {"py", "md", "json", "ipynb", "png", "jpg", "npz", "npy", "kbp"}
"""Endings of names of files."""
MODULES = {name for _, name, _ in pkgutil.walk_packages(kbpjax.__path__, "kbpjax.") if "__main__" not in name}


def inline(text):
    """Return the pieces of code within the prose of a page, or of the markdown cells of a notebook."""
    if "# %%" in text:
        cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
        text = "\n".join(
            re.sub(r"^# ?", "", cell, flags=re.MULTILINE) for cell in cells if cell.startswith(" [markdown]")
        )
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def attribute(found, name):
    """Return an attribute of a module or class, a field of a class, or a module within a package; else raise."""
    if inspect.isclass(found) and name in getattr(found, "__annotations__", {}):
        return Any
    if inspect.ismodule(found) and not hasattr(found, name) and f"{found.__name__}.{name}" in MODULES:
        return importlib.import_module(f"{found.__name__}.{name}")
    return getattr(found, name)


@cache
def classes():
    """Return the public classes of the package as {name: class}."""
    modules = [kbpjax, *(importlib.import_module(name) for name in sorted(MODULES))]
    found = [pair for module in modules for pair in vars(module).items() if inspect.isclass(pair[1])]
    return {name: value for name, value in found if value.__module__.startswith("kbpjax") and name[0] != "_"}


def meanings(first):
    """Return what the first part of a dotted name may stand for: a module, a class, or an object of a class."""
    if first in {"kbp", "kbpjax"}:
        return [kbpjax]
    modules = [importlib.import_module(name) for name in sorted(MODULES) if name.rpartition(".")[2] == first]
    objects = [value for name, value in classes().items() if name == first or name.lower().endswith(first)]
    return modules + objects + ([kbpjax.KernelMRF] if first == "model" else [])


def resolves(name):
    """Whether a dotted name leads to something, under any meaning of its first part; of others we know nothing."""
    first, *rest = name.split(".")
    for found in (known := meanings(first)):
        with contextlib.suppress(AttributeError):
            for part in rest:
                found = Any if found is Any else attribute(found, part)
            return True
    return not known


def callables(function):
    """Return what a call may mean: `kbp.f` the one of that name, a bare `f` all public ones of this name."""
    if isinstance(function, ast.Attribute):
        name = ast.unparse(function)
        found = [kbpjax] if re.match(r"(kbp|kbpjax)\.", name) and resolves(name) else []
        for part in name.split(".")[1:]:
            found = [attribute(one, part) for one in found]
        return [one for one in found if callable(one)]
    places = [importlib.import_module(f"kbpjax{place}") for place in PLACES]
    found = [getattr(place, function.id) for place in places if hasattr(place, getattr(function, "id", "."))]
    return [one for one in found if callable(one) and not inspect.ismodule(one)]


def binds(function, call):
    """Whether arguments fit a signature; where some are left out (`...`, or keywords only), those that are there."""
    left_out = [isinstance(value, ast.Constant) and value.value is ... for value in call.args]
    fill = [None] * (len(call.args) - sum(left_out))
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    signature = inspect.signature(function)
    bind = signature.bind if call.args and not any(left_out) else signature.bind_partial
    try:
        bind(*([] if any(left_out[:1]) else fill), **named)
    except TypeError:
        return False
    return True


def mistakes(code):
    """Return what a piece of inline code names or calls that does not exist, or not like this."""
    names = re.findall(r"(?<![\w./])[A-Za-z]\w*(?:\.[A-Za-z]\w*)+(?!/)", code)
    wrong = [name for name in names if name.rpartition(".")[2] not in FILES and not resolves(name)]
    written = re.sub(r"(\b\w+)=(?=\s*[,)])", r"\1=...", code)  # `run(tol=)`
    try:
        calls = [node for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return wrong + ([code] if re.search(r"\bkbp(jax)?\.[\w.]+\(", code) else [])
    for call in calls:
        first = call.args[0] if call.args else None
        meant = [] if isinstance(first, ast.Name) and first.id == "self" else callables(call.func)
        if meant and not any(binds(function, call) for function in meant):
            wrong.append(ast.unparse(call))
    return wrong


@pytest.mark.parametrize("name", [*TEXTS, *(f"notebooks/{name}" for name in NOTEBOOKS)])
def test_inline_code_names_and_calls_what_exists(name):
    text = NOTEBOOKS[name.removeprefix("notebooks/")] if name.startswith("notebooks/") else TEXTS[name]
    wrong = [mistake for code in inline(text) for mistake in mistakes(code)]
    assert not wrong


@pytest.mark.parametrize(
    "code",
    [
        "kbp.no_such_name",
        "kbpjax.tuning.scores.no_such_name",
        "update.leave_one_out",
        "Solution.no_such_field",
        "kbp.diagnose(posterior, solution=1, nothing=2)",
        "clamp(model, graph, {node: value})",
        "run(model, graph, no_such_option=1)",
        "fit(positiv=)",
        "observe(..., no_such_option=1)",
        "kbp.run(model, graph",
        "kbp.check(kbp.run(model, graph, tolerance=1e-4))",
    ],
)
def test_wrong_inline_code_is_found(code):
    assert mistakes(code)


@pytest.mark.parametrize(
    "code",
    [
        "kbpjax.baselines.discrete",
        "Solution.converged",
        "model.ranks",
        "solution.converged",
        "kbp.diagnose(model, graph, evidence, solution)",
        "run(tol=)",
        "observe(..., evidence_model=kbp.DensityRatio())",
        "tune(settings, data, ...)",
        "check(self, argument, points)",
        "kbpjax/inference/loopy.py",
        "not code at all (kbp)",
    ],
)
def test_right_inline_code_is_not(code):
    assert not mistakes(code)


def test_inline_code_is_found():
    assert "kbp.check" in {code for text in TEXTS.values() for code in inline(text)}
    assert sum(len(inline(text)) for text in NOTEBOOKS.values()) > 50
    assert len(MODULES) > 40


def test_defaults_are_those_of_the_table():
    rows = [
        [cell.strip(" `") for cell in row.split("|")[1:-1]]
        for row in PAGES["choosing"].partition("## Defaults")[2].splitlines()
    ]
    table = {row[0]: row[1:] for row in rows if len(row) == 4}
    fit, infer, run = (inspect.signature(f).parameters for f in (kbpjax.fit, kbpjax.infer, kbpjax.run))
    by_hand = {name: parameter.default for name, parameter in {**fit, **run}.items()}
    hyperparameters = kbpjax.Hyperparameters(kbpjax.RBF(1))
    names = ("floor", "eps", "max_rank", "num_iters")
    assert by_hand["rule"] is None
    rules = kbpjax.ConstantTime(), hyperparameters.rule
    for name in names:
        of_rule = name in ("eps", "max_rank")
        given = getattr(rules[0], name) if of_rule else by_hand[name]
        tuned = getattr(rules[1] if of_rule else hyperparameters, name)
        assert [float(cell) for cell in table[name][1:]] == pytest.approx([given, float(tuned)])
        automatic = infer[name].default if name in infer else given
        assert float(table[name][0]) == pytest.approx(automatic)
    assert float(table["tol"][0]) == float(table["tol"][2]) == infer["tol"].default == hyperparameters.tol
    assert by_hand["tol"] is None
    assert float(table["damping"][1]) == by_hand["damping"] and hyperparameters.damping is None
    assert [float(cell) for cell in table["ridge"][1:]] == pytest.approx([1e-6, float(hyperparameters.ridge)])
    regressor = importlib.import_module("kbpjax.estimator").GraphRegressor()
    assert (regressor.max_rank, regressor.num_iters) == (None, 200) and fit["ridge"].default is None


def headings(text):
    """Return the anchors of the headings of a page, as mkdocs and GitHub make them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    return {line.strip().replace(" ", "-") for line in words}


@pytest.mark.parametrize("name", TEXTS)
def test_anchors_are_headings(name):
    for page, anchor in re.findall(r"\]\(((?:\w+\.md)?)#([\w-]+)\)", TEXTS[name]):
        assert anchor in headings(TEXTS[Path(page).stem] if page else TEXTS[name]), (page, anchor)


@pytest.mark.parametrize("name", TEXTS)
def test_formulas_are_closed_and_stand_where_markdown_leaves_them_alone(name):
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]+`", "", TEXTS[name], flags=re.DOTALL | re.MULTILINE)
    shown = re.findall(r"(?:\A|\n\n)\$\$\n([^$]+?)\n\$\$(?=\n\n|\Z)", text)
    assert 2 * len(shown) == text.count("$$")  # on lines of their own, between blank lines
    within = re.findall(r"(?<!\$)\$(?![\s$])([^$\n]+?)(?<!\s)\$(?!\$)", text)
    assert text.count("$") == 4 * len(shown) + 2 * len(within)
    # GitHub takes the backslash from \, and \{; a bar would end a cell of a table.
    assert not [formula for formula in shown + within if re.search(r"\\[,;!{}|\\]|\|", formula)]
