"""Marks of real patients: they travel with what is made, and stay where git does not look."""

import json
import subprocess
from pathlib import Path

import nbformat
import pytest
import torch
from miniature import write_chexpert, write_mimic, write_nih, write_table
from safetensors import safe_open
from tiny import notebook

from cfbook.production.notebooks import run_notebook
from cfchest.data import Dataset, from_phantom, load_chexpert, load_mimic, load_nih, load_table
from cfchest.graph import CHEST
from cfchest.offsets import offset
from cfchest.phantom import Phantom
from cfcore import InputError
from cfcore.cli import main
from cfcore.files import write_atomically
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.marks import check_place, marked, sources_in, tracked
from cfcore.predictions import Predictions, load_all, save_all
from cfscm.networks import PredictorConfig, build, load, save
from cfscm.weights import read_manifest

PARAMETERS = 'where: str = ""  # a folder\ndata: dict = {}  # folders by name'
LOADS = "from cfchest.data import load_chexpert\ncohort = load_chexpert(where)"


class Same:
    """A generator that changes nothing."""

    def abduct(self, x: torch.Tensor, pa: object, **_: object) -> torch.Tensor:
        return x

    def predict(self, noise: torch.Tensor, pa: object) -> torch.Tensor:
        return noise


def brightness(x: torch.Tensor, pa: object) -> torch.Tensor:
    return x.mean(dim=(1, 2, 3))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    subprocess.run(["git", "init", "--quiet", root], check=True)
    (root / ".gitignore").write_text("runs/\nrestricted/\n")
    return root


def loaded(folder: Path) -> dict[str, Dataset]:
    """One data set of each source, in miniature."""
    for name in ("c", "m", "n", "t"):
        (folder / name).mkdir(parents=True)
    return {
        "chexpert": load_chexpert(write_chexpert(folder / "c")),
        "mimic": load_mimic(*write_mimic(folder / "m")),
        "nih": load_nih(write_nih(folder / "n")),
        "table": load_table(write_table(folder / "t")),
    }


def predicted(data: Dataset, **options: object) -> Predictions:
    grid = Grid.product({"sex": [0, 1]})
    return marginalise(Same(), {"brightness": brightness}, data, grid, **options)["brightness"]


def text_notebook(path: Path, code: str = LOADS) -> Path:
    path.write_text(notebook(PARAMETERS, code, "print(10)"))
    return path


def test_every_loader_of_real_patients_names_its_source_and_the_phantom_none(
    tmp_path: Path,
) -> None:
    for name, data in loaded(tmp_path).items():
        assert data.restricted == (name,)
        assert data.take([0]).select(data.take([0]).table).restricted == (name,)
        assert data.cached(tmp_path / "cache").restricted == (name,)

    phantom = from_phantom(Phantom(16).sample(3, hospital="C", seed=2027))
    assert phantom.restricted == ()
    assert "restricted" not in predicted(phantom).provenance


def test_the_mark_travels_from_data_to_predictions_bundles_and_offsets(tmp_path: Path) -> None:
    data = loaded(tmp_path)["chexpert"]
    data = data.take(data.table.index[data.table.sex.notna()])

    found = predicted(data, resume_dir=tmp_path / "shards")
    path = save_all({"a": offset(found, 1.0)}, tmp_path / "bundle.safetensors")
    again = Predictions.load(found.save(tmp_path / "one.safetensors"))

    assert found.provenance["restricted"] == marked(["chexpert"])["restricted"]
    assert again.provenance == load_all(path)["a"].provenance == found.provenance
    written = [*(tmp_path / "shards").iterdir(), path, tmp_path / "one.safetensors"]
    assert len(written) == 4
    assert {tuple(sources_in(file.read_bytes())) for file in written} == {("chexpert",)}


def test_weights_carry_the_mark_apart_from_their_manifest_and_load_as_ever(tmp_path: Path) -> None:
    reader = build(PredictorConfig("effusion", width=4), graph=CHEST, seed=0)
    save(reader, tmp_path / "real.safetensors", seed=0, notes=marked(["mimic"]))
    save(reader, tmp_path / "phantom.safetensors", seed=0)

    assert sources_in((tmp_path / "real.safetensors").read_bytes()) == ["mimic"]
    assert sources_in((tmp_path / "real.json").read_bytes()) == ["mimic"]
    assert read_manifest(tmp_path / "real.safetensors")["notes"] == marked(["mimic"])
    states = [
        load(tmp_path / f"{name}.safetensors", graph=CHEST).state_dict()
        for name in ("real", "phantom")
    ]
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
    with safe_open(tmp_path / "phantom.safetensors", framework="pt") as file:
        assert not file.metadata()


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("notebooks/a.ipynb", True),
        ("runs/deep/a.ipynb", False),
        ("restricted/a.safetensors", False),
        ("runs", True),
        (".gitignore", True),
        ("../outside/a.ipynb", False),
    ],
)
def test_git_is_asked_what_it_would_track(repository: Path, path: str, seen: bool) -> None:
    assert tracked((repository / path).resolve()) is seen
    if not seen:
        check_place(repository / path, ["mimic"])
        return
    check_place(repository / path, [])
    with pytest.raises(InputError, match=r"made from mimic, nih, .* restricted/ or runs/"):
        check_place(repository / path, ["nih", "mimic"])


