"""Notebooks as pages of the site: code, the text it prints, and its pictures as files beside the page."""

import base64
from pathlib import Path

import nbformat
from nbformat import NotebookNode


def write(folder: Path, pages: Path) -> None:
    """Write a page for each notebook of a folder, its pictures, and the notebook itself, which the page links to."""
    pages.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.ipynb")):
        text, pictures = page(nbformat.read(path, as_version=4), path.stem)
        for name, data in pictures.items():
            (pages / name).write_bytes(data)
        (pages / f"{path.stem}.md").write_text(text, encoding="utf-8")
        (pages / path.name).write_bytes(path.read_bytes())


def page(notebook: NotebookNode, stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures {file name: PNG}."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(fenced(cell.source, "python"))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}_{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Figure {len(pictures)} of this notebook]({name})")
            elif text := output.get("text") or data.get("text/plain"):
                parts.append(fenced(text, 'text title="Output"'))
    link = f"[Download this notebook]({stem}.ipynb){{ download }}"
    title, _, rest = parts[0].partition("\n") if parts else ("", "", "")
    return "\n\n".join([title, link, rest.strip(), *parts[1:]]) + "\n", pictures


def fenced(text: str, language: str) -> str:
    """Return text as a code block, in a fence longer than any that it holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
