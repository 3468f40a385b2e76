"""NIH ChestX-ray14: radiographs from the NIH Clinical Center, unrestricted with attribution.

Wang et al., *ChestX-ray8: hospital-scale chest X-ray database and benchmarks on
weakly-supervised classification and localization of common thorax diseases*, CVPR 2017,
pp. 3462-3471; https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfchest.data.chexmask import lung_sizes
from cfchest.data.codes import ages, sexes, views, years_of
from cfchest.data.dataset import FINDINGS, Dataset
from cfchest.data.layouts import LAYOUTS
from cfchest.data.ledger import Ledger
from cfchest.data.loading import DEFAULTS, LoadOptions, assemble, assemble_stored, located
from cfchest.data.named import image_files
from cfchest.data.sheet import Sheet, read_sheet, readable
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.marks import check_place

_HEALTHY = "No Finding"
_PUBLISHED = {
    "image": "Image Index", "patient": "Patient ID", "followup": "Follow-up #",
    "age": "Patient Age", "view": "View Position", "findings": "Finding Labels",
}  # fmt: skip  # the sex is called Patient Gender or Patient Sex
_CACHE = {name: name for name in (*_PUBLISHED, "sex")} | {"findings": "finding_labels"}


def load_nih(root: str | Path, options: LoadOptions = DEFAULTS) -> Dataset:
    """Load NIH ChestX-ray14: as published, resized by others, or a cache of small images.

    ``root`` holds ``Data_Entry_2017_v2020.csv`` (or ``Data_Entry_2017.csv``, or the
    ``sample_labels.csv`` of a sample), and the images are anywhere up to three folders below, by
    their names; resized sets may hold JPEGs of the same names. ``train_val_list.txt`` and
    ``test_list.txt``, where present, give the column ``split``. A cache holds ``metadata.csv``
    and ``images_<side>.npz``, whose row i is row i of the table.

    All views are frontal. The labels, all of ``FINDINGS``, are mined from text and are never
    uncertain: a finding that is not listed is absent. There is no race. The column ``file`` has
    the published name of each image. Set missing and counted: an age of 0 or above 120 (the first
    edition has some of 400 years), a sex that is not stated, all races, lung sizes without a
    trusted mask, the split of images in neither list. Counted are also images that are found
    under another ending, or twice. A finding that is none of the published ones raises.

    Args:
        root: The folder.
        options: What is left to you; no label is uncertain or blank.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    root, ledger = Path(root), Ledger("NIH ChestX-ray14", source="nih")
    if (root / "metadata.csv").is_file():
        return _load_cache(root, ledger, options)
    path = LAYOUTS["nih"]["table"].path(root)
    sheet = read_sheet(path, _PUBLISHED.values(), optional=("Patient Gender", "Patient Sex"))
    sex = "Patient Sex" if sheet.frame["Patient Gender"].isna().all() else "Patient Gender"
    sheet = sheet.renamed({**_PUBLISHED, "sex": sex})
    table, splits = _records(sheet, ledger, options), _listed_splits(root)
    if splits:
        table["split"] = table.image.map(splits)
        ledger.mark("set missing", "split: in no list", sheet, table.split.isna(), "image")
    table["image"] = image_files(root, table.image, ledger)
    return assemble(table, ledger, options)


def _load_cache(root: Path, ledger: Ledger, options: LoadOptions) -> Dataset:
    sheet = read_sheet(root / "metadata.csv", _CACHE.values(), optional=("split",))
    split, sheet = sheet.frame.split, sheet.renamed(_CACHE)
    table = _records(sheet, ledger, options)
    if split.notna().any():
        table["split"] = split
    archives = sorted(root.glob("images_*.npz"))
    if len(archives) != 1:
        raise InputError(f"{root} should hold one 'images_<side>.npz' but has {len(archives)}")
    return assemble_stored(table, ledger, options, archives[0], sheet)


