"""The guard: many ways to let something of a real patient through, all of them stopped."""

import base64
import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import nbformat
import numpy as np
import pytest
import torch
from miniature import write_chexpert, write_mimic
from nbclient import NotebookClient
from safetensors.torch import save

from cfbook.guard import inspect
from cfbook.production.notebooks import run_notebook
from cfchest.data import load_mimic
from cfchest.graph import CHEST
from cfcore.cli import main
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.marks import marked
from cfscm.networks import PredictorConfig, build
from cfscm.networks import save as save_weights

ROOT = Path(__file__).parents[2]
SUBJECT, STUDY, PATIENT = 10_000_032, 50_414_267, f"patient{12345}"
DICOM = "-".join(["02aa804e"] * 5)

HEAD = "---\nkernelspec:\n  display_name: Python 3\n  language: python\n  name: python3\n---\n\n"
CELL = "```{{code-cell}}\n:tags: [{}]\n{}\n```\n\n".format
REAL = (
    HEAD
    + CELL("parameters", "data: dict = {}  # folders by name")
    + CELL("", "from cfchest.data import load_mimic\nimport matplotlib.pyplot as plt")
    + CELL("", 'cohort = load_mimic(data["mimic"], data["mimic_iv"])')
    + CELL("", "plt.imshow(cohort[0][0, 0])\nplt.show()")
    + CELL("", "print(cohort.table.study.head(2))")
)
CLEAN = (
    HEAD
    + CELL("parameters", "data: dict = {}  # folders by name")
    + CELL("", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
)

Plant = Callable[[Path, "Leak"], str]


class Leak:
    """A folder outside of any repository with what a run on real patients leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.mimic_iv = write_mimic(folder)
        self.image = next(self.tree.rglob("*.jpg"))
        given = {"data": {"mimic": str(self.tree), "mimic_iv": str(self.mimic_iv)}}
        (folder / "real.md").write_text(REAL)
        (folder / "clean.md").write_text(CLEAN)
        self.notebook = run_notebook(
            folder / "real.md", folder / "real.ipynb", given, progress=False
        )
        self.clean = run_notebook(folder / "clean.md", folder / "clean.ipynb", progress=False)
        data = load_mimic(self.tree, self.mimic_iv)
        data = data.take(data.table.index[data.table.sex.notna()])
        self.cache = next(Path(data.cached(folder)._source.path.parent).glob("images-*.npy"))
        readers = {"mean": lambda x, pa: x.mean(dim=(1, 2, 3))}
        grid = Grid.product({"sex": [0, 1]})
        self.predictions = marginalise(Same(), readers, data, grid)["mean"]
        self.artefact = self.predictions.save(folder / "mean.safetensors").read_bytes()
        self.weights = folder / "weights.safetensors"
        reader = build(PredictorConfig("effusion", width=4), graph=CHEST, seed=0)
        save_weights(reader, self.weights, seed=0, notes=marked(["mimic"]))

    def cells(self, name: str = "notebook") -> nbformat.NotebookNode:
        """A fresh copy of the real or of the clean notebook."""
        return nbformat.read(getattr(self, name), as_version=4)

    def rendered(self, name: str) -> Path:
        """The folder of a book of one notebook, really rendered."""
        source = self.tree.parent / f"book of the {name}"
        if source.is_dir():
            return source / "_build/html"
        write(source / "_toc.yml", "format: jb-book\nroot: index\nchapters:\n  - file: chapter\n")
        write(source / "_config.yml", 'title: A\nexecute:\n  execute_notebooks: "off"\n')
        write(source / "index.md", "# A\n")
        notebook = self.cells(name)
        notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# Chapter"))
        write(source / "chapter.ipynb", notebook)
        call = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
        subprocess.run([*call, str(source)], check=True, capture_output=True)
        return source / "_build/html"

    def picture(self) -> bytes:
        """The image that a cell of the real notebook shows."""
        shown = [o for cell in self.cells().cells for o in cell.get("outputs", [])]
        return next(
            base64.b64decode(o.data["image/png"]) for o in shown if "image/png" in o.get("data", {})
        )


class Same:
    """A generator that changes nothing."""

    def abduct(self, x: torch.Tensor, pa: object, **_: object) -> torch.Tensor:
        return x

    def predict(self, noise: torch.Tensor, pa: object) -> torch.Tensor:
        return noise


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> Leak:
    return Leak(tmp_path_factory.mktemp("real"))


def git(root: Path, *words: str) -> subprocess.CompletedProcess:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    call = ["git", "-C", str(root), *who, *words]
    return subprocess.run(call, capture_output=True, text=True, env=own | {"PATH": path})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the list, the hook and the ignored places of this one."""
    root = tmp_path / "project"
    for folder in ("notebooks", "book", "data/predictions", "data/predictors", "runs", ".githooks"):
        (root / folder).mkdir(parents=True)
    for name in (".gitignore", ".guard.yml"):
        copyfile(ROOT / name, root / name)
    hook = (ROOT / ".githooks/pre-commit").read_text()
    own = hook.replace('"$(git rev-parse --show-toplevel)/.venv/bin/cfcore"', "cfcore")
    assert own != hook
    (root / ".githooks/pre-commit").write_text(own)
    (root / ".githooks/pre-commit").chmod(0o755)
    git(root, "init", "--quiet")
    git(root, "config", "core.hooksPath", ".githooks")
    git(root, "add", "--all")
    assert git(root, "commit", "--quiet", "--no-verify", "-m", "Begin").returncode == 0
    monkeypatch.chdir(root)
    return root


def write(path: Path, content: bytes | str | nbformat.NotebookNode) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, nbformat.NotebookNode):
        content = nbformat.writes(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ""


def said(value: bytes) -> str:
    return base64.b64encode(value).decode()


def whole_notebook(root: Path, leak: Leak) -> str:
    write(root / "notebooks/setting_1.ipynb", leak.notebook.read_bytes())
    return r"notebooks/setting_1.ipynb: cell 5 \(plt.imshow.*\), output 1: shows an image in"


def notebook_of_plain_jupyter(root: Path, leak: Leak) -> str:
    notebook = nbformat.v4.new_notebook()
    code = f"from cfchest.data import load_mimic as f\nx = f({str(leak.tree)!r}, "
    code += f"{str(leak.mimic_iv)!r})[0]"
    show = "import matplotlib.pyplot as plt\nplt.imshow(x[0, 0])\nplt.show()"
    notebook.cells = [nbformat.v4.new_code_cell(code), nbformat.v4.new_code_cell(show)]
    NotebookClient(notebook, kernel_name="python3").execute()
    write(root / "notebooks/plain.ipynb", notebook)
    return r"notebooks/plain.ipynb: cell 2 \(import matplotlib.*\), output 1: shows an image"


def notebook_without_metadata(root: Path, leak: Leak) -> str:
    notebook = leak.cells()
    notebook.metadata.clear()
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 4 \(cohort = load_mimic.*\), output 1: carries the mark of mimic"


def notebook_under_another_name(root: Path, leak: Leak) -> str:
    write(root / "book/notes.txt", leak.notebook.read_bytes())
    return r"book/notes.txt: cell 5 \(plt.imshow.*: shows an image"


def cell_in_another_notebook(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    notebook.cells.append(leak.cells().cells[4])
    write(root / "notebooks/metrics.ipynb", notebook)
    return r"metrics.ipynb: cell 3 \(plt.imshow.*\), output 2: carries the mark of mimic"


def pasted_image(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    cell = nbformat.v4.new_markdown_cell("Look:\n![](attachment:a.jpg)")
    cell.attachments = {"a.jpg": {"image/jpeg": said(leak.image.read_bytes())}}
    notebook.cells.append(cell)
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 3 \(Look:\), attachment a.jpg: holds an image that no code made"


def image_written_into_a_cell(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    source = f'Here\n<img src="data:image/png;base64,{said(leak.picture())}">'
    notebook.cells.append(nbformat.v4.new_markdown_cell(source))
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 3 \(Here\): holds an image that no code made"


def image_written_into_a_page(root: Path, leak: Leak) -> str:
    write(root / "book/index.md", f"![](data:image/png;base64,{said(leak.picture())})")
    return r"book/index.md: holds an image that no code made"


def image_shown_as_it_is(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    code = f"import PIL.Image as i\ni.open({str(leak.image)!r})"
    notebook.cells = [nbformat.v4.new_code_cell(code)]
    NotebookClient(notebook, kernel_name="python3").execute()
    notebook.cells[0].source = "show(worst)"
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 1 \(show\(worst\)\), output 1: shows an image that is no figure"


def image_shown_in_a_drawing(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    drawing = f'<svg><image href="data:image/png;base64,{said(leak.picture())}"/></svg>'
    cell = nbformat.v4.new_code_cell("show(worst)")
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": drawing})]
    notebook.cells = [cell]
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 1 \(show\(worst\)\), output 1: shows an image that is no figure"


def artefact_renamed(root: Path, leak: Leak) -> str:
    write(root / "data/predictions/book-C-C.safetensors", leak.artefact)
    return r"data/predictions/book-C-C.safetensors: carries the mark of mimic"


def artefact_without_its_mark(root: Path, leak: Leak) -> str:
    own = dict(leak.predictions.provenance)
    leak.predictions.provenance.pop("restricted")
    content = leak.predictions.save(root / "data/predictions/b.safetensors").read_bytes()
    leak.predictions.provenance.update(own)
    assert b"cfcore-restricted" not in content
    return r"data/predictions/b.safetensors: header: line 1 names a subject of MIMIC"


def weights_among_those_of_the_phantom(root: Path, leak: Leak) -> str:
    write(root / "data/predictors/M-basic-seed0.safetensors", leak.weights.read_bytes())
    return r"data/predictors/M-basic-seed0.safetensors: carries the mark of mimic"


def forced_from_the_ignored_place(root: Path, leak: Leak) -> str:
    write(root / "runs/notebooks/a.ipynb", leak.notebook.read_bytes())
    assert git(root, "add", "runs/notebooks/a.ipynb").returncode == 1
    assert git(root, "add", "--force", "runs/notebooks/a.ipynb").returncode == 0
    return r"runs/notebooks/a.ipynb: cell 5 .*: shows an image"


def cache_called_an_artefact(root: Path, leak: Leak) -> str:
    write(root / "data/predictions/c.safetensors", leak.cache.read_bytes()[10:])
    return r"data/predictions/c.safetensors: is not text and not in"


def checkpoint(root: Path, leak: Leak) -> str:
    content = save({"image": torch.zeros(3)})
    write(root / "data/generators/a.checkpoint.safetensors", content)
    return r"data/generators/a.checkpoint.safetensors: is not text and not in"


def exported_page(root: Path, leak: Leak) -> str:
    copyfile(leak.rendered("notebook") / "chapter.html", root / "book/chapter.html")
    return r"book/chapter.html: carries the mark of mimic"


def table_of_patients(root: Path, leak: Leak) -> str:
    write(root / "data/found.csv", f"subject_id,score\n{SUBJECT},0.3\n")
    return r"data/found.csv: line 2 names a number of MIMIC"


def list_of_patients(root: Path, leak: Leak) -> str:
    write(root / "data/found.json", json.dumps({"patient": [str(SUBJECT)]}))
    return r"data/found.json: line 1 names a subject of MIMIC"


def path_in_prose(root: Path, leak: Leak) -> str:
    write(root / "book/a.md", f"As in\n`files/p10/p{SUBJECT}/s{STUDY}/{DICOM}.jpg`")
    return r"book/a.md: line 2 names an image of MIMIC-CXR \(02a\.\.\.\)"


def patient_in_an_output(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    notebook.cells[1].outputs.append(
        nbformat.v4.new_output("stream", text=f"worst: {PATIENT}/study1/view1_frontal.jpg\n")
    )
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 2 \(import matplotlib.*\), output 2: line 1 names a patient of CheXpert"


def patient_in_the_metadata_of_a_cell(root: Path, leak: Leak) -> str:
    notebook = leak.cells("clean")
    notebook.cells[1].metadata["note"] = PATIENT.capitalize()
    write(root / "notebooks/a.ipynb", notebook)
    return r"a.ipynb: cell 2 .*: line 1 names a patient of CheXpert"


def patient_in_the_name_of_a_file(root: Path, leak: Leak) -> str:
    write(root / f"data/p{SUBJECT}/notes.md", "nothing")
    return r"notes.md: its name: line 1 names a patient or study of MIMIC-CXR"


def allowed_elsewhere(root: Path, leak: Leak) -> str:
    write(root / "book/a.md", f"see patient{1:05d}")
    return r"book/a.md: line 1 names a patient of CheXpert"


def staged_and_then_tidied_away(root: Path, leak: Leak) -> str:
    write(root / "book/a.md", PATIENT)
    git(root, "add", "book/a.md")
    write(root / "book/a.md", "nothing")
    return r"book/a.md: line 1 names a patient of CheXpert"


def link_to_an_image(root: Path, leak: Leak) -> str:
    (root / "book/figure").symlink_to(f"/data/{PATIENT}/study1/view1_frontal.jpg")
    return r"book/figure: line 1 names a patient of CheXpert"


ATTEMPTS: list[Plant] = [
    whole_notebook,
    notebook_of_plain_jupyter,
    notebook_without_metadata,
    notebook_under_another_name,
    cell_in_another_notebook,
    pasted_image,
    image_written_into_a_cell,
    image_written_into_a_page,
    image_shown_as_it_is,
    image_shown_in_a_drawing,
    artefact_renamed,
    artefact_without_its_mark,
    weights_among_those_of_the_phantom,
    forced_from_the_ignored_place,
    cache_called_an_artefact,
    checkpoint,
    exported_page,
    table_of_patients,
    list_of_patients,
    path_in_prose,
    patient_in_an_output,
    patient_in_the_metadata_of_a_cell,
    patient_in_the_name_of_a_file,
    allowed_elsewhere,
    staged_and_then_tidied_away,
    link_to_an_image,
]


def arrays(leak: Leak) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, images=np.load(leak.cache))
    return file.getvalue()


def archive(leak: Leak) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("inner/b.bin", leak.artefact)
    return file.getvalue()


BINARY: dict[str, Callable[[Leak], bytes]] = {
    "data/images.npz": arrays,
    "data/results.zip": archive,
    "data/results.gz": lambda leak: gzip.compress(leak.artefact),
    "data/scores.parquet": lambda leak: b"PAR1" + bytes(64) + b"PAR1",
    "data/other.safetensors": lambda leak: save({"image": torch.zeros(3)}),
    "data/a.dcm": lambda leak: bytes(128) + b"DICM" + bytes(range(256)),
    "data/a.dat": lambda leak: pickle.dumps(leak.predictions.patient),
    "runs/cache/images.npy": lambda leak: leak.cache.read_bytes(),
    "book/figure.dat": lambda leak: leak.image.read_bytes(),
    "notebooks/figure.png": lambda leak: leak.picture(),
}


@pytest.mark.parametrize("path", BINARY)
def test_what_is_not_text_is_refused_unless_it_is_listed(
    path: str, project: Path, leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    write(project / path, BINARY[path](leak))
    git(project, "add", "--force", path)

    assert main(["guard", "--staged"]) == 2
    assert f"{path}: is not text and not in .guard.yml\n" in capsys.readouterr().err


@pytest.mark.parametrize("plant", ATTEMPTS, ids=lambda plant: plant.__name__)
def test_the_guard_stops(
    plant: Plant, project: Path, leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    expected = plant(project, leak)
    if not git(project, "diff", "--cached", "--name-only").stdout:
        assert git(project, "add", "--all").returncode == 0

    assert main(["guard", "--staged"]) == 2

    errors = capsys.readouterr().err
    assert re.search(expected, errors), errors
    assert "may not be shared" in errors.splitlines()[-1]
    for secret in (str(SUBJECT), str(STUDY), PATIENT):
        assert secret not in re.sub(r"^\S+: ", "", errors, flags=re.MULTILINE)


def test_the_hook_runs_the_guard_and_git_commits_nothing(project: Path, leak: Leak) -> None:
    expected = forced_from_the_ignored_place(project, leak)
    before = git(project, "rev-parse", "HEAD").stdout

    committed = git(project, "commit", "-m", "Add results")

    assert committed.returncode != 0
    assert re.search(expected, committed.stderr), committed.stderr
    assert git(project, "rev-parse", "HEAD").stdout == before


def test_what_the_hook_stops_the_check_of_all_tracked_files_stops_too(
    project: Path, leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    whole_notebook(project, leak)
    git(project, "add", "--all")
    git(project, "commit", "--no-verify", "-m", "Go round the hook")

    assert main(["guard", "--staged"]) == 0
    assert main(["guard"]) == 2
    assert "notebooks/setting_1.ipynb: cell 5" in capsys.readouterr().err


def test_a_change_that_is_not_staged_is_seen_in_a_tracked_file(
    project: Path, capsys: pytest.CaptureFixture
) -> None:
    write(project / "book/a.md", "nothing")
    git(project, "add", "--all")
    write(project / "book/a.md", f"\n{PATIENT}")

    assert main(["guard", "--staged"]) == 0
    assert main(["guard"]) == 2
    assert "book/a.md: line 2 names a patient of CheXpert (pat...)" in capsys.readouterr().err


def test_a_notebook_of_the_phantom_is_committed(project: Path, leak: Leak) -> None:
    write(project / "notebooks/clean.ipynb", leak.clean.read_bytes())
    write(project / "book/a.md", f"N = {SUBJECT}, p{7}, subject_id, sha {'a1' * 32}")
    write(project / "book/b.md", f"{SUBJECT} images in all")
    git(project, "add", "--all")
    write(project / "book/a.md", "subject_id is a column")
    git(project, "add", "--all")

    committed = git(project, "commit", "-m", "Add a chapter")

    assert committed.returncode == 0, committed.stderr


def test_a_rendered_book_is_refused_by_page_cell_and_image(
    leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    html = leak.rendered("notebook")

    assert main(["guard", "--book", str(html)]) == 2
    errors = capsys.readouterr().err
    assert re.search(r"_sources/chapter.ipynb: cell 6 \(plt.imshow.*: shows an image", errors)
    assert re.search(r"^_images/\w+.png: is not text", errors, flags=re.MULTILINE)
    assert re.search(r"^chapter.html: carries the mark of mimic", errors, flags=re.MULTILINE)


def test_a_rendered_book_of_the_phantom_passes_until_an_image_is_added(
    leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    html = leak.rendered("clean")
    assert main(["guard", "--book", str(html)]) == 0

    copyfile(leak.image, html / "_images/added.jpg")
    assert main(["guard", "--book", str(html)]) == 2
    assert "_images/added.jpg: is not text" in capsys.readouterr().err


def test_a_book_whose_notebook_shows_what_is_no_figure_is_refused(leak: Leak) -> None:
    notebook = leak.cells("clean")
    data = {"image/jpeg": said(leak.image.read_bytes())}
    notebook.cells[1].outputs.append(nbformat.v4.new_output("display_data", data))

    (found,) = inspect([("_sources/a.ipynb", nbformat.writes(notebook).encode())], book=True)

    assert (found.path, found.what) == ("_sources/a.ipynb", "shows an image that is no figure")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a repository")
def test_the_whole_project_as_it_is_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    assert main(["guard"]) == 0


def test_files_can_be_named_and_must_be_there(
    tmp_path: Path, leak: Leak, capsys: pytest.CaptureFixture
) -> None:
    assert main(["guard", str(leak.clean)]) == 0
    assert main(["guard", str(leak.notebook)]) == 2
    assert main(["guard", str(tmp_path / "none")]) == 2
    assert "none: there is no such file or folder" in capsys.readouterr().err


def test_a_list_that_cannot_be_read_is_refused(
    project: Path, capsys: pytest.CaptureFixture
) -> None:
    write(project / ".guard.yml", "everything: true\n")

    assert main(["guard"]) == 2
    assert ".guard.yml: this is no list" in capsys.readouterr().err


def test_miniature_trees_themselves_are_refused(tmp_path: Path) -> None:
    assert main(["guard", str(write_chexpert(tmp_path))]) == 2
