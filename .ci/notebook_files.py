"""What a committed notebook holds: the cells of its .py, outputs, and a digest of the code that printed them.

Pure functions; `check_notebooks.py` runs the notebooks and writes the files.
"""

import base64
import hashlib
import io
import json
import re

import nbformat
from nbformat import NotebookNode, v4
from PIL import Image

LOOSE = "loose"
"""Tag of a cell whose numbers may vary freely, such as times."""
PICTURE_BYTES, NOTEBOOK_BYTES = 60_000, 400_000
RELATIVE, LAST_DIGITS = 0.25, 3
"""Numbers are equal within this share, or within so many units of the last digit shown."""
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
UNSAID = re.compile(r"(\[+|array\(\[+)?(<|Text\()")
"""How the text of a result begins that says nothing: objects of matplotlib that a cell happens to end in."""
ABSOLUTE_PATH = re.compile(r"(?<![\w/.:])/\w[\w.-]*/\w")


def source(cell: NotebookNode) -> str:
    """Return the source of a cell without trailing blanks."""
    return "\n".join(line.rstrip() for line in cell.source.strip().splitlines())


def cells(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    """Return what must be the same in .py and .ipynb: type, source and tags of each cell."""
    return [(cell.cell_type, source(cell), list(cell.metadata.get("tags", []))) for cell in notebook.cells]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: NotebookNode) -> str:
    """Return a digest of the code, on which the outputs depend; prose, tags and outputs do not change it."""
    code = json.dumps([source(cell) for cell in code_cells(notebook)])
    return hashlib.sha256(code.encode()).hexdigest()


def is_stale(notebook: NotebookNode) -> bool:
    """Say whether the outputs of a notebook are missing, or of other code than it holds."""
    known = notebook.metadata.get("kbpjax", {}).get("digest")
    return known != digest(notebook) or any(cell.execution_count is None for cell in code_cells(notebook))


def completed(script: NotebookNode, outputs_of: NotebookNode) -> NotebookNode:
    """Return the cells of a script with the outputs of a run of the same code, ready to be committed."""
    if digest(script) != digest(outputs_of):
        raise ValueError("script and outputs_of must hold the same code; run the notebook again.")
    run, made, ids = iter(code_cells(outputs_of)), [], set()
    for cell in script.cells:
        if cell.cell_type == "code":
            found = next(run)
            outputs = tidied(found.outputs)
            new = v4.new_code_cell(source(cell), outputs=outputs, execution_count=found.execution_count)
        else:
            new = v4.new_markdown_cell(source(cell))
        if tags := cell.metadata.get("tags"):
            new.metadata["tags"] = list(tags)
        new.id = name_of(new, ids)
        made.append(new)
    metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kbpjax": {"digest": digest(script)},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    }
    return nbformat.from_dict({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def name_of(cell: NotebookNode, taken: set[str]) -> str:
    """Return an id for a cell that depends on its source only, where random ids would change at each run."""
    found = hashlib.sha256(f"{cell.cell_type} {cell.source}".encode()).hexdigest()
    name = next(found[:length] for length in range(8, 65) if found[:length] not in taken)
    taken.add(name)
    return name


def tidied(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return outputs without noise: streams joined, pictures small, text for any other result, no metadata."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += output.text
            else:
                kept.append(v4.new_output("stream", name=output.name, text=output.text))
        elif output.output_type == "error":
            kept.append(output)
        elif "image/png" in output.data:
            data = {"image/png": small(output.data["image/png"]), "text/plain": output.data.get("text/plain", "")}
            kept.append(v4.new_output("display_data", data))
        elif not UNSAID.match(text := output.data.get("text/plain", "")):
            count = {"execution_count": output.execution_count} if output.output_type == "execute_result" else {}
            kept.append(v4.new_output(output.output_type, {"text/plain": text}, **count))
    return kept


def small(picture: str) -> str:
    """Return a PNG (base64) without metadata and transparency, in 256 colors if it is large otherwise."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    if image.mode == "P":
        return picture
    opaque = Image.new("RGB", image.size, "white")
    opaque.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
    data = png(opaque)
    if len(data) > 0.7 * PICTURE_BYTES:
        data = png(opaque.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE))
    return base64.b64encode(data).decode()


def png(image: Image.Image) -> bytes:
    """Return the bytes of an image as PNG."""
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


def faults(notebook: NotebookNode) -> list[str]:
    """Say what is wrong with the outputs of a notebook that is to be committed."""
    if is_stale(notebook):
        return ["outputs are missing or of other code"]
    found = []
    for cell in code_cells(notebook):
        where = f"cell {cell.execution_count}"
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{where}: an error, {output.ename}")
            elif output.output_type == "stream" and output.name != "stdout":
                found.append(f"{where}: a warning or a progress bar, {output.text.strip()[:200]!r}")
            if path := ABSOLUTE_PATH.search(text_of(output)):
                found.append(f"{where}: a path of this machine at {text_of(output)[path.start() :][:60]!r}")
            size = len(base64.b64decode(picture_of(output)))
            if size > PICTURE_BYTES:
                found.append(f"{where}: a picture of {size:,} bytes, more than {PICTURE_BYTES:,}")
    if (size := len(nbformat.writes(notebook).encode())) > NOTEBOOK_BYTES:
        found.append(f"{size:,} bytes, more than {NOTEBOOK_BYTES:,}")
    return found


def picture_of(output: NotebookNode) -> str:
    """Return the PNG of an output (base64), empty if it has none."""
    return output.get("data", {}).get("image/png", "")


def text_of(output: NotebookNode) -> str:
    """Return the text of an output; that of a picture says only its size."""
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "" if "image/png" in data else data.get("text/plain", "")


def differences(committed: NotebookNode, run: NotebookNode) -> list[str]:
    """Say where a run prints other text than is committed, or draws another number of pictures; of the same code."""
    found = []
    for old, new in zip(code_cells(committed), code_cells(run), strict=True):
        where = f"cell {old.execution_count}"
        outputs = [tidied(cell.outputs) for cell in (old, new)]
        if len({sum(bool(picture_of(output)) for output in of) for of in outputs}) > 1:
            found.append(f"{where}: another number of pictures than is committed")
        texts = ["".join(text_of(output) for output in of) for of in outputs]
        if change := difference(*texts, loose=LOOSE in old.metadata.get("tags", [])):
            found.append(f"{where}: {change}")
    return found


def difference(committed: str, printed: str, loose: bool = False) -> str:
    """Say where two texts differ: in words, or (if not loose) in numbers by more than the tolerance. Empty: nowhere."""
    old, new = committed.split(), printed.split()
    if [NUMBER.sub("0", word) for word in old] != [NUMBER.sub("0", word) for word in new]:
        pairs = zip([*old, "(end)"], [*new, "(end)"], strict=False)
        first = next((a, b) for a, b in pairs if NUMBER.sub("0", a) != NUMBER.sub("0", b))
        return "prints {1!r}, where {0!r} is committed".format(*first)
    for shown, got in zip(NUMBER.findall(committed), NUMBER.findall(printed), strict=True):
        if not loose and abs(float(got) - float(shown)) > tolerance(shown):
            return f"prints {got}, where {shown} is committed"
    return ""


def tolerance(shown: str) -> float:
    """Return how far a number may be from one that is shown with so many digits."""
    mantissa, _, exponent = shown.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return max(RELATIVE * abs(float(shown)), LAST_DIGITS * unit) * (1 + 1e-9)
