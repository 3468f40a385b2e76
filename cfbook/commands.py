"""The commands that make the experiments, one predictor or one test set at a time."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from cfcore.checks import InputError

if TYPE_CHECKING:
    from cfbook.study.recipes import Preset
    from cfchest.folders import Folders

FOLDERS = {
    "chexpert": ("FOLDER", "CheXpert, the real hospital C; instead of the phantom"),
    "mimic": ("FOLDER", "MIMIC-CXR-JPG, the real hospital M; instead of the phantom"),
    "mimic-iv": ("FOLDER", "MIMIC-IV, where sexes and ages of hospital M are"),
    "chexpert-masks": ("FILE.csv", "the lungs of CheXpert, by CheXmask"),
    "mimic-masks": ("FILE.csv", "the lungs of MIMIC-CXR, by CheXmask"),
}


def add_source(command: argparse.ArgumentParser, *, preset: str) -> None:
    """The options that say whose images are used, how many, and where to compute."""
    command.add_argument(
        "--preset",
        default=preset,
        metavar="NAME",
        help=f"smoke, curve, book or paper (default: {preset})",
    )
    for name, (metavar, words) in FOLDERS.items():
        command.add_argument(f"--{name}", type=Path, metavar=metavar, help=words)
    command.add_argument("--device", default="cpu", help="where to compute (default: cpu)")


def folders(arguments: argparse.Namespace) -> "Folders | None":
    """The folders of real patients that were named, or None if none was."""
    from cfchest.folders import Folders

    given = Folders(**{each.name: getattr(arguments, each.name) for each in fields(Folders)})
    return None if given == Folders() else given


def add_predictor(commands: "argparse._SubParsersAction") -> None:
    """``cfcore predictor``."""
    command = commands.add_parser(
        "predictor",
        help="train one predictor of the experiments",
        description="Train one predictor of the experiments and keep it, unless it is there. A "
        "training that fails leaves what it had as *.failed.safetensors.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to keep it")
    add_source(command, preset="book")
    command.add_argument("--hospital", default="C", metavar="H", help="C or M (default: C)")
    command.add_argument(
        "--family",
        default="basic",
        metavar="F",
        help="basic, sex, age, 'control sex' or 'control age' (default: basic)",
    )
    command.add_argument("--strength", type=float, default=0.0, metavar="S", help="of the bias")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    command.add_argument(
        "--images", type=int, metavar="N", help="of basic: train on as many images only"
    )
    command.set_defaults(command=predictor)


def predictor(arguments: argparse.Namespace) -> None:
    """Train one predictor, or find it."""
    from cfbook.job import check_device
    from cfbook.study.recipes import Recipe, obtain
    from cfcore.files import check_writable

    check_device(arguments.device)
    recipe = Recipe(
        sizes(arguments),
        arguments.hospital,
        arguments.family,
        arguments.strength,
        arguments.seed,
        arguments.images,
    )
    out = check_writable(arguments.out)
    obtain(recipe, committed=out, cache=out, device=arguments.device, progress=True)
    print(out / recipe.file)


def add_setting(commands: "argparse._SubParsersAction") -> None:
    """``cfcore setting``."""
    command = commands.add_parser(
        "setting",
        help="marginalise the predictors of a setting over a test set",
        description="Run all predictors of one of the paper's settings on every patient of a test "
        "set in every world, and keep their logits in one file. Predictors that are missing are "
        "trained; a run that was stopped goes on where it was.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to keep it")
    add_source(command, preset="book")
    command.add_argument(
        "--setting", default="C->C", metavar="S", help="C->C, M->M or C->M (default: C->C)"
    )
    command.add_argument(
        "--testset",
        metavar="T",
        help="balanced, natural, shares-sex or shares-age (default: that of the setting)",
    )
    command.add_argument(
        "--effect", choices=["direct", "total"], default="direct", help="(default: direct)"
    )
    command.add_argument(
        "--trainings", type=int, default=3, metavar="N", help="of each predictor (default: 3)"
    )
    command.add_argument(
        "--predictors", type=Path, metavar="DIR", help="where trained predictors are kept"
    )
    command.add_argument(
        "--generator",
        default="oracle",
        metavar="G",
        help="oracle, learned-0 (with its seed), or MODULE:NAME of your own (default: oracle)",
    )
    command.add_argument(
        "--max-images", type=int, default=144, metavar="B", help="images in flight (default: 144)"
    )
    command.set_defaults(command=setting)


def setting(arguments: argparse.Namespace) -> None:
    """Fill the table of one test set."""
    from cfbook.job import check_device, imported
    from cfbook.study.runs import Run, fill, find_setting

    check_device(arguments.device)
    run = Run(
        sizes(arguments),
        arguments.setting,
        arguments.testset or find_setting(arguments.setting).testset,
        arguments.effect,
        arguments.generator,
    )
    path = fill(
        run,
        arguments.out / run.file,
        generator=imported(arguments.generator) if ":" in arguments.generator else None,
        predictors=arguments.predictors,
        device=arguments.device,
        max_images=arguments.max_images,
        progress=True,
    )
    print(path)


def sizes(arguments: argparse.Namespace) -> "Preset":
    """The preset that was named, on the patients that were named."""
    from cfbook.study.recipes import preset
    from cfcore.marks import check_place

    given, changes = folders(arguments), {}
    if given is not None:
        check_place(arguments.out / "any", given.restricted)
        changes["folders"] = given
    if "trainings" in arguments:
        changes["trainings"] = arguments.trainings
    return preset(arguments.preset, **changes)


def renamed(words: Sequence[str]) -> dict[str, str]:
    """Columns as named on the command line.

    Example:
        >>> renamed(["effusion=ill"])
        {'effusion': 'ill'}
    """
    pairs = [word.partition("=") for word in words]
    for name, _, column in pairs:
        if not name or not column:
            raise InputError(f"{name!r} is not of the form NAME=COLUMN", column="columns")
    return {name: column for name, _, column in pairs}


def add_check_data(commands: "argparse._SubParsersAction") -> None:
    """``cfcore check-data``."""
    command = commands.add_parser(
        "check-data",
        help="check a folder of real radiographs, and say what is missing",
        description="Look for every file of a published data set, read its tables, count patients, "
        "images and labels, and open some of the images. Exits with 0 if it can be used as it is, "
        "and with 2 and a list of what to mend if it cannot.",
    )
    command.add_argument(
        "kind",
        choices=["chexpert", "mimic", "nih", "table", "chexmask"],
        help="what the path should hold: a published data set, a table of your own images (CSV), "
        "or the masks of CheXmask (CSV)",
    )
    command.add_argument("path", type=Path, metavar="PATH", help="the folder, or the CSV file")
    command.add_argument(
        "--mimic-iv", type=Path, metavar="FOLDER", help="of mimic: the folder of MIMIC-IV"
    )
    command.add_argument(
        "--masks", type=Path, metavar="FILE.csv", help="the lungs of the data set, by CheXmask"
    )
    command.add_argument(
        "--images", type=Path, metavar="FOLDER", help="of table: where its images are, or an .npz"
    )
    command.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="of table: what it calls a column, such as effusion=ill",
    )
    command.add_argument(
        "--open", type=int, default=100, metavar="N", help="images to open (default: 100)"
    )
    command.add_argument("--open-all", action="store_true", help="open every image; takes long")
    command.set_defaults(command=check_data)


def check_data(arguments: argparse.Namespace) -> None:
    """Print what was found, and raise if it cannot be used."""
    from cfchest.data.check import inspect_data
    from cfcore.checks import check_count

    opened = check_count(arguments.open, "open")
    found = inspect_data(
        arguments.kind,
        arguments.path,
        mimic_iv=arguments.mimic_iv,
        masks=arguments.masks,
        images=arguments.images,
        columns=renamed(arguments.columns),
        opened=None if arguments.open_all else opened,
    )
    print(found)
    if not found.ready:
        mend = len(found.problems)
        raise InputError(f"{arguments.path} cannot be used yet; to be mended: {mend}")
