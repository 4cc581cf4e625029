"""Find words of .ci/words.txt in the pages, the README and the docstrings: python .ci/check_words.py [pages|all].

Each finding is FILE:LINE: the words, and what to write instead. The exit status is 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_READ = re.compile(r"^ *```.*?^ *```$|<!-- begin .*?<!-- end [^>]*-->|`[^`\n]+`|^ *>>>.*$", re.DOTALL | re.MULTILINE)
"""Blocks of code, tables that a program has written, code in text, examples."""


def rules() -> list[tuple[re.Pattern, str]]:
    """Return (pattern, suggestion) of each line of the list."""
    lines = (ROOT / ".ci" / "words.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" => ") for line in lines if line and not line.startswith("#"))
    return [(re.compile(pattern, re.IGNORECASE), suggestion) for pattern, suggestion in pairs]


def found(text: str, first: int = 1) -> list[tuple[int, str, str]]:
    """Return (line, words, suggestion) of a text whose first line has the given number."""
    prose = NOT_READ.sub(lambda skipped: re.sub(r"[^\n]", " ", skipped[0]), text)
    hits = [(hit.start(), hit[0], suggestion) for rule, suggestion in rules() for hit in rule.finditer(prose)]
    return [(first + prose.count("\n", 0, place), words, suggestion) for place, words, suggestion in sorted(hits)]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of the docstrings of a module, and of the strings below its constants."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)  # of a lambda, a single expression
        for child in body if isinstance(body, list) else []:
            value = child.value.value if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) else None
            if isinstance(value, str):
                yield child.lineno, value


def main(which: str = "all") -> int:
    """Print the findings; return the exit status."""
    texts = [(path, 1, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "docs").glob("*.md"))]
    if which == "all":
        texts.append((ROOT / "README.md", 1, (ROOT / "README.md").read_text(encoding="utf-8")))
        for path in sorted((ROOT / "kbpjax").rglob("*.py")):
            texts += [(path, line, text) for line, text in docstrings(path.read_text(encoding="utf-8"))]
    count = 0
    for path, first, text in texts:
        for line, words, suggestion in found(text, first):
            print(f'{path.relative_to(ROOT)}:{line}: "{words.strip()}": {suggestion}')
            count += 1
    print(f"{count} words to replace")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
