"""What goes wrong in long runs: each failure is named, costs little, and can be gone on from."""

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from cfchest.data import Dataset, load_table
from cfcore import InputError, Predictions
from cfcore.cli import main
from cfcore.files import check_writable
from cfcore.generator import Parents
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise

PATIENTS, SHARD = 10, 4
GRID = Grid.product({"sex": [0, 1], "age": [20, 90]})
NAMES = [f"shard-0-of-1-{number:05d}.safetensors" for number in range(3)]

PLUGIN = """
import os, resource

class Brighter:
    def abduct(self, x, pa, *, index=None, rng=None):
        return x
    def predict(self, noise, pa):
        return (noise + 0.1 * pa["sex"][:, None, None, None]).clamp(0, 1)

calls = 0

def brightness(x, pa):
    global calls
    calls += 1
    print(f"call {calls}")
    if calls == int(os.environ.get("FULL_AT", 0)):  # the kernel refuses larger files from now on
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LARGEST"]), -1))
    return x.mean(dim=(1, 2, 3))
"""

COMMAND = f"""
import sys
import cfcore.marginalise
sys.modules["cfcore.marginalise"]._SHARD = {SHARD}
from cfcore.cli import main
sys.exit(main(sys.argv[1:]))
"""

WORDS = [
    *("marginalise", "--data", "table.csv", "--do", "sex=0,1"),
    *("--generator", "plugin_that_fails:Brighter"),
    *("--predictor", "mine=plugin_that_fails:brightness"),
]


class Brighter:
    """A generator whose images are those that went in, brighter for women."""

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: object = None
    ) -> Tensor:
        return x

    def predict(self, noise: Tensor, pa: Parents) -> Tensor:
        return (noise + 0.1 * pa["sex"][:, None, None, None]).clamp(0, 1)


class Brightness:
    """A predictor that counts the images it was shown, and says NaN of one age if told to.

    Both are kept where no hash looks, as in a file: what it says is all that tells it from another.
    """

    def __init__(self, bad_age: float = -1) -> None:
        self.hidden = threading.local()
        self.hidden.images, self.hidden.bad_age = 0, bad_age

    @property
    def images(self) -> int:
        return self.hidden.images

    def __call__(self, x: Tensor, pa: Parents) -> Tensor:
        self.hidden.images += len(x)
        return x.mean(dim=(1, 2, 3)).masked_fill(pa["age"] == self.hidden.bad_age, torch.nan)


def run(
    data: Dataset, folder: Path | None, reader: Brightness | None = None, workers: int = 0
) -> Predictions:
    reader = reader or Brightness()
    return marginalise(Brighter(), {"g": reader}, data, GRID, resume_dir=folder, workers=workers)[
        "g"
    ]


def assert_identical(first: Predictions, second: Predictions) -> None:
    for name in ("logit_obs", "logit_null", "logit_cf"):
        assert torch.equal(getattr(first, name), getattr(second, name))


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cfcore.marginalise"], "_SHARD", SHARD)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ten images, a table of them, and a generator and a predictor to name on the command line."""
    pixels = np.random.default_rng(0).integers(256, size=(PATIENTS, 64, 64), dtype=np.uint8)
    for row, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{row}.png")
    rows = range(PATIENTS)
    frame = pd.DataFrame({"image": [f"{row}.png" for row in rows]})
    frame = frame.assign(patient=[f"p{row}" for row in rows], sex=[row % 2 for row in rows])
    frame = frame.assign(age=[40 + row for row in rows], race=0, lung_size=0.3, effusion=0)
    frame.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "plugin_that_fails.py").write_text(PLUGIN)
    return tmp_path / "table.csv"


# An image that cannot be read


@pytest.mark.parametrize(
    "harm",
    [lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda whole: b"no image"],
    ids=["truncated", "empty", "something else"],
)
def test_a_broken_image_is_named_and_once_it_is_mended_the_run_goes_on(
    harm: Callable[[bytes], bytes], table: Path, tmp_path: Path
) -> None:
    clean, image, folder = run(load_table(table), None), tmp_path / "6.png", tmp_path / "shards"
    whole = image.read_bytes()
    image.write_bytes(harm(whole))

    with pytest.raises(InputError, match=r"/6\.png cannot be decoded .* table\.csv line 8"):
        run(load_table(table), folder)
    before = content(folder)
    assert sorted(before) == ["job.json", NAMES[0]]

    image.write_bytes(whole)
    reader = Brightness()
    assert_identical(run(load_table(table), folder, reader), clean)
    assert reader.images == (3 + PATIENTS - SHARD) * (2 + len(GRID)), "three are computed again"
    assert content(folder)[NAMES[0]] == before[NAMES[0]]


