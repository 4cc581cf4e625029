"""The pages tell the truth: their programs run and print what they show, their command lines exist, links lead on."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

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
    first, last, rmse = numbers(printed)
    assert last < 0.7 * first and rmse < 15


def check_competitors(printed):
    said = dict(re.findall(r"(\w+) \[(.*?)\]", printed))
    assert set(said) == {"discrete", "Gaussian", "particles", "mixtures"}
    assert all(0 <= x <= 255 for values in said.values() for x in numbers(values))


CHECKS = {"loops": check_loops, "learning": check_learning, "competitors": check_competitors}


@pytest.mark.parametrize("name", RUNNING)
def test_pages_run_and_print_what_they_say(name, tmp_path):
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


@pytest.mark.parametrize("name", TEXTS)
def test_every_block_is_of_a_language_that_is_tested(name):
    fences = re.findall(r"^ *```(.*)$", TEXTS[name], re.MULTILINE)
    assert len(fences) % 2 == 0 and set(fences[1::2]) <= {""}
    assert set(fences[::2]) <= {"python", "text", "sh", ""}  # without a language: a formula
    assert bool(blocks(TEXTS[name], "python")) == ("```python" in TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name):
    folder = ROOT if name == "README" else ROOT / "docs"
    links = re.findall(r"\]\(([^)#]+)\)", TEXTS[name])
    assert links or name in {"parallel", "streaming"}
    assert all((folder / link).exists() for link in links if "://" not in link)


def commands(text):
    """Return the command lines of the sh blocks of a page, without their comments."""
    lines = "".join(blocks(text, "sh")).splitlines()
    return [command for line in lines for command in line.split("#")[0].strip().split(" && ") if command]


PROGRAM = r"python (-m (?:experiments|benchmarks|kbpjax)[\w.]*|benchmarks/\w+\.py)"
CALL = re.compile(PROGRAM + r"(?: (denoise|info|bench))?(.*)")


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


@pytest.mark.parametrize("target", PROGRAMS, ids=" ".join)
def test_command_lines_name_programs_and_options_that_exist(target):
    assert CALLS[target] <= options(help_of(target)) | {"--help"}


def test_calls_are_found():
    assert CALLS["-m", "experiments.denoising"] >= {"--levels", "--image", "--train", "--test", "--help"}
    assert CALLS["-m", "experiments.multihost"] == {"--join", "--process", "--processes"}
    assert CALLS["-m", "kbpjax", "denoise"] == {"--learn", "--noise", "--save"}
    assert CALLS["benchmarks/discrete.py",] == {"--peer"}
    assert len(CALLS) > 20


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "```sh" in text])
def test_shell_lines_are_of_programs_that_are_tested(name):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    others = {"git clone <this repository> kbpjax", "cd kbpjax", "python3 -m venv .venv", "source .venv/bin/activate"}
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