def test_where_git_cannot_be_asked_a_repository_tracks_everything(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    assert tracked(repository / "runs/a.ipynb")
    assert not tracked(repository.parent / "a.ipynb")


def test_a_file_that_was_tracked_before_it_was_ignored_is_still_tracked(repository: Path) -> None:
    (repository / "runs").mkdir()
    (repository / "runs/old.json").write_text("{}")
    subprocess.run(["git", "-C", repository, "add", "-f", "runs/old.json"], check=True)

    assert tracked(repository / "runs/old.json")
    assert not tracked(repository / "runs/new.json")


def test_a_link_is_judged_by_where_it_leads(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(repository / "notebooks")

    with pytest.raises(InputError, match="git would track"):
        check_place(tmp_path / "scratch/a.ipynb", ["mimic"])


def test_nothing_marked_is_written_where_git_would_track_it(
    repository: Path, tmp_path: Path
) -> None:
    data = loaded(tmp_path)["mimic"]
    data = data.take(data.table.index[data.table.sex.notna()])
    found = predicted(data)

    for write in (
        lambda: found.save(repository / "a.safetensors"),
        lambda: save_all({"a": found}, repository / "b.safetensors"),
        lambda: predicted(data, resume_dir=repository / "shards"),
        lambda: data.cached(repository / "cache"),
        lambda: write_atomically(repository / "c.json", json.dumps(marked(["nih"])).encode()),
    ):
        with pytest.raises(InputError, match="git would track it there"):
            write()
    assert [path.name for path in repository.iterdir() if path.name != ".git"] == [".gitignore"]


COMMANDS = {
    "marginalise": ["--generator", "math:pi", "--preset", "smoke"],
    "predictor": ["--preset", "smoke"],
    "setting": ["--preset", "smoke"],
    "train": ["--preset", "smoke"],
    "results": ["--preset", "smoke"],
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_commands_on_real_patients_refuse_a_tracked_folder_before_they_compute(
    command: str, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tree = write_table(tmp_path) if command == "marginalise" else write_chexpert(tmp_path)
    real = ["--data", str(tree)] if command == "marginalise" else ["--chexpert", str(tree)]

    code = main([command, *COMMANDS[command], *real, "--out", str(repository / "found")])

    assert code == 2
    source = "table" if command == "marginalise" else "chexpert"
    assert f"made from {source}, which may not be shared" in capsys.readouterr().err
    assert not (repository / "found").exists()


def test_a_notebook_given_folders_is_refused_before_it_runs(
    repository: Path, tmp_path: Path
) -> None:
    source = text_notebook(repository / "a.md", "raise SystemExit")

    with pytest.raises(InputError, match=r"a\.ipynb: made from mimic"):
        run_notebook(source, repository / "a.ipynb", {"data": {"mimic_iv": "DIR"}}, progress=False)
    assert sorted(path.name for path in repository.iterdir()) == [".git", ".gitignore", "a.md"]


def test_a_notebook_that_turns_out_to_read_patients_is_not_written_to_a_tracked_place(
    repository: Path, tmp_path: Path
) -> None:
    source = text_notebook(repository / "a.md")
    given = {"where": str(write_chexpert(tmp_path))}

    with pytest.raises(InputError, match=r"a\.ipynb: made from chexpert"):
        run_notebook(source, repository / "a.ipynb", given, progress=False)
    failing = text_notebook(repository / "b.md", f"{LOADS}\n1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        run_notebook(failing, repository / "b.ipynb", given, progress=False)

    names = [".git", ".gitignore", "a.md", "b.md"]
    assert sorted(path.name for path in repository.iterdir()) == names


def test_a_notebook_that_read_patients_is_marked_cell_by_cell(
    repository: Path, tmp_path: Path
) -> None:
    given = {"where": str(write_chexpert(tmp_path))}

    out = run_notebook(text_notebook(repository / "a.md"), repository / "runs/a.ipynb", given)

    notebook = nbformat.read(out, as_version=4)
    assert dict(marked(["chexpert"])).items() <= dict(notebook.metadata).items()
    marks = [sources_in(json.dumps(cell.outputs).encode()) for cell in notebook.cells]
    assert marks == [[], [], ["chexpert"], ["chexpert"]]


def test_a_notebook_that_reads_predictions_of_patients_is_marked_too(tmp_path: Path) -> None:
    data = loaded(tmp_path)["chexpert"]
    data = data.take(data.table.index[data.table.sex.notna()])
    path = save_all({"a": predicted(data)}, tmp_path / "bundle.safetensors")
    code = "from cfcore.predictions import load_all\nfound = load_all(where)"

    out = run_notebook(
        text_notebook(tmp_path / "a.md", code), tmp_path / "a.ipynb", {"where": str(path)}
    )

    assert (
        nbformat.read(out, as_version=4).metadata.restricted == marked(["chexpert"])["restricted"]
    )
