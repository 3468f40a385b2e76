"""The real radiographs of the NIH cache, where there is one (CFCORE_NIH says where)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cfchest.balance import balanced
from cfchest.cohorts import _assert_disjoint, composition, split
from cfchest.data import Dataset, load_nih

BESIDE = Path(__file__).parents[2] / "../shared/nih_cxr14"
CACHE = Path(os.environ.get("CFCORE_NIH", BESIDE))

pytestmark = pytest.mark.skipif(
    not (CACHE / "metadata.csv").is_file(),
    reason=f"no NIH ChestX-ray14 cache at {CACHE.name!r}; set CFCORE_NIH to its folder",
)


@pytest.fixture(scope="module")
def nih() -> Dataset:
    return load_nih(CACHE)


def test_counts_are_those_of_the_first_archive(nih: Dataset) -> None:
    table = nih.table

    assert (len(table), table.patient.nunique(), table.effusion.sum()) == (4999, 1335, 487)
    assert table.split.value_counts().to_dict() == {"train": 4021, "val": 978}
    assert set(table.view) == {"AP", "PA"}
    assert table[["sex", "age", "effusion"]].notna().all(axis=None)
    assert table.race.isna().all()


def test_images_look_like_radiographs(nih: Dataset) -> None:
    x = nih[:256]

    assert x.shape == (256, 1, 64, 64)
    assert 0.4 < x.mean() < 0.6
    assert x.std() > 0.15
    assert not torch.equal(x[0], x[1])


def test_its_split_and_ours_are_by_patient(nih: Dataset) -> None:
    _assert_disjoint(dict(list(nih.table.groupby("split"))))
    _assert_disjoint(split(nih.table, {"train": 0.8, "val": 0.1, "test": 0.1}, seed=0))


def test_the_balanced_set_is_balanced(nih: Dataset) -> None:
    cohort = balanced(nih.table, seed=0)
    parts = composition(cohort)
    men, women = (parts.loc[sex].images.sum() for sex in ("male", "female"))

    assert men == women
    assert (parts.diseased * parts.images.iloc[0] == parts.diseased.iloc[0] * parts.images).all()
    assert nih.select(cohort)[:4].shape == (4, 1, 64, 64)


def test_a_small_network_reads_sex_off_real_radiographs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks/nih_readers.py"
    call = [sys.executable, script, CACHE, "--variables", "sex", "--json", tmp_path / "auc.json"]
    subprocess.run(call, check=True, capture_output=True)

    assert json.loads((tmp_path / "auc.json").read_text())["sex AUC"] >= 0.9
