"""The generators of the study of real radiographs, and what predictors say of what they draw."""

from collections.abc import Callable

from cfbook.real.planted import LABEL, planned, planned_in_folds, predictor
from cfbook.real.work import Work
from cfchest.graph import VIEWS
from cfcore.generator import Generator
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions, load_all, save_all
from cfscm.learning import learn, untrained
from cfscm.soundness.baselines import MeanShift

_AGES = (35, 50, 65)  # worlds of the test: near quartiles of the training patients
_PARENTS = VIEWS.parents("image")


def generator(work: Work, part: str = "", say: Callable[[str], None] = print) -> Generator:
    """The generator with a flow, found trained or trained now on a part's own training patients.

    All of them teach it: nothing is stopped or chosen on others.
    """
    words = f"{part} " if part else ""
    data = work.chosen(work.rows[f"{words}fit"])
    path = work.made / "generators" / f"flow-{part or 'train'}" / "generator.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = untrained(VIEWS, "image", data[[0]], LABEL, seed=0)
    how = {"budget": work.sizes.budget, "seed": 0, "made_of": work.identity, "say": say}
    how["device"] = work.device
    return learn(made, data, path, **how)[0].eval()


def mean_shift(work: Work, part: str = "") -> Generator:
    """The closed-form baseline: the mean image of the new parents in place of that of the old."""
    words = f"{part} " if part else ""
    return MeanShift.fit(VIEWS, tuple(_PARENTS), work.part(f"{words}fit"))


def worlds_of(part: str = "") -> Grid:
    """The worlds, equally likely: both sexes and both views; of the test patients at three ages.

    In the folds every patient keeps their own age.
    """
    values = {"sex": [0, 1], "view": [0, 1]} | ({} if part else {"age": list(_AGES)})
    return Grid.product(values, graph=VIEWS)


def scores_in_worlds(work: Work, part: str = "") -> dict[str, Predictions]:
    """What every predictor says of the test patients, or of those of a fold, in all worlds.

    Row by row these are the images of ``work.rows[part or "test"]``.
    """
    path = work.made / "predictions" / f"{part or 'test'}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        plan = planned_in_folds(work.sizes) if part else planned(work.sizes)
        models = {planted.name: predictor(work, planted, part) for planted in plan}
        how = {"resume_dir": path.with_suffix(".shards"), "provenance": {"part": part or "test"}}
        how["device"] = work.device
        data = work.part(part or "test")
        found = marginalise(generator(work, part), models, data, worlds_of(part), **how)
        save_all(found, path, half=True)
    return load_all(path)
