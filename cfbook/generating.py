"""The commands for learned generators: to train them, to try them, to hide labels from them."""

import argparse
from pathlib import Path

from cfbook.commands import add_source, sizes


def add_generating(commands: "argparse._SubParsersAction") -> None:
    """All commands of this file."""
    add_train(commands)
    add_results(commands)
    add_missing(commands)


def add_train(commands: "argparse._SubParsersAction") -> None:
    """``cfcore train``."""
    command = commands.add_parser(
        "train",
        help="train the generator of counterfactuals",
        description="Train the deep structural causal model of a preset and keep it, unless it is "
        "there. Killed, it goes on from its last checkpoint when it is started again, to the same "
        "weights.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to keep it")
    add_source(command, preset="book")
    command.add_argument("--hospital", default="C", metavar="H", help="C or M (default: C)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    command.set_defaults(command=train)


def train(arguments: argparse.Namespace) -> None:
    """Train the generator, or find it."""
    from cfbook.job import check_device
    from cfbook.study.generators import GeneratorRecipe, obtain_generator
    from cfcore.files import check_writable

    check_device(arguments.device)
    recipe = GeneratorRecipe(sizes(arguments), arguments.hospital, arguments.seed)
    out = check_writable(arguments.out)
    obtain_generator(recipe, committed=out, cache=out, device=arguments.device, progress=True)
    print(out / recipe.file)


def add_results(commands: "argparse._SubParsersAction") -> None:
    """``cfcore results``."""
    command = commands.add_parser(
        "results",
        help="try learned generators and put them into the tables",
        description="Measure how sound the generators of a preset are, marginalise all settings "
        "with them, and write the small tables that the chapters read. What is missing is trained.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    add_source(command, preset="book")
    command.add_argument(
        "--generators", type=int, default=3, metavar="N", help="trainings of it (default: 3)"
    )
    command.add_argument(
        "--patients", type=int, metavar="N", help="(default: 300, and 2,000 for --leak)"
    )
    command.add_argument(
        "--noise-patients", type=int, default=500, metavar="N", help="for noise (default: 500)"
    )
    command.add_argument(
        "--predictions", type=Path, metavar="DIR", help="where predictions are looked for first"
    )
    command.add_argument(
        "--kept", action="store_true", help="only add the empirical q, with weights that are kept"
    )
    command.add_argument(
        "--readings",
        action="store_true",
        help="only compare what may be held as the noise of an image, on validation patients",
    )
    command.add_argument(
        "--leak",
        action="store_true",
        help="only probe the noise for the parents that it should not know, on test patients",
    )
    command.set_defaults(command=results)


def results(arguments: argparse.Namespace) -> None:
    """Write the tables of the learned generators."""
    from cfbook.study.leak import LEAK, generator_leaks
    from cfbook.study.results import (
        collect,
        collect_kept,
        collect_readings,
        collect_soundness,
        learned_runs,
        write_table,
    )
    from cfcore.files import check_writable

    preset, out = sizes(arguments), check_writable(arguments.out)
    seeds, patients = range(arguments.generators), arguments.patients or 300
    if arguments.kept:
        written = [collect_kept(preset, out)]
    elif arguments.leak:
        found = generator_leaks(preset, seeds, patients=arguments.patients or 2000)
        written = [write_table(found, out / LEAK)]
    elif arguments.readings:
        written = [collect_readings(preset, seeds, out, patients=patients)]
    else:
        sizes_of = {"patients": patients, "noise_patients": arguments.noise_patients}
        written = collect_soundness(preset, seeds, out, **sizes_of)
        written += collect(learned_runs(preset, seeds), out, folder=arguments.predictions)
    for path in written:
        print(path)


def add_missing(commands: "argparse._SubParsersAction") -> None:
    """``cfcore missing``."""
    command = commands.add_parser(
        "missing",
        help="train generators on partly labelled images and put them into tables",
        description="Train generators of which a share of the labels is known, try them, and write "
        "the small tables that the chapter on missing labels reads. A table grows by one generator "
        "at a time; what is in it already is not trained again.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    add_source(command, preset="book")
    command.add_argument(
        "--part",
        choices=["curve", "labels", "trust", "model", "figure", "stages", "label-free"],
        required=True,
        help="a curve over the share of labels; a fifth of them, with and without unlabelled "
        "images; the same with the paper's weights; what one model imputes; the figure of its "
        "examples; counterfactual regularisation; stability with the label of effusion hidden",
    )
    command.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="N", help="(default: 0)"
    )
    command.add_argument(
        "--generators", type=Path, metavar="DIR", help="where trained generators are kept"
    )
    command.add_argument(
        "--patients", type=int, default=300, metavar="N", help="test patients (default: 300)"
    )
    command.set_defaults(command=missing)


def missing(arguments: argparse.Namespace) -> None:
    """Write one of the tables of missing labels."""
    from cfbook.study import label_free, last_figure, missing_labels
    from cfbook.study.generators import CACHE
    from cfcore.files import check_writable

    out, preset, seeds = check_writable(arguments.out), sizes(arguments), arguments.seeds
    folder, patients = arguments.generators or CACHE, arguments.patients
    recipe = missing_labels.label_recipes(preset, seeds)[0]
    if arguments.part == "label-free":
        written = [label_free.collect_label_free(preset, out / label_free.TABLE)]
    elif arguments.part == "figure":
        panels = out / last_figure.EXAMPLES
        written = [last_figure.collect_examples(recipe, panels, folder=folder)]
    elif arguments.part == "model":
        data = missing_labels.trial_patients(preset, patients)
        written = missing_labels.collect_model(recipe, out, data, folder=folder)
    else:
        file, recipes = {
            "curve": (missing_labels.CURVE, missing_labels.curve_recipes),
            "labels": (missing_labels.LABELS, missing_labels.label_recipes),
            "trust": (missing_labels.LABELS, missing_labels.trust_recipes),
            "stages": (missing_labels.ABLATION, missing_labels.stage_recipes),
        }[arguments.part]
        made, path = recipes(preset, seeds), out / file
        written = [missing_labels.collect_trials(made, path, folder=folder, patients=patients)]
    for path in written:
        print(path)
