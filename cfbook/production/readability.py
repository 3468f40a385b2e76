"""How hard a page is to read: ``python -m cfbook.production.readability [FILES]``.

Of each chapter and page, by default all: the words of its prose, without code, formulas and
directives; the sentences of more than 35 words; and the paragraphs with more than three numbers.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

_HEADER = re.compile(r"\A---\n.*?\n---\n", re.S)
_FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.S)
_ROLE = re.compile(r"\{glue:text\}`[^`]*`|\{[a-z:]+\}`([^`<]*)[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"^(:{3,}|`{3,}|:[a-z-]+:|\(.*\)=|\||#|%).*$", re.M)
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[A-Z*_\"'(])")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*")
_LONG, _MANY = 35, 3


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of prose of a MyST page; a glued number stands as 0, a formula as x.

    Example:
        >>> list(paragraphs("# Title\\n\\nOf {glue:text}`a-b:d` *patients*, $p$ are ill."))
        ['Of 0 *patients*, x are ill.']
    """
    text = _HEADER.sub("", text)
    for kind in ("code-cell", "raw", "math", "code", "python", "yaml", "bibliography"):
        text = re.sub(rf"^(`{{3,}}|:{{3,}})\{{?{kind}.*?^\1\s*$", "", text, flags=re.M | re.S)
    text = _FORMULA.sub("x", text)
    text = re.sub(r"^```\n.*?^```\s*$", "", text, flags=re.M | re.S)
    text = _ROLE.sub(lambda found: found.group(1) or "0", text)
    text = _MARKUP.sub("\n", _LINK.sub(r"\1", text))
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. |: )", text):
        block = " ".join(block.split()).lstrip("-*: ").strip() if block.strip() else ""
        if block:
            yield block


def tally(text: str) -> dict[str, int]:
    """Words, sentences of more than 35 words, paragraphs with more than three numbers.

    Example:
        >>> tally("One, 2, 3, 4 and 5 are numbers. So they are.")
        {'words': 11, 'long sentences': 0, 'full paragraphs': 1}
    """
    found = list(paragraphs(text))
    sentences = [s for block in found for s in _END.split(block)]
    return {
        "words": sum(len(block.split()) for block in found),
        "long sentences": sum(len(s.split()) > _LONG for s in sentences),
        "full paragraphs": sum(len(_NUMBER.findall(block)) > _MANY for block in found),
    }


def _main(*files: str) -> None:
    paths = [Path(file) for file in files]
    paths = paths or sorted([*Path("notebooks").glob("*.md"), *Path("book").glob("*.md")])
    table = pd.DataFrame({path.stem: tally(path.read_text()) for path in paths}).T
    print(pd.concat([table, table.sum().to_frame("all").T]).to_string())


if __name__ == "__main__":
    _main(*sys.argv[1:])
