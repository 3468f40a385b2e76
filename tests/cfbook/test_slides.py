"""Pictures for slides: every figure, larger than in the book, with its words."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from cfbook.production.notebooks import run_notebook
from cfbook.production.slides import figures
from cfcore.cli import main

TEXT = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

## A section

Not this.

Look at {func}`~cfcore.evaluate`.

| a table |
|---|

```{code-cell}
:tags: [parameters]
size: int = 2  # inches
```

```{code-cell}
import matplotlib.pyplot as plt

from myst_nb import glue

glue("lines", "lines", display=False)
plt.style.use({"figure.dpi": 50})
plt.figure(figsize=(size, size))
plt.plot([1, 2])
plt.show()
```

```{code-cell}
---
mystnb:
  figure:
    caption: |
      Two
      {glue:text}`lines`.
  image:
    alt: A falling line
---
plt.figure(figsize=(size, size))
plt.plot([2, 1])
plt.show()
```
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "chapter.md"
    path.write_text(TEXT)
    return path


def test_every_figure_is_written_large_and_listed_with_its_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "own"))

    assert main(["slides", str(source), str(tmp_path / "out")]) == 0

    assert os.environ["IPYTHONDIR"] == str(tmp_path / "own")
    names = ["chapter-01.png", "chapter-02.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*names, "index.md"]
    listed = (tmp_path / "out/index.md").read_text()
    _, first, second = listed.split("\n---\n")
    assert f"({names[0]})\n\nLook at `evaluate`.\n" in first
    assert f"![A falling line]({names[1]})\n\nTwo lines.\n" in second
    assert listed.count("*A chapter*") == 2


def test_pictures_are_finer_than_those_of_the_book_whatever_its_style(
    source: Path, tmp_path: Path
) -> None:
    main(["slides", str(source), str(tmp_path / "out")])
    book = figures(run_notebook(source, tmp_path / "chapter.ipynb", progress=False))

    for figure in book:
        small = Image.open(BytesIO(figure.image)).size
        large = Image.open(BytesIO((tmp_path / "out" / figure.file).read_bytes())).size
        assert min(large) > 5 * min(small)  # 300 against 50 dots in an inch
