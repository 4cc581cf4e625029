"""Check the built site: signatures and examples of the reference, formulas, links and anchors."""

import ast
import html
import inspect
import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docs_reference

SITE = Path(__file__).resolve().parent.parent / "build" / "site"
ELEMENTS = """
a article aside autoref b blockquote body br button code dd details del div dl dt em figcaption figure footer form
h1 h2 h3 h4 h5 h6 head header hr html i iframe img input label li link main math mark meta nav ol p path pre s
script small source span strong style sub summary sup svg table tbody td th thead title tr u ul video
"""
"""Elements that pages have; any other is text that was taken for one, as in <x, y>."""
ALONE = {"br", "hr", "img", "input", "link", "meta", "path", "source"}
"""Elements without an end."""
CODE = {"code", "pre", "script", "style", "svg"}
FORMULA = re.compile(
    r"(?<![\w$\\])\$[^\s$][^$\n]*[^\s$\\]\$|(?<![\w$\\])\$[^\s$\d]\$|\$\$|\\\(|\\\[|\\(?:frac|sum|prod|mathbb)\b"
)
"""What is left of a formula that was not marked."""


@dataclass
class Found:
    """What a page holds."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    examples: int = 0
    formulas: int = 0
    entries: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """A reader of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.open = Found(), []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in ELEMENTS.split() and not self.inside("svg"):
            self.found.problems.append(f"text taken for an element: <{tag} ...>")
        if given.get("id"):
            self.found.anchors.add(given["id"])
        if tag == "img" and not given.get("alt"):
            self.found.problems.append(f"no alternative text: {given.get('src')}")
        if tag == "script" and urlsplit(given.get("src", "")).scheme:
            self.found.problems.append(f"a script of another site: {given['src']}")
        self.found.links += [given[name] for name in ("href", "src") if given.get(name)]
        if tag not in ALONE:
            self.open.append((tag, given.get("class", "").split()))

    def handle_endtag(self, tag: str) -> None:
        while any(tag == name for name, _ in self.open) and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        in_code = any(tag in CODE for tag, _ in self.open)
        if any("arithmatex" in classes for _, classes in self.open):
            self.found.formulas += data.startswith(("\\(", "\\["))
        elif not in_code and (left := FORMULA.search(data)):
            self.found.problems.append(f"formula not rendered: {left[0]}")
        if ">>>" in data:
            self.found.examples += data.count(">>>")
            if not in_code:
                self.found.problems.append(f"example outside a code block: {data.strip()[:60]}")

    def inside(self, tag: str) -> bool:
        return any(tag == name for name, _ in self.open)


