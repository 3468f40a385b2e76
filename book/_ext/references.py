"""References under the name by which readers know them: authors and year, as in the text."""

from collections.abc import Iterator

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.alpha import Style
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx


def name_authors(names: list[str]) -> str:
    """One or two authors by name, more as the first and the rest.

    Example:
        >>> name_authors(["Oberst", "Sontag"]), name_authors(["Rozet", "others"])
        ('Oberst and Sontag', 'Rozet et al.')
    """
    if len(names) > 2 or names[-1] == "others":
        return f"{names[0]} et al."
    return " and ".join(names)


class AuthorYearLabels(BaseLabelStyle):
    """Labels such as ``Pearl 2009``."""

    def format_labels(self, sorted_entries: list[Entry]) -> Iterator[str]:
        for entry in sorted_entries:
            people = entry.persons["author"]
            parts = [person.rich_prelast_names + person.rich_last_names for person in people]
            authors = name_authors([" ".join(map(str, part)) for part in parts])
            yield f"{authors} {entry.fields.get('year', '')}".strip()


class AuthorYear(Style):
    """The style of ``alpha`` with readable labels."""

    default_label_style = "author_year"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    register_plugin("pybtex.style.labels", "author_year", AuthorYearLabels)
    register_plugin("pybtex.style.formatting", "author_year", AuthorYear)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
