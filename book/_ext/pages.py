"""What a page says of itself: a description, the numbers of its tables, the names of its folds."""

import posixpath
import re
import shutil
import subprocess
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

WORDS = 20  # letters from which on a cell of a table is text
LENGTH = 200  # letters of a description, about what search engines show


# What those who listen would hear: a label in place of the words of a fold, a list of no items.
MENDED = {
    '<summary aria-label="Toggle hidden content">': "<summary>",
    '<div role="list" class="citation-list">': '<div class="citation-list">',
    ' role="doc-biblioentry"': "",
    ' role="doc-backlink"': "",
}


def describe(doctree: nodes.document | None) -> str:
    """The first sentences of a page, without those that hold a formula."""
    said = ""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        if isinstance(paragraph.parent, nodes.section):
            text = re.sub(r"\s+", " ", "".join(map(in_words, paragraph.children)))
            whole = [part for part in re.split(r"(?<=[.?!]) ", text) if "\0" not in part]
            said = f"{said} {' '.join(part for part in whole if len(part) > 25)}".strip()
        if len(said) > LENGTH / 2:
            break
    return textwrap.shorten(said, LENGTH, placeholder=" …")


def in_words(node: nodes.Node) -> str:
    """The text of a part of a paragraph, a formula being no text."""
    formulas = (nodes.math, nodes.math_block)
    if isinstance(node, formulas) or any(node.findall(lambda part: isinstance(part, formulas))):
        return "\0"
    return "" if isinstance(node, nodes.raw) else node.astext()


def number_tables(body: str, page: str, env: BuildEnvironment) -> str:
    """Put the number of the chapter before that of each table, as before that of each figure.

    ``cfbook.show`` counts the tables of one chapter and does not know which chapter it is. A link
    may lead to a table of another chapter.
    """

    def number(target: str) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        name = file.removesuffix(".html") if target else page
        chapter = env.toc_secnumbers.get(name, {}).get("")
        return f"{chapter[0]}." if chapter else ""

    own = r'(id="table-\d+"[^<]*>\s*<(?:figcaption|summary)>\s*<b>Table )(?=\d+\.)'
    body = re.sub(own, lambda found: found[1] + number(""), body)
    link = r'(<a [^>]*href="([^"#:]*)#table-(\d+)"[^>]*>(?:<span[^>]*>)?Table )(?=\3\b)'
    return re.sub(link, lambda found: found[1] + number(found[2]), body)


def mark_words(_: Sphinx, doctree: nodes.document, __: str) -> None:
    """Mark the columns of Markdown tables that hold text: on a phone they need some width."""
    for group in doctree.findall(nodes.tgroup):
        rows = [row.children for row in group.findall(nodes.row)]
        for column in zip(*rows, strict=True):
            if max(len(cell.astext()) for cell in column[1:] or column) > WORDS:
                for cell in column:
                    cell["classes"].append("words")


def set_date(app: Sphinx, config: Config) -> None:
    """Keep the day of the commit that the book is built from; none where there is no repository."""
    command = ["git", "-C", str(app.srcdir), "log", "-1", "--format=%cs"]
    if shutil.which("git"):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        config.version_date = run.stdout.strip()


def fill(app: Sphinx, page: str, _: str, context: dict, doctree: nodes.document | None) -> None:
    """Mend the page and tell the template what it has to say in its head."""
    context["version_date"] = app.config.version_date
    context["description"] = describe(doctree)
    preview = "_static/preview.png"
    base = app.config.html_baseurl
    context["preview"] = base.rstrip("/") + "/" + preview if base else context["pathto"](preview, 1)
    if "body" in context:
        body = number_tables(context["body"], page, app.env)
        for given, wanted in MENDED.items():
            body = body.replace(given, wanted)
        context["body"] = body


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("version_date", "", "html")
    app.connect("config-inited", set_date)
    app.connect("doctree-resolved", mark_words)
    app.connect("html-page-context", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