def test_a_broken_image_that_a_worker_reads_is_named_too(table: Path, tmp_path: Path) -> None:
    (tmp_path / "6.png").write_bytes(b"")

    with pytest.raises(InputError, match=r"/6\.png cannot be decoded"):
        run(load_table(table), tmp_path / "shards", workers=1)


def test_a_broken_image_ends_the_command_with_one_line(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "6.png").write_bytes(b"")

    assert main([*WORDS, "--out", "found"]) == 2

    assert "6.png cannot be decoded" in capsys.readouterr().err.splitlines()[-1]
    assert sorted(content(tmp_path / "found")) == ["job.json", NAMES[0]]


@pytest.mark.filterwarnings("ignore::cfcore.checks.ScoreWarning")  # its predictor is a brightness
def test_an_image_that_was_replaced_is_not_taken_for_the_one_that_was_read(
    table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    run(load_table(table), folder)
    Image.new("L", (64, 64), 200).save(tmp_path / "6.png")

    with pytest.raises(InputError, match=rf"{NAMES[1]}: .* images are not what they were; remove"):
        run(load_table(table), folder)
    (folder / NAMES[1]).unlink()
    assert_identical(run(load_table(table), folder), run(load_table(table), None))


def test_images_in_memory_are_part_of_the_job(tmp_path: Path) -> None:
    people = pd.DataFrame({"patient": ["a", "b"], "sex": 0, "age": 50, "effusion": 0})
    run(Dataset(people, torch.zeros(2, 8, 8)), tmp_path)

    with pytest.raises(InputError, match="images are not what they were"):
        run(Dataset(people, torch.ones(2, 8, 8)), tmp_path)


# A predictor that fails


def test_nothing_that_is_no_number_is_kept_and_a_mended_predictor_goes_on(
    table: Path, tmp_path: Path
) -> None:
    data, folder = load_table(table), tmp_path / "shards"

    with pytest.raises(InputError, match="predictor 'g' gives nan for patient 'p9'"):
        run(data, folder, Brightness(bad_age=49))
    assert sorted(content(folder)) == ["job.json", *NAMES[:2]]

    reader = Brightness()
    assert_identical(run(data, folder, reader), run(data, None))
    assert reader.images == (2 * 3 + 2) * (2 + len(GRID)), "three of each shard are computed again"


# A shard that is not what was written


def flipped(whole: bytes) -> bytes:
    """One bit of the last logit is another one."""
    return whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]


@pytest.mark.parametrize(
    "harm",
    [flipped, lambda whole: whole[:-1], lambda whole: b"", lambda whole: b"\xff" * 100],
    ids=["a flipped bit", "truncated", "empty", "something else"],
)
def test_a_damaged_shard_is_named_before_anything_is_computed(
    harm: Callable[[bytes], bytes], table: Path, tmp_path: Path
) -> None:
    data, folder, reader = load_table(table), tmp_path / "shards", Brightness()
    clean = run(data, folder)
    (folder / NAMES[0]).unlink()
    (folder / NAMES[2]).write_bytes(harm((folder / NAMES[2]).read_bytes()))

    with pytest.raises(InputError, match=rf"{NAMES[2]}: the shard is damaged.*; remove it to go"):
        run(data, folder, reader)
    assert reader.images == 0

    (folder / NAMES[2]).unlink()
    assert_identical(run(data, folder), clean)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', "\udcff"])
def test_a_damaged_note_of_the_job_is_named(text: str, table: Path, tmp_path: Path) -> None:
    data, note = load_table(table), tmp_path / "shards/job.json"
    clean = run(data, note.parent)
    note.write_bytes(os.fsencode(text))

    with pytest.raises(InputError, match=r"job\.json: the file is damaged; remove it to go on"):
        run(data, note.parent)
    note.unlink()
    assert_identical(run(data, note.parent), clean)


def test_shards_of_another_job_are_refused_without_its_note(table: Path, tmp_path: Path) -> None:
    data = load_table(table)
    marginalise(Brighter(), {"other": Brightness()}, data, GRID, resume_dir=tmp_path / "shards")
    (tmp_path / "shards/job.json").unlink()

    with pytest.raises(InputError, match=rf"{NAMES[0]}: the shard is damaged"):
        run(data, tmp_path / "shards")


# A disk that is full or cannot be written to


def command(tmp_path: Path, *launcher: str, **environment: object) -> subprocess.CompletedProcess:
    """Run the command in a process of its own, in front of which others may stand."""
    words = [*launcher, sys.executable, "-c", COMMAND, *WORDS, "--out", "found"]
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    given = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
    env = os.environ | {name: str(value) for name, value in given.items()}
    return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)


