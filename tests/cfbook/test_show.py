"""Tables of the book: numbered, captioned, and the same numbers in both forms."""

import re
from html import unescape

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from cfbook.production.show import _in_words, _Shown

FRAME = pd.DataFrame(
    {"R_IE": [0.51234, 12.3456], "low": [0.4, 11.0], "high": [0.6, 13.0], "n": [1200, 7]},
    index=pd.Index(["basic", "sex < 1"], name="predictor"),
)


def html(shown: _Shown) -> str:
    return shown._repr_html_()


def test_page_and_plain_text_hold_the_same_words() -> None:
    shown = _Shown(_in_words(FRAME, 2), "Sex matters.", 3)

    rows = [row.split("</tr>")[0] for row in html(shown).split("<tr>")[1:]]
    found = [word for row in rows for word in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
    assert found[1] == "<i>R</i><sub>IE</sub>"
    cells = [unescape(word) for word in [found[0], "R_IE", *found[2:]]]
    assert cells[:4] == ["predictor", "R_IE", "interval", "n"]
    assert cells[4:8] == ["unbiased", "0.51", "[0.40, 0.60]", "1,200"]
    assert cells[8:] == ["sex < 1", "12", "[11, 13]", "7"]
    title, _, *lines = repr(shown).splitlines()
    assert title == "Table 3. Sex matters."
    assert [word for line in lines for word in re.split(r"  +", line)] == cells


def test_number_and_caption_can_be_linked_and_everything_is_escaped() -> None:
    wild = FRAME.rename(columns={"n": "<b>"}).assign(text="<script>&")
    page = html(_Shown(_in_words(wild, 3), "Of `R_IE` < 1 & <i>", 2))

    assert '<figure class="show" id="table-2">' in page
    assert "<b>Table 2.</b> Of <i>R</i><sub>IE</sub> &lt; 1 &amp; &lt;i&gt;</figcaption>" in page
    assert "sex &lt; 1" in page and "&lt;script&gt;&amp;" in page and "&lt;b&gt;" in page
    assert "<script" not in page and page.count("<i>") == 2


def test_a_folded_table_shows_its_caption_and_a_note_stands_below() -> None:
    shown = _Shown(_in_words(FRAME, 3), "A", 4, note="Of `n` & more.", fold=True)

    page = html(shown)
    assert page.startswith(
        '<details class="show" id="table-4">\n<summary><b>Table 4.</b> A</summary>'
    )
    assert page.endswith('<p class="note">Of <code>n</code> &amp; more.</p>\n</details>')
    assert repr(shown).endswith("\n\nOf `n` & more.")


def test_numbers_of_a_column_share_their_decimals_unless_nothing_would_be_left() -> None:
    column = pd.DataFrame({"S_var": [0.0123, 0.00456, 0.0, 2e-5, 8.67]})

    assert list(_in_words(column, 2)["S_var"]) == ["0.0123", "0.0046", "0", "0.000020", "8.7"]


def test_rows_that_matter_are_bold_and_text_stands_left() -> None:
    page = html(_Shown(_in_words(FRAME.assign(text="Setting 1"), 3), "A", 1, ("sex < 1",)))

    rules = dict(re.findall(r"#T_1 \.(\w+) \{\s*([^}]+?);\s*\}", page))
    assert rules == {"col3": "text-align: left", "row1": "font-weight: bold"}
    row = page[page.index("sex &lt; 1") :]
    assert row.count("row1") == 4


def test_rows_and_columns_may_have_two_levels() -> None:
    both = FRAME.set_index("n", append=True)[["R_IE"]]
    page = html(_Shown(_in_words(both, 3), "A", 1))

    assert "predictor" in page and ">1200</th>" in page and ">0.512</td>" in page


@pytest.fixture(scope="module")
def cells() -> list[nbformat.NotebookNode]:
    """A notebook that shows three tables, one of them twice."""
    first = "import pandas as pd\nfrom cfbook import show\nframe = pd.DataFrame({'a': [0.12345]})"
    codes = [first, "show(frame, 'One.')\nshow(frame.a, 'Two.')", "show(frame, 'One.', digits=2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in codes])
    NotebookClient(notebook, kernel_name="python3").execute()
    return notebook.cells


def test_a_notebook_counts_its_tables_and_a_table_shown_again_keeps_its_number(
    cells: list[nbformat.NotebookNode],
) -> None:
    shown = [out.data for cell in cells for out in cell.outputs]

    assert [set(data) for data in shown] == [{"text/plain", "text/html"}] * 3
    titles = [data["text/plain"].splitlines()[0] for data in shown]
    assert titles == ["Table 1. One.", "Table 2. Two.", "Table 1. One."]
    assert ">0.123<" in shown[0]["text/html"] and ">0.12<" in shown[2]["text/html"]
    # No process leaves its mark: nbval compares the page too.
    assert shown[0]["text/html"] == html(
        _Shown(_in_words(pd.DataFrame({"a": [0.12345]}), 3), "One.", 1)
    )
