"""The table, the images on demand and the cache, whatever the source."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from miniature import pixels, write_broken_jpeg, write_image
from PIL import Image

from cfchest.data import COLUMNS, Dataset, schema
from cfchest.data.dataset import Radiographs
from cfchest.data.loading import failures
from cfcore.checks import InputError
from cfcore.patients import Stored, decode

# Two workers on a machine with one core are slow, and not wrong.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def place(row: int) -> str:
    return f"table.csv line {row + 2}"


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {"patient": list("aabcd"), "sex": [0, 0, 1, np.nan, 1], "age": [40, 41, 70, 55, 20]}
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (5, 6, 4), generator=torch.Generator().manual_seed(0)).byte()


@pytest.fixture
def files(tmp_path: Path) -> Radiographs:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path in paths:
        write_image(path)
    return Radiographs([str(path) for path in paths], 8, place)


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (2, [2]),
        (-1, [4]),
        (slice(1, 4), [1, 2, 3]),
        ([3, 0, 3], [3, 0, 3]),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([4, 1]), [4, 1]),
        (pd.Index([2, 3]), [2, 3]),
        (np.arange(5) > 2, [3, 4]),
        ([], []),
    ],
)
def test_rows_may_be_named_in_any_way(
    rows: object, numbers: list[int], table: pd.DataFrame, images: torch.Tensor
) -> None:
    data = Dataset(table, images)
    expected = images[torch.tensor(numbers, dtype=torch.long)].unsqueeze(1).float() / 255

    assert torch.equal(data[rows], expected)
    assert data.take(rows).table.age.tolist() == table.age.iloc[numbers].tolist()


def test_a_row_that_is_not_there_raises(table: pd.DataFrame, images: torch.Tensor) -> None:
    with pytest.raises(IndexError):
        Dataset(table, images)[5]


def test_arrays_tensors_and_functions_give_the_same_images(
    table: pd.DataFrame, images: torch.Tensor
) -> None:
    x = images.unsqueeze(1).float() / 255
    sources = (images, images.numpy(), x, lambda rows: x[torch.as_tensor(rows)])

    for source in sources:
        assert torch.equal(Dataset(table, source)[:], x)


@pytest.mark.parametrize("scale", [255.0, -1.0, float("nan")])
def test_images_outside_0_to_1_are_refused(scale: float, table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"images are torch\.float32 from"):
        Dataset(table, scale * torch.ones(5, 4, 4))


def test_images_must_be_as_many_as_rows(table: pd.DataFrame, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="4 images for 5 rows"):
        Dataset(table, images[:4])


def test_the_schema_fills_what_is_absent(table: pd.DataFrame) -> None:
    full = schema(table.assign(hospital="C"))

    assert list(full) == [*COLUMNS, "hospital"]
    assert full.image.tolist() == [0, 1, 2, 3, 4]
    assert full[["race", "lung_size", "effusion", "view"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("column", "value"), [("sex", 2), ("sex", 0.5), ("age", -1), ("age", 121), ("lung_size", 1.2)]
)
def test_the_schema_refuses_what_cannot_be(column: str, value: float, table: pd.DataFrame) -> None:
    values = [np.nan, value, np.nan, np.nan, np.nan]

    with pytest.raises(InputError, match=f"row 1: {column} = {value:g}"):
        schema(table.assign(**{column: values}))


def test_the_schema_insists_on_patients(table: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="patient"):
        schema(table.drop(columns="patient"))
    with pytest.raises(InputError, match="row 2 has no patient"):
        schema(table.assign(patient=["a", "a", None, "c", "d"]))


def test_parents_are_float32_with_nan(table: pd.DataFrame, images: torch.Tensor) -> None:
    pa = Dataset(table, images).parents

    assert pa["sex"].dtype == torch.float32
    assert pa["sex"].isnan().tolist() == [False, False, False, True, False]
    assert pa["race"].isnan().all()


def test_taking_twice_is_taking_once(table: pd.DataFrame, images: torch.Tensor) -> None:
    data = Dataset(table, images)
    twice = data.take([4, 2, 0]).take([2, 1])

    assert torch.equal(twice[:], data[[0, 2]])
    assert twice.table.patient.tolist() == ["a", "b"]
    assert twice.table.index.tolist() == [0, 1]


def test_selecting_a_cohort_takes_its_rows_and_values(
    table: pd.DataFrame, images: torch.Tensor
) -> None:
    data = Dataset(table, images)
    cohort = data.table.iloc[[3, 1]].assign(age=np.nan)

    assert torch.equal(data.select(cohort)[:], data[[3, 1]])
    assert data.select(cohort).parents["age"].isnan().all()
    with pytest.raises(ValueError, match="no part of"):
        data.select(cohort.reset_index(drop=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_cover_every_row_once(
    workers: int, table: pd.DataFrame, files: Radiographs
) -> None:
    data = Dataset(table, files)
    batches = list(data.batches(2, workers=workers))
    rows = np.concatenate([batch.rows for batch in batches])

    assert [len(batch.rows) for batch in batches] == [2, 2, 1]
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(torch.cat([batch.x for batch in batches]), data[:])
    assert torch.cat([batch.pa["age"] for batch in batches]).tolist() == table.age.tolist()


def test_workers_spare_the_global_random_state(table: pd.DataFrame, images: torch.Tensor) -> None:
    state = torch.get_rng_state()

    list(Dataset(table, images).batches(2, workers=1))

    assert torch.equal(torch.get_rng_state(), state)


def test_resizing_averages_over_boxes(tmp_path: Path) -> None:
    write_image(tmp_path / "x.png")
    expected = pixels("x.png").reshape(6, 4, 5, 4).mean(axis=(1, 3))

    with Image.open(tmp_path / "x.png") as image:
        assert image.size == (20, 24)
    small = decode(tmp_path / "x.png", 4)
    assert small.dtype == np.uint8
    assert small.shape == (4, 4)
    assert small.mean() == pytest.approx(expected.mean(), abs=1)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
def test_colour_modes_are_read_as_grey(mode: str, tmp_path: Path) -> None:
    write_image(tmp_path / "x.png", mode)

    assert np.array_equal(decode(tmp_path / "x.png", grey=True), pixels("x.png"))


def test_16_bits_keep_their_range(tmp_path: Path) -> None:
    deep = pixels("x.png").astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "x.png")

    assert np.array_equal(decode(tmp_path / "x.png"), pixels("x.png"))


def test_large_jpegs_are_reduced_while_decoding_without_harm(tmp_path: Path) -> None:
    big = Image.fromarray(pixels("x", (64, 64))).resize((1024, 1024), Image.Resampling.NEAREST)
    big.save(tmp_path / "x.jpg", quality=95)
    exact = np.asarray(big.resize((64, 64), Image.Resampling.BOX)).astype(int)

    assert abs(decode(tmp_path / "x.jpg", 64).astype(int) - exact).max() <= 4


def test_images_of_different_sizes_ask_for_a_size(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    Image.fromarray(pixels("b", (8, 8))).save(tmp_path / "b.png")
    files = Radiographs([str(tmp_path / "a.png"), str(tmp_path / "b.png")], None, place)

    with pytest.raises(ValueError, match=r"b\.png has shape \(8, 8\).*size="):
        files(np.arange(2))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named_with_its_line(
    workers: int, table: pd.DataFrame, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(5)]
    for path in paths:
        write_image(path)
    write_broken_jpeg(paths[3])
    data = Dataset(table, Radiographs([str(path) for path in paths], 8, place))

    with pytest.raises(InputError, match=r"3\.jpg cannot be decoded.*table\.csv line 5"):
        list(data.batches(2, workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_gives_the_same_bits(
    workers: int, table: pd.DataFrame, files: Radiographs, tmp_path: Path
) -> None:
    data = Dataset(table, files)
    cached = data.cached(tmp_path / "cache", workers=workers, size=2)

    assert torch.equal(cached[:], data[:])
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npy"]
    assert torch.equal(cached.take([3, 1])[:], data[[3, 1]])


def test_a_cache_is_read_and_not_made_again(
    table: pd.DataFrame, files: Radiographs, tmp_path: Path
) -> None:
    Dataset(table, files).cached(tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    made = path.stat().st_mtime_ns
    relabelled = Dataset(table.assign(age=1), files).cached(tmp_path / "cache")

    assert path.stat().st_mtime_ns == made
    assert relabelled.table.age.eq(1).all()


def test_a_stale_cache_is_never_read(
    table: pd.DataFrame, files: Radiographs, tmp_path: Path
) -> None:
    data = Dataset(table, files)
    before = data.cached(tmp_path / "cache")[0]
    changed = Path(files.paths[0])
    Image.fromarray(255 - pixels(changed.name)).save(changed)
    os.utime(changed, ns=(0, 0))
    larger = Dataset(table, Radiographs(files.paths, 16, place)).cached(tmp_path / "cache")
    reordered = data.take([1, 0]).cached(tmp_path / "cache")

    assert not torch.equal(data.cached(tmp_path / "cache")[0], before)
    assert larger[0].shape == (1, 1, 16, 16)
    assert torch.equal(reordered[1], data[0])


def test_a_cache_that_failed_leaves_nothing(table: pd.DataFrame, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(5)]
    for path in paths:
        write_image(path)
    write_broken_jpeg(paths[4])

    with pytest.raises(InputError):
        Dataset(table, Radiographs([str(p) for p in paths], 8, place)).cached(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_function_without_fingerprint_is_not_cached(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fingerprint"):
        Dataset(table, lambda rows: torch.zeros(len(rows), 1, 4, 4)).cached(tmp_path)


@pytest.mark.parametrize(("change", "stat"), [("time", "st_mtime_ns"), ("length", "st_size")])
def test_a_cache_is_stale_if_either_time_or_length_changed(
    change: str, stat: str, files: Radiographs
) -> None:
    path, rows = Path(files.paths[0]), np.arange(5)
    before, status = files.fingerprint(rows), path.stat()
    if change == "length":
        path.write_bytes(path.read_bytes() + b" ")
    later = status.st_mtime_ns + (10**9 if change == "time" else 0)
    os.utime(path, ns=(status.st_atime_ns, later))
    unequal = {
        name
        for name in ("st_mtime_ns", "st_size")
        if getattr(path.stat(), name) != getattr(status, name)
    }

    assert unequal == {stat}
    assert files.fingerprint(rows) != before


def test_a_cache_may_be_read_by_whom_the_umask_allows(
    table: pd.DataFrame, images: torch.Tensor, tmp_path: Path
) -> None:
    Dataset(table, images).cached(tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    (tmp_path / "plain").touch()

    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused(dtype: type, tmp_path: Path) -> None:
    Image.fromarray((pixels("x.tif") / 255).astype(dtype)).save(tmp_path / "x.tif")

    with pytest.raises(InputError, match=r"x\.tif cannot be decoded \(pixels of mode '[FI]'"):
        Radiographs([str(tmp_path / "x.tif")], 8, place)(np.arange(1))


def test_16_bits_of_a_tiff_keep_their_range(tmp_path: Path) -> None:
    Image.fromarray(pixels("x.tif").astype(np.uint16) * 257).save(tmp_path / "x.tif")

    assert np.array_equal(decode(tmp_path / "x.tif"), pixels("x.tif"))


def test_an_image_of_far_too_many_pixels_is_broken(
    files: Radiographs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)

    assert list(failures(files, range(5))[0]) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"0\.png cannot be decoded.*decompression bomb"):
        files(np.arange(1))


def test_images_of_16_bits_in_an_array_are_refused(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"images are torch\.uint16; give uint8"):
        Dataset(table, np.zeros((5, 4, 4), np.uint16))


def test_nothing_selected_is_nothing_shown(
    table: pd.DataFrame, files: Radiographs, images: torch.Tensor, tmp_path: Path
) -> None:
    for source in (files, Stored(images, 8)):
        data = Dataset(table, source)
        none = data.select(data.table[:0])

        assert data[[]].shape == none[:].shape == (0, 1, 8, 8)
        assert list(none.batches()) == []
        with pytest.raises(ValueError, match=r"0 images of 0 patients.* has no image to cache"):
            none.cached(tmp_path / "cache")


@pytest.mark.parametrize("row", [-1, 5, 0.5])
def test_a_cohort_with_a_row_that_is_not_there_is_refused(
    row: float, table: pd.DataFrame, images: torch.Tensor
) -> None:
    data = Dataset(table, images)

    with pytest.raises(ValueError, match=f"no part of .*: there is no row {row}"):
        data.select(data.table.iloc[[4]].set_axis([row]))