def assert_one_line(process: subprocess.CompletedProcess, line: str) -> None:
    assert process.returncode == 2, process.stderr
    assert process.stderr.splitlines()[-1] == line
    assert process.stderr.count("cfcore: ") == 1
    assert "Traceback" not in process.stderr


def test_a_disk_that_fills_up_costs_one_shard_and_is_noticed_before_the_next(
    table: Path, tmp_path: Path
) -> None:
    clean = command(tmp_path)
    assert clean.returncode == 0, clean.stderr
    (tmp_path / "found").rename(tmp_path / "clean")

    filled = command(tmp_path, FULL_AT=2, LARGEST=100)
    assert_one_line(filled, f"cfcore: found/shards/{NAMES[1]}: File too large")
    before = content(tmp_path / "found")
    assert sorted(before) == ["job.json", NAMES[0]]
    assert before[NAMES[0]] == (tmp_path / "clean/shards" / NAMES[0]).read_bytes()

    still = command(tmp_path, "prlimit", "--fsize=100")
    assert_one_line(still, "cfcore: found/shards: File too large")
    assert still.stdout == "", "nothing is computed that could not be kept"
    assert content(tmp_path / "found") == before

    assert command(tmp_path).returncode == 0
    assert content(tmp_path / "found") == content(tmp_path / "clean")


MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")


def mounting() -> bool:
    """Whether this machine lets a process mount a file system that only it sees."""
    if shutil.which("unshare") is None:
        return False
    call = [*MOUNT, "mount -t tmpfs none /mnt"]
    return subprocess.run(call, capture_output=True).returncode == 0


needs_mounting = pytest.mark.skipif(not mounting(), reason="no file system can be mounted here")


@needs_mounting
def test_a_file_system_that_is_full_is_noticed_before_a_shard_is_computed(
    table: Path, tmp_path: Path
) -> None:
    clean = command(tmp_path)
    assert clean.returncode == 0, clean.stderr
    (tmp_path / "found").rename(tmp_path / "clean")
    (tmp_path / "found").mkdir()
    script = (
        'mount -t tmpfs -o size=8k none found; "$@" && exit 9; code=$?;'
        "cp -r found full; mount -o remount,size=1m none found;"
        '"$@" 2>/dev/null && cp -r found room && exit $code'
    )

    process = command(tmp_path, *MOUNT, script, "sh")

    assert_one_line(process, "cfcore: found/shards: No space left on device")
    assert sorted(content(tmp_path / "full")) == ["job.json", NAMES[0]]
    assert content(tmp_path / "room") == content(tmp_path / "clean")


@needs_mounting
def test_a_file_system_for_reading_only_is_noticed_at_once(table: Path, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()

    process = command(tmp_path, *MOUNT, 'mount -t tmpfs -o ro none found; "$@"', "sh")

    assert_one_line(process, "cfcore: found: Read-only file system")
    assert process.stdout == ""


@pytest.mark.parametrize("place", ["table.csv", "table.csv/deeper/down"])
def test_a_folder_that_cannot_be_made_is_named_before_anything_is_computed(
    place: str, table: Path, tmp_path: Path
) -> None:
    reader = Brightness()

    with pytest.raises(OSError) as caught:
        run(load_table(table), tmp_path / place, reader)

    assert caught.value.filename == str(tmp_path / place)
    assert reader.images == 0


def test_a_command_that_cannot_write_trains_nothing(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cfbook.cli._default_predictors", lambda *_: pytest.fail("it trains"))

    assert main(["marginalise", "--preset", "smoke", "--out", "table.csv/found"]) == 2

    assert capsys.readouterr().err == "cfcore: table.csv/found: Not a directory\n"


@pytest.mark.parametrize("names", [["a/b"], ["a", "a"]])
def test_a_predictor_that_cannot_name_its_file_is_refused_at_once(
    names: list[str],
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [["--predictor", f"{name}=math:sqrt"] for name in names]

    assert main(["marginalise", "--out", "found", *itertools.chain(*words)]) == 2

    shown = capsys.readouterr().err
    assert shown == f"cfcore: predictor: {names[0]!r} cannot name a file of its own\n"


def test_trying_to_write_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "a/b", 10_000)

    assert content(tmp_path) == {}


def test_a_finished_run_is_read_where_nothing_can_be_written(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_table(table)
    clean = run(data, tmp_path / "shards")
    monkeypatch.setattr("cfcore.shards.check_writable", lambda *_: pytest.fail("it writes"))

    assert_identical(run(data, tmp_path / "shards"), clean)
