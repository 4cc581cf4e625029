"""The documentation site: the reference has every public name, and the check of the site finds its faults."""

import re
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / ".ci"))
    yield
    for name in ("check_site", "check_words", "docs_links", "docs_reference"):
        sys.modules.pop(name, None)


def test_every_public_name_is_on_one_page_of_the_reference(monkeypatch):
    import docs_reference

    assert docs_reference.missing() == []
    title, introduction, sections = docs_reference.PAGES["evidence"]
    names = sections[""].replace("observe ", "") + " fit"
    monkeypatch.setitem(docs_reference.PAGES, "evidence", (title, introduction, {"": names}))
    assert "kbpjax.observe is on no page" in docs_reference.missing()
    assert "kbpjax.fit is on several pages" in docs_reference.missing()


def test_every_name_of_the_reference_has_an_example():
    import docs_reference

    entries = docs_reference.entries()
    assert len(entries) > 300
    assert not [entry.name for entry in entries if ">>>" not in (entry.value.__doc__ or "")]


def test_functions_with_the_name_of_a_module_are_described_by_the_name_that_users_call():
    import docs_reference

    homes = {entry.name: docs_reference.home(entry.value) for entry in docs_reference.entries()}
    assert homes["kbpjax.beliefs"] == "kbpjax.posterior.beliefs.beliefs"
    assert homes["kbpjax.sharded.partition_graph"] == "kbpjax.sharded.partition_graph"
    assert homes["kbpjax.ep.linear_model"] == "kbpjax.ep.linear_model.linear_model"
    assert homes["kbpjax.features.features"] == "kbpjax.features.base.features"


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ("<p>a <code>$x$</code>, $5 and $6</p>", None),
        ('<p>a <span class="arithmatex">\\(x\\)</span></p>', None),
        ("<p>a $x_s$ b</p>", "formula not rendered: $x_s$"),
        ("<p>$$a$$</p>", "formula not rendered: $$"),
        ("<pre><code>&gt;&gt;&gt; 1</code></pre>", None),
        ("<p>&gt;&gt;&gt; 1</p>", "example outside a code block: >>> 1"),
        ("<p>the product <x, y></p>", "text taken for an element: <x, ...>"),
        ('<img src="a.png">', "no alternative text: a.png"),
        ('<script src="../site.js"></script>', None),
        ('<script src="https://example.org/a.js"></script>', "a script of another site: https://example.org/a.js"),
    ],
)
def test_the_check_finds_faults_of_a_page(html, problem):
    import check_site

    assert check_site.Page(html).found.problems == ([problem] if problem else [])


def test_the_check_finds_defaults_that_a_signature_lacks():
    import check_site
    import docs_reference

    entry = docs_reference.Entry("temper", "posterior")
    shown = '<div class="doc-signature"><pre>temper(belief: Belief, temperature: float)</pre></div>'
    assert check_site.faults_of(entry, shown) == []
    assert check_site.faults_of(entry, "") == ["no signature: kbpjax.temper"]
    entry = docs_reference.Entry("Anderson", "inference")
    shown = '<div class="doc-signature"><pre>Anderson(depth: int = 5)</pre></div>'
    assert "no default of depth: kbpjax.Anderson" not in check_site.faults_of(entry, shown)
    assert "no default of depth: kbpjax.Anderson" in check_site.faults_of(entry, shown.replace(" = 5", ""))


def test_pictures_become_links_to_their_full_size():
    import docs_links

    class Page:
        url = "docs/start.html"

    picture = '<img alt="a" src="../a.png" />'
    assert docs_links.on_page_content(f"<p>{picture}</p>", Page()) == f'<p><a href="../a.png">{picture}</a></p>'
    assert docs_links.on_page_content(f"<a>{picture}</a>", Page()) == f"<a>{picture}</a>"


@pytest.mark.parametrize("kind", ["The posterior, which all take", "{node type", "A `Belief`", "Array | None"])
def test_the_check_finds_types_of_results_that_are_prose(kind):
    import check_site

    item = '<p><span class="doc-section-title">Returns:</span></p> <ul> <li class="doc-section-item">'
    shown = f"{item} <code>{kind}</code> – <div><p>Its <code>x</code> – and more.</p></div></li></ul>"
    assert check_site.wrong_return(shown) == (None if kind == "Array | None" else kind)
    assert check_site.wrong_return("<p>Raises: <code>a: b</code> – </p>") is None


@pytest.mark.parametrize(
    ("code", "anchor"),
    [
        ("kbp.fit", "kbpjax.fit"),
        ("kbpjax.run(model, graph)", "kbpjax.run"),
        ("kbp.beliefs", "kbpjax.beliefs"),
        ("kbp.sharded.partition_graph", "kbpjax.sharded.partition_graph"),
        ("RBF", "kbpjax.kernels.RBF"),
        ("Evidence.local", "kbpjax.Evidence"),
        ("Graph.from_edges(edges)", "kbpjax.Graph.from_edges"),
        ("tuning.scores.leave_one_out", "kbpjax.tuning.scores.leave_one_out"),
        ("features", None),  # a parameter too
        ("x = kbp.fit", None),
    ],
)
def test_names_in_pages_become_links(code, anchor):
    import docs_links

    text = f"<p><code>{code}</code></p><pre><code>{code}</code></pre>"
    link = (
        f'<autoref identifier="{anchor}" optional><code>{code}</code></autoref>' if anchor else f"<code>{code}</code>"
    )

    class Page:
        url = "docs/start.html"

    assert docs_links.on_page_content(text, Page()) == text.replace(f"<code>{code}</code>", link, 1)


def test_the_menu_shows_the_titles_of_pages():
    menu = (Path(__file__).resolve().parent.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert len(re.findall(r"^      - [\w/]+\.md$", menu, re.MULTILINE)) > 50
    assert not re.findall(r": *[\w/]+\.md", menu)  # a label may differ from the title


def test_words_are_found_in_prose_only():
    import check_words

    not_read = "`nobody` is code.\n\n```text\nnobody\n```\n<!-- begin x: y -->\nnobody\n<!-- end x -->\n"
    text = f"# A page\n\nNobody knows.\n{not_read}"
    assert [(line, words) for line, words, _ in check_words.found(text)] == [(3, "Nobody"), (3, "knows")]
    assert check_words.found("You know what you want, such as this, such that x = 0. None: None.") == []
    source = 'def f():\n    """Return x.\n\n    A field of its own.\n    """\n\nN = 1\n"""As told."""\n'
    strings = [
        (line, words)
        for first, text in check_words.docstrings(source)
        for line, words, _ in check_words.found(text, first)
    ]
    assert sorted(strings) == [(4, "of its own"), (8, "told")]


def test_the_pages_have_no_such_words(capsys):
    import check_words

    assert check_words.main("pages") == 0, capsys.readouterr().out
