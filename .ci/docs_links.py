"""A hook of mkdocs: link the public names in the text of pages to the reference, and pictures to their full size.

The sources keep plain code such as `kbp.run(...)`, which reads well where they are not built. Headings, links and code
blocks stay as they are.
"""

import html
import inspect
import posixpath
import re
from functools import cache
from typing import Any

import docs_reference

KEPT = re.compile(r"(<pre.*?</pre>|<h\d.*?</h\d>|<a\b.*?</a>|<autoref.*?</autoref>)", re.DOTALL)
PICTURE = re.compile(r'(<img\b[^>]*\bsrc="([^"]+\.png)"[^>]*>)')
CODE = re.compile(r"<code>([^<]+)</code>")
NAME = re.compile(r"(?:kbp\.|kbpjax\.)?([A-Za-z_][\w.]*)(\(.*\))?")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Return the HTML of a page with links: names to the reference, pictures to their files."""
    parts = KEPT.split(content)  # every second one is to be kept
    parts[::2] = [CODE.sub(lambda found: linked(found, page.url), part) for part in parts[::2]]
    parts[::2] = [PICTURE.sub(r'<a href="\2">\1</a>', part) for part in parts[::2]]
    return "".join(parts)


def linked(found: re.Match, page: str) -> str:
    """Return code with a link to the name in it, or as it is."""
    parsed = NAME.fullmatch(html.unescape(found[1]))
    if parsed is None:
        return found[0]
    whole = found[1].startswith(("kbp.", "kbpjax."))
    if whole and parsed[1] in modules():
        address = posixpath.relpath(f"reference/{modules()[parsed[1]]}.html", posixpath.dirname(page) or ".")
        return f'<a href="{address}">{found[0]}</a>'
    names = anchors() if whole else short_names(page)
    anchor = names.get(parsed[1]) or names.get(parsed[1].rpartition(".")[0])  # of a field: that of its class
    return f'<autoref identifier="{anchor}" optional>{found[0]}</autoref>' if anchor else found[0]


@cache
def anchors() -> dict[str, str]:
    """Return {path without "kbpjax.": anchor} of all functions, classes and their methods."""
    entries = {docs_reference.home(entry.value): entry for entry in docs_reference.entries()}
    public = docs_reference.public()
    missing = sorted(path for path, value in public.items() if docs_reference.home(value) not in entries)
    if missing:
        raise SystemExit(f"{', '.join(missing)}: public, but in no section of the reference; see .ci/docs_reference.py")
    paths = {path: entries[docs_reference.home(value)] for path, value in public.items()}
    paths |= {name: entry for entry in entries.values() for name in (entry.name, entry.anchor)}
    found = {path: entry.anchor for path, entry in paths.items()}
    found |= {f"{path}.{m}": f"{entry.anchor}.{m}" for path, entry in paths.items() for m in entry.members()}
    return {path.removeprefix("kbpjax."): anchor for path, anchor in found.items()}


@cache
def modules() -> dict[str, str]:
    """Return {module without "kbpjax.": stem of the page of its functions}, but for functions of the same name."""
    found: dict[str, str] = {}
    for entry in docs_reference.entries():
        path = entry.path.rpartition(".")[0]
        while path and path not in anchors():
            found.setdefault(path, entry.page)
            path = path.rpartition(".")[0]
    return found


@cache
def short_names(page: str) -> dict[str, str]:
    """Return the names that a page may use without "kbp.", with their anchors: those that mean nothing else."""
    of_ep = page in ("reference/ep.html", "docs/expectation_propagation.html")
    parts = ["", "kernels.", "features.", "learning.rules.", "tuning.scores.", "learning.embedding.", "baselines."]
    parts = ["ep."] if of_ep else ["baselines."] if page == "reference/baselines.html" else parts
    found: dict[str, set[str]] = {}
    for path, anchor in anchors().items():
        for start in parts:
            if path.startswith(start):
                found.setdefault(path.removeprefix(start), set()).add(anchor)
    other = {*arguments(), "sample"}  # an axis of arrays
    return {path: anchor for path, (anchor, *more) in found.items() if not more and path not in other}


@cache
def arguments() -> set[str]:
    """Return the names of all parameters and fields, which code in text means more often than functions."""
    found = set()
    for entry in docs_reference.entries():
        try:
            found |= set(inspect.signature(entry.value).parameters)
        except ValueError:  # of exceptions, which C code makes
            continue
    return found
