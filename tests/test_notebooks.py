"""Notebooks: outputs belong to the code beside them, a run is compared by its text, and pages show all of it."""

import base64
import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

nbformat = pytest.importorskip("nbformat", reason="notebooks need the development tools")
CI = Path(__file__).resolve().parent.parent / ".ci"


def module(name):
    """Import a script of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


files, pages = module("notebook_files"), module("notebook_pages")
v4 = nbformat.v4


def picture(size=8, seed=0):
    """Return a PNG of noise (base64), with transparency as matplotlib writes it."""
    noise = np.random.default_rng(seed).integers(256, size=(size, size, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def printed(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def drawn(data):
    return v4.new_output("display_data", {"image/png": data, "text/plain": "<Figure size 640x480 with 1 Axes>"})


def result(text):
    return v4.new_output("execute_result", {"text/plain": text}, execution_count=1)


def notebook(*codes, outputs=(), prose="# Title\n\nWords."):
    """Return a notebook of prose and code cells, of which the last has outputs."""
    cells = [v4.new_code_cell(code, execution_count=i + 1) for i, code in enumerate(codes)]
    cells[-1].outputs = list(outputs)
    return v4.new_notebook(cells=[v4.new_markdown_cell(prose), *cells])


def committed(*outputs, code="print(1)"):
    made = notebook(code, outputs=outputs)
    return files.completed(made, made)


def completed_again(outputs):
    made = notebook("x", "x", outputs=outputs)  # with new ids of the cells
    return files.completed(made, made)


def test_digest_changes_with_code_only():
    plain = notebook("x = 1", "print(x)")
    same = (
        notebook("x = 1  \n", "\nprint(x)"),
        notebook("x = 1", "print(x)", prose="Other words."),
        notebook("x = 1", "print(x)", outputs=[printed("1\n")]),
    )
    assert {files.digest(other) for other in same} == {files.digest(plain)}
    changed = notebook("x = 2", "print(x)"), notebook("print(x)", "x = 1"), notebook("x = 1\nprint(x)")
    assert len({files.digest(other) for other in (plain, *changed)}) == 4


def test_outputs_are_stale_when_code_changes_or_they_are_gone():
    fresh = committed(printed("1\n"))
    assert not files.is_stale(fresh) and files.faults(fresh) == []
    fresh.cells[0].source = "Other words."
    assert not files.is_stale(fresh)
    fresh.cells[1].source = "print(2)"
    assert files.is_stale(fresh) and "other code" in files.faults(fresh)[0]
    cleared = committed(printed("1\n"))
    cleared.cells[1].update(execution_count=None, outputs=[])
    assert files.is_stale(cleared)
    assert files.is_stale(notebook("print(1)", outputs=[printed("1\n")]))  # saved by Jupyter, without a digest


def test_prose_can_change_without_a_run():
    old = committed(printed("1\n"))
    new = files.completed(notebook("print(1)", prose="# New"), old)
    assert new.cells[0].source == "# New" and new.cells[1].outputs == old.cells[1].outputs
    with pytest.raises(ValueError, match="same code"):
        files.completed(notebook("print(2)"), old)


def test_committed_notebook_is_valid_and_the_same_after_each_run():
    outputs = [printed("a\n"), printed("b\n"), drawn(picture()), result("3"), result("<Axes at 0x7f12>")]
    first, second = (completed_again(outputs) for _ in range(2))
    nbformat.validate(first)
    assert nbformat.writes(first) == nbformat.writes(second)
    assert len({cell.id for cell in first.cells}) == 3
    again = files.completed(first, first)
    assert nbformat.writes(again) == nbformat.writes(first)
    kinds = [output.output_type for output in first.cells[-1].outputs]
    assert kinds == ["stream", "display_data", "execute_result"]  # no address of an object
    assert first.cells[-1].outputs[0].text == "a\nb\n"


def test_tags_are_kept():
    tagged = notebook("print(1)")
    tagged.cells[1].metadata["tags"] = ["loose"]
    assert files.cells(files.completed(tagged, tagged)) == files.cells(tagged)
    assert files.cells(tagged) != files.cells(notebook("print(1)"))


@pytest.mark.parametrize(
    "output, fault",
    [
        (v4.new_output("error", ename="KeyError", evalue="3", traceback=[]), "an error, KeyError"),
        (printed("50 %|####", name="stderr"), "a warning or a progress bar"),
        (printed("in /home/someone/model.kbp\n"), "a path of this machine"),
        (drawn(picture(300)), "a picture of"),
    ],
)
def test_faults_are_named_with_their_cell(output, fault):
    (found,) = files.faults(committed(output))
    assert found.startswith("cell 1: ") and fault in found


@pytest.mark.slow
def test_a_notebook_has_a_largest_size():
    (found,) = files.faults(committed(*(drawn(picture(190, seed)) for seed in range(10))))
    assert "more than 400,000" in found


def test_what_looks_like_a_path_and_is_none():
    assert files.faults(committed(printed("3 / 4, and/or, 1/2, docs/kernels.md, https://example.org/page\n"))) == []


def test_pictures_become_small_and_stay_alike():
    before = picture(200)
    after = files.small(before)
    data = base64.b64decode(after)
    assert len(data) < 0.5 * len(base64.b64decode(before)) and files.small(after) == after
    image = Image.open(io.BytesIO(data))
    assert image.size == (200, 200) and not image.info


@pytest.mark.parametrize(
    "old, new",
    [
        ("RMSE 5.21, 90 %", "RMSE 5.90, 95 %"),
        ("RMSE 5.21", "RMSE    5.21\n"),
        ("gap +0.001 ± 0.002", "gap -0.001 ± 0.004"),  # three units of the last digit
        ("ranks (24, 30)", "ranks (24, 33)"),
        ("error 1.2e-10", "error 1.4e-10"),
        ("share 0%", "share 3%"),
    ],
)
def test_numbers_may_differ_a_little(old, new):
    assert files.difference(old, new) == ""


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("RMSE 5.21", "RMSE 7.21", "prints 7.21, where 5.21"),
        ("gain 0.10", "gain -0.10", "prints -0.10, where 0.10"),
        ("error 1.2e-10", "error 1.2e-03", "prints 1.2e-03"),
        ("read: june july", "read: june may", "'may', where 'july'"),
        ("one", "one two", "'two', where '(end)'"),
        ("one two", "", "'(end)', where 'one'"),
    ],
)
def test_other_words_and_numbers_are_noticed(old, new, said):
    assert said in files.difference(old, new)


def test_loose_cells_may_print_other_numbers_but_no_other_words():
    assert files.difference("took 1.25 s", "took 140 s", loose=True) == ""
    assert files.difference("took 1 s", "failed after 1 s", loose=True)


def test_a_run_is_compared_cell_by_cell():
    old = committed(printed("RMSE 5.2\n"), drawn(picture()))
    run = notebook("print(1)", outputs=[printed("RMSE "), printed("5.3\n"), drawn(picture(seed=1))])
    assert files.differences(old, run) == []  # pictures are not compared, only counted
    run.cells[1].outputs.pop()
    assert files.differences(old, run) == ["cell 1: another number of pictures than is committed"]
    run.cells[1].outputs = [printed("RMSE 9.9\n"), drawn(picture())]
    assert files.differences(old, run) == ["cell 1: prints 9.9, where 5.2 is committed"]
    old.cells[1].metadata["tags"] = ["loose"]
    assert files.differences(old, run) == []


def test_page_shows_code_text_and_pictures():
    outputs = [printed("RMSE 5.2\n"), drawn(picture()), result("array([1])"), drawn(picture(seed=1))]
    text, pictures = pages.page(committed(*outputs), "images")
    assert text.startswith("# Title\n\n[Download this notebook](images.ipynb)")
    order = ["Words.", "```python\nprint(1)\n```", "RMSE 5.2\n```", "images_1.png", "array([1])\n```", "images_2.png"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.count("```") == 6
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())
    assert list(pictures) == ["images_1.png", "images_2.png"]


def test_fences_are_longer_than_those_inside():
    assert pages.fenced("a\n```\nb", "text").splitlines()[0] == "````text"


def test_pages_are_written_beside_their_pictures_and_notebook(tmp_path):
    source = tmp_path / "notebooks"
    source.mkdir()
    nbformat.write(committed(drawn(picture())), source / "images.ipynb")
    pages.write(source, tmp_path / "pages")
    assert {path.name for path in (tmp_path / "pages").iterdir()} == {"images.md", "images_1.png", "images.ipynb"}
    assert (tmp_path / "pages" / "images.ipynb").read_bytes() == (source / "images.ipynb").read_bytes()
