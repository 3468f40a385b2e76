"""``make book`` executes what has changed, side by side, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import notebook

ROOT = Path(__file__).parent.parent
NOTEBOOK = notebook(
    "size: int = 3  # how many",
    'from pathlib import Path\nprint(1 / int(Path("../data/number.txt").read_text()))',
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's own Makefile and tools, on one notebook and one number."""
    for folder in ("notebooks", "cfcore", "data", "book", ".venv"):
        (tmp_path / folder).mkdir()
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv/stamp").touch()
    (tmp_path / "notebooks/small.md").write_text(NOTEBOOK)
    (tmp_path / "data/number.txt").write_text("4")
    return tmp_path


def execute(project: Path) -> subprocess.CompletedProcess[str]:
    """Call make as a user would, not as part of the make that runs these tests."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    call = ["make", "executed", f"BIN={Path(sys.executable).parent}"]
    return subprocess.run(call, cwd=project, env=outside, capture_output=True, text=True)


def test_an_edit_executes_again_and_a_touch_does_not(project: Path) -> None:
    executed = project / "_build/executed/notebooks/small.ipynb"
    assert execute(project).returncode == 0
    first = executed.stat().st_mtime_ns
    assert '"0.25\\n"' in executed.read_text()

    (project / "data/number.txt").touch()
    assert execute(project).returncode == 0
    assert executed.stat().st_mtime_ns == first

    (project / "data/number.txt").write_text("2")
    assert execute(project).returncode == 0
    assert '"0.5\\n"' in executed.read_text()


def test_a_notebook_that_fails_stops_the_book_and_says_why(project: Path) -> None:
    (project / "data/number.txt").write_text("0")

    call = execute(project)

    assert call.returncode != 0
    assert "notebooks/small.md: cell 2 fails with ZeroDivisionError" in call.stderr
    assert not (project / "_build/executed/notebooks/small.ipynb").exists()