def main(site: Path = SITE) -> int:
    """Print counts and problems; return the exit status."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html")) if path.stem != "404"}
    pages = {path: Page(text).found for path, text in texts.items()}
    problems = [f"{path.relative_to(site)}: {text}" for path, page in pages.items() for text in page.problems]

    entries = docs_reference.entries()
    references = {path.stem: descriptions(text) for path, text in texts.items() if path.parent.name == "reference"}
    faults = [fault for entry in entries for fault in faults_of(entry, references[entry.page].get(entry.anchor, ""))]
    methods = [f"{entry.anchor}.{member}" for entry in entries for member in entry.members()]
    described = {anchor for reference in references.values() for anchor in reference}
    faults += [f"not in the reference: {method}" for method in methods if method not in described]
    faults += [
        f"return type is not a type: {anchor}: {kind}"
        for reference in references.values()
        for anchor, description in reference.items()
        if (kind := wrong_return(description))
    ]

    reference = [path for path in texts if path.parent.name == "reference"]
    problems += [
        f"{path.relative_to(site)}: taken for {tag}: {text}" for path in reference for tag, text in marked(texts[path])
    ]
    written = [path for path in texts if path.parent.name == "docs" or path == site / "index.html"]
    problems += [
        f"{path.relative_to(site)}: {name} is not in the reference"
        for path in written
        for name in unlinked(texts[path])
    ]

    links = [(path, link) for path, page in pages.items() for link in page.links if not urlsplit(link).scheme]
    broken = [f"{path.relative_to(site)}: broken link {link}" for path, link in links if not leads(path, link, pages)]
    classes = sum(inspect.isclass(entry.value) for entry in entries)
    functions = len(entries) - classes
    examples, formulas = (sum(getattr(page, what) for page in pages.values()) for what in ("examples", "formulas"))
    report = [
        f"{count('no signature', faults)} without signature of {classes} classes and {functions} functions",
        f"{count('no default', faults)} defaults not shown; {len(methods)} methods and properties",
        f"{count('return type', faults)} types of results that are no types",
        f"{count('example outside', problems)} lines of examples outside code blocks of {examples}",
        f"{count('formula not', problems)} formulas not rendered; {formulas} rendered",
        f"{count('not in the reference', problems)} names of kbpjax in pages that are not in the reference",
        f"{len(broken)} broken links of {len(links)} inside the site, on {len(pages)} pages",
    ]
    print("\n".join([*report, *faults, *problems, *broken]))
    return int(bool(faults or problems or broken))


def count(what: str, problems: list[str]) -> int:
    """Return how many problems are of a kind."""
    return sum(what in problem for problem in problems)


def descriptions(text: str) -> dict[str, str]:
    """Return {anchor: HTML} of the functions, classes and methods of a page of the reference."""
    parts = re.split(r'<h[2-5] id="([^"]+)"', text)
    return dict(zip(parts[1::2], parts[2::2]))


def marked(text: str) -> list[tuple[str, str]]:
    """Return what Markdown took for a quotation or for emphasis, of which docstrings have none."""
    return re.findall(r"<(blockquote|em)>\s*(?:<p>)?([^<]{0,60})", text)


def unlinked(text: str) -> list[str]:
    """Return the names of kbpjax in the text of a page that lead nowhere."""
    prose = re.sub(r"<pre.*?</pre>|<h\d.*?</h\d>|<a\b.*?</a>", "", text, flags=re.DOTALL)
    return re.findall(r"<code>((?:kbp|kbpjax)\.[\w.]+)", prose)


def faults_of(entry: docs_reference.Entry, description: str) -> list[str]:
    """Return what the description of a function or class lacks, by the signature that Python sees."""
    shown = re.search(r'<div class="doc-signature.*?</div>', description, re.DOTALL)
    if shown is None:
        return [f"no signature: {entry.name}"]
    signature = html.unescape(re.sub(r"<[^>]+>", "", shown[0]))
    try:
        parameters = inspect.signature(entry.value).parameters.values()
    except ValueError:  # of exceptions, which C code makes
        return []
    given = [p.name for p in parameters if p.default is not p.empty]
    items = dict(re.findall(r"<li[^>]*>\s*<b>(?:<code>)?(\w+)(?:</code>)?</b>(.*?</li>)", description, re.DOTALL))
    in_signature = [name for name in given if not re.search(rf"\b{name}(: [^=]+)?\s?=", signature)]
    in_list = [name for name in given if name in items and "default:" not in items[name]]
    return [f"no default of {name}: {entry.name}" for name in sorted({*in_signature, *in_list})]


def wrong_return(description: str) -> str | None:
    """Return the type of the result in a description, if it is no expression of Python, for instance prose."""
    shown = re.search(r"Returns:(?:\s|</?\w+[^>]*>)*?<code>(.*?)</code>\s*–", description, re.DOTALL)
    if shown is None:
        return None
    kind = " ".join(html.unescape(re.sub(r"<[^>]+>", "", shown[1])).split())
    try:
        ast.parse(kind, mode="eval")
    except SyntaxError:
        return kind
    return None


def leads(page: Path, link: str, pages: dict[Path, Found]) -> bool:
    """Return whether a link inside the site leads to a file and, if it names one, to an anchor."""
    parts = urlsplit(link)
    target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors


if __name__ == "__main__":
    sys.exit(main())
