"""Any data: images of any shape, parents and labels by name, from memory or from a table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable, as_codes
from cfcore.interventions import Grid
from cfcore.patients import Patients

SITE = CausalGraph([Variable("site", "categorical", categories=("Oxford", "Lyon", "Rome"))])
NAN = float("nan")


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 6, 4, 5), (2, 4, 5)])
def test_images_and_volumes_keep_their_shape(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    data = Patients(x, {"age": [30, 40]}, weight=[1, 2], columns={"town": ["a", "b"]})

    assert torch.equal(data[:], x if x.ndim > 3 else x[:, None])
    assert torch.equal(next(data.batches(2)).pa["age"], torch.tensor([30.0, 40.0]))
    some = data.take([1])
    assert (some.patient, some.weight.item(), some.columns.town[0]) == (["1"], 2, "b")
    assert some.index.tolist() == [1], "an oracle finds the noise of the same row"
    assert data.fingerprint() != some.fingerprint() == data.take([0, 1]).take([1]).fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parents": {"age": [1, 2]}}, r"age: has 2 rows, but ill has 3"),
        ({"parents": {"age": ["1", "x", "2"]}}, r"age: must be real numbers"),
        ({"parents": {"age": [1, None, "old"]}}, r"age\[2\]: 'old' is not a number|age\[1\]"),
        ({"labels": {"ill": [0, 2, 1]}}, r"ill\[1\]: 2 is not a label, 0 or 1"),
        ({"parents": {"ill": [0, 0, 1]}}, r"ill\[1\]: 1 as a label, but 0 as a parent"),
        ({"parents": {"ill": [0, NAN, 1]}}, r"ill\[1\]: 1 as a label, but nan as a parent"),
        ({"patient": ["a", "b"]}, "patient: has 2 rows, but ill has 3"),
        ({"weight": [1, -1, 1]}, r"weight\[1\]: -1 is not a weight"),
        ({"columns": {"town": ["a"]}}, "town: has 1 rows, but ill has 3"),
        ({"images": torch.zeros(2, 1, 4, 4)}, "2 images for 3 rows"),
        ({"images": torch.zeros(3, 4)}, r"images have shape \(3, 4\)"),
        ({"images": 2 * torch.ones(3, 4, 4)}, "images are torch.float32 from 2 to 2"),
        ({"labels": {}}, "to count the rows"),
    ],
)
def test_what_cannot_be_right_is_refused_by_row_and_value(changes: dict, message: str) -> None:
    given = {"images": torch.zeros(3, 1, 4, 4), "parents": {}, "labels": {"ill": [0, 1, 1]}}

    with pytest.raises(InputError, match=message):
        Patients(**(given | changes))


def test_labels_may_be_missing_where_the_parent_is() -> None:
    data = Patients(torch.zeros(2, 4, 4), {"ill": [0, NAN]}, {"ill": [0, NAN]})

    assert data.labels["ill"].isnan().tolist() == [False, True]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for row in range(3):
        Image.new("RGB", (6, 4), (50 * row, 0, 255)).save(tmp_path / f"00{row}.png")
    frame = pd.DataFrame({"file": [f"00{row}.png" for row in (2, 0, 1)], "id": ["07", "07", "8"]})
    frame.assign(site=["Rome", "Lyon", None], ill=[1, 0, 1]).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


WANTED = {"image": "file", "parents": ["site"], "labels": ["ill"], "patient": "id"}


def test_a_table_of_files_in_colour_follows_the_categories_of_the_graph(table: Path) -> None:
    data = Patients.from_table(table, **WANTED, graph=SITE)

    assert data.patient == ["07", "07", "8"], "identifiers are text"
    torch.testing.assert_close(data.parents["site"], torch.tensor([2, 1, NAN]), equal_nan=True)
    assert data[:].shape == (3, 3, 4, 6)
    assert (255 * data[0][0, :, 0, 0]).tolist() == [100, 0, 255]
    small = Patients.from_table(pd.read_csv(table), **WANTED, graph=SITE, root=table.parent, size=2)
    assert small[:].shape == (3, 3, 2, 2)


@pytest.mark.parametrize("graph", [None, SITE])
def test_a_missing_value_of_a_nullable_column_is_missing(graph: CausalGraph | None) -> None:
    codes = as_codes(pd.Series([2, pd.NA], dtype="Int64"), "site", graph)

    assert codes[0] == 2 and np.isnan(codes[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": None}, r"site\[0\]: 'Rome' is text: pass graph="),
        ({"parents": ["town"]}, r"t\.csv has no column 'town', but \['file', "),
        (
            {"graph": CausalGraph([Variable("site", "binary", ("Rome", "Bonn"))])},
            r"site\[1\].*'Lyo",
        ),
    ],
)
def test_a_table_that_says_too_little_is_refused(changes: dict, message: str, table: Path) -> None:
    with pytest.raises(InputError, match=message):
        Patients.from_table(table, **(WANTED | {"graph": SITE} | changes))


def test_a_file_that_is_no_image_or_has_another_mode_is_named(table: Path) -> None:
    data = Patients.from_table(table, **WANTED, graph=SITE)
    Image.new("RGBA", (6, 4)).save(table.parent / "000.png")
    with pytest.raises(InputError, match=r"000\.png cannot be .*'RGBA', expected .*t\.csv row 1"):
        data[1]
    (table.parent / "000.png").unlink()
    with pytest.raises(InputError, match=r"000\.png is missing; it is listed in .*t\.csv row 1"):
        data[1]


def test_an_archive_is_read_by_names_or_by_rows(table: Path, tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.uint8)[:, None, None, None].repeat(3, axis=1).repeat(4, axis=2)
    names = [f"00{row}.png" for row in range(3)]
    np.savez(tmp_path / "named.npz", images=x, image=names)
    np.savez(tmp_path / "plain.npz", images=x)
    given = WANTED | {"graph": SITE}

    named = Patients.from_table(table, **given, root=tmp_path / "named.npz")
    assert (255 * named[:][:, 0, 0, 0]).tolist() == [2, 0, 1]
    rows = pd.read_csv(table).assign(file=[1, 1, 0])
    plain = Patients.from_table(rows, **given, root=tmp_path / "plain.npz")
    assert (255 * plain[:][:, 0, 0, 0]).tolist() == [1, 1, 0]
    with pytest.raises(InputError, match=r"file\[0\]: .*plain\.npz has no image '002\.png'"):
        Patients.from_table(table, **given, root=tmp_path / "plain.npz")


# Grids of such patients


def test_probabilities_and_counts_weigh_a_grid() -> None:
    sites = {"site": ["Oxford", "Rome"]}

    assert Grid.product(sites, [0.2, 0.8], graph=SITE).q.tolist() == pytest.approx([0.2, 0.8])
    assert Grid.product(sites, [30, 10], graph=SITE).q.tolist() == [0.75, 0.25]
    for q, message in (([0.2, 0.2], "sum to 0.4"), ("equal", "is 'uniform' or 2 numbers")):
        with pytest.raises(InputError, match=message):
            Grid.product(sites, q, graph=SITE)


def test_a_category_that_the_grid_lacks_is_refused_and_weights_count() -> None:
    grid = Grid.product({"site": ["Oxford", "Rome"]}, graph=SITE)
    data = Patients(torch.zeros(3, 4, 4), {"site": [0, 2, 2]}, weight=[2, 1, 1])

    assert grid.empirical(data).q.tolist() == [0.5, 0.5]
    table = pd.DataFrame({"site": ["Rome", "Oxford"], "count": [3, 1]})
    assert grid.external(table).q.tolist() == [0.25, 0.75]
    with pytest.raises(InputError, match=r"site\[1\]: 1 is not on the grid"):
        grid.external(table.replace("Oxford", "Lyon"))
    with pytest.raises(InputError, match=r"site\[1\]: site takes one of .* not 'Bonn'"):
        grid.external(table.replace("Oxford", "Bonn"))
    with pytest.raises(InputError, match=r"site\[0\]: missing"):
        grid.empirical({"site": [NAN, 0]})
    with pytest.raises(InputError, match=r"site\[0\]: 'Rome' is text: pass graph="):
        Grid.product({"site": ["Rome"]})