def _records(sheet: Sheet, ledger: Ledger, options: LoadOptions) -> pd.DataFrame:
    sheet.filled("image", "a file name")
    sheet.unique("image")
    ledger.read = len(sheet.frame)
    # The first edition writes an age of 58 years as 058Y, and has infants of some months.
    frame = sheet.frame.assign(age=years_of(sheet.frame.age))
    sheet = Sheet(sheet.path, frame, sheet.titles)
    image, patient = sheet.frame.image, _patients(sheet)
    ledger.add("set missing", "race", ["not published"], patient.nunique(), "patient")
    known = {"sex": sexes(sheet, "sex", ledger), "age": ages(sheet, "age", ledger)}
    known |= {"image": image, "patient": patient, "file": image.str.strip()}
    return located(
        sheet,
        lung_size=lung_sizes(options.masks, image, ledger, column="Image Index"),
        study=patient + "/" + sheet.filled("followup", "a number"),
        view=views(sheet, "view", ledger),
        **_listed(sheet),
        **known,
    )


def _patients(sheet: Sheet) -> pd.Series:
    """Patients as eight digits; ``1``, ``1.0`` and ``00000001`` are one and the same."""
    text = sheet.filled("patient", "a whole number")
    sheet.refuse(~text.str.fullmatch(r"\d+(\.0*)?").astype(bool), "patient", "a whole number")
    return text.map(lambda number: f"{int(number.split('.')[0]):08d}")


def write_cache(data: Dataset, folder: Path) -> Path:
    """Write images of one size, and all that :func:`load_nih` reads of their table, to a folder.

    The images are held in memory. They are rounded to bytes; what was set missing stays missing.
    """
    check_place(folder / "metadata.csv", data.restricted)
    folder.mkdir(parents=True, exist_ok=True)
    table, published = data.table, {name: text for text, name in _published().items()}
    listed = table[list(published)].rename(columns=published)
    found = [[name for name, there in row.items() if there] for row in listed.to_dict("records")]
    metadata = {"image": table.file, "patient": table.patient, "age": table.age}
    metadata |= {"followup": table.study.str.split("/").str[1], "view": table.view}
    metadata |= {"sex": table.sex.map({0: "M", 1: "F"})}
    metadata |= {"finding_labels": ["|".join(names) or _HEALTHY for names in found]}
    metadata |= {"split": table.split} if "split" in table else {}
    images = torch.cat([(batch.x[:, 0] * 255).round().byte() for batch in data.batches(256)])
    file, side = io.BytesIO(), images.shape[-1]
    np.savez_compressed(file, images=images.numpy(), image=table.file.to_numpy(str))
    write_atomically(folder / f"images_{side}.npz", file.getvalue())
    write_atomically(folder / "metadata.csv", pd.DataFrame(metadata).to_csv(index=False).encode())
    return folder


def _published() -> dict[str, str]:
    """The findings of the schema by their published names."""
    published = {finding.capitalize(): finding for finding in FINDINGS}
    published["Pleural_Thickening"] = published.pop("Pleural_thickening")
    return published


def _listed(sheet: Sheet) -> Mapping[str, pd.Series]:
    """Every finding as 0 or 1, by its name in the schema."""
    published = _published()
    listed = sheet.frame.findings.fillna("").str.split("|").map(frozenset)
    strange = ~listed.map({*published, _HEALTHY}.issuperset).astype(bool)
    known = ", ".join(sorted({*published, _HEALTHY}))
    sheet.refuse(strange, "findings", f"findings among {known}")
    both = listed.map(lambda some: _HEALTHY in some and len(some) > 1).astype(bool)
    sheet.refuse(both, "findings", f"{_HEALTHY}, or findings")
    return {
        finding: listed.map(lambda some, name=name: float(name in some))
        for name, finding in published.items()
    }


def _listed_splits(root: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for split in ("train", "test"):
        path = LAYOUTS["nih"][split].find(root)
        if path is not None:
            with readable(path):
                names = path.read_text(encoding="utf-8").split()
            twice = next((name for name in names if splits.get(name, split) != split), None)
            if twice is not None:
                raise InputError(f"{twice} is in train_val_list.txt and in {path}")
            splits |= dict.fromkeys(names, split)
    return splits
