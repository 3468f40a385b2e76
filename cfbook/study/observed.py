r"""What needs observed images only, computed on many further patients.

Gaps of the AUC and of scores, and observed risks, need no counterfactual: 12,000 patients cost less
than 1,000 with sixteen worlds each. What the predictors say of them is not kept, but each statistic
of each predictor is, with replicates in which the patients are resampled.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from cfbook.paths import DATA
from cfbook.study.cohorts import further
from cfbook.study.presets import Preset
from cfbook.study.runs import BETAS, PredictorId, Run, all_runs, kept_file
from cfbook.study.statistics import (
    MEAN_AGES,
    Study,
    areas,
    mean_score,
    pooled_calibration,
    without_worlds,
)
from cfcore.files import write_atomically
from cfcore.metrics import cross_entropy_from_logits
from cfcore.resampling import check_resampling

_FOLDER = DATA / "observed"
_NEAR = 5  # years around an age


def collect_observed(preset: Preset, out: Path, *, replicates: int = 200) -> list[Path]:
    """Compute the main run of each setting, and keep it in a file."""
    runs = [run for run in all_runs(preset) if run.is_main]
    return [
        _write_study(_observed_study(run, replicates), out / observed_file(run))
        for run in tqdm(runs, desc="observed")
    ]


def read_observed(run: Run, *, folder: Path = _FOLDER, replicates: int = 200) -> Study:
    """The study of a run on further patients: read if it is there, computed if not.

    It needs no generator, so that one file serves all of them.
    """
    run = replace(run, generator="oracle") if run.preset.folders is None else run
    path = kept_file(run, [folder], observed_file)
    if path is None:
        return _observed_study(run, replicates)
    return _read_study(path).only(range(run.preset.trainings))


def joined(main: Study, wide: Study) -> Study:
    """The same predictors, with whatever needs no counterfactual from the further patients."""
    rows = [wide.members.index(member) for member in main.members]
    length = next(iter(main.values.values())).shape[1]
    values = dict(main.values)
    for name in wide.values.keys() & values.keys():
        own = wide.values[name][rows, :length]
        blank = ((0, 0), (0, length - own.shape[1]))
        values[name] = np.pad(own, blank, constant_values=np.nan)
    return replace(main, values={name: values[name] for name in main.values})


def observed_file(run: Run) -> str:
    """The file of a run."""
    return f"{run.preset.name}-{run.name}-{run.digest}.safetensors".replace(" ", "-")


def _observed_study(run: Run, replicates: int) -> Study:
    """The statistics of all predictors of a run, those with offsets among them."""
    data = further(run.where.test, run.preset, run.testset)
    readers = {member: recipe.obtain() for member, recipe in run.recipes().items()}
    with torch.inference_mode():
        said = [torch.stack([g(b.x, b.pa) for g in readers.values()]) for b in data.batches(128)]
    logits = dict(zip(readers, torch.cat(said, dim=1).double(), strict=True))
    pa = dict(data.parents)
    y = pa.pop("effusion").long()
    if "sex" in run.families:
        basic = [
            (member.seed, logit) for member, logit in logits.items() if member.family == "basic"
        ]
        logits |= {
            PredictorId("logit", beta, seed): logit + beta * pa["sex"]
            for seed, logit in basic
            for beta in BETAS
        }
    sampling = check_resampling(len(y), None, replicates, replicates, level=0.95, seed=1)
    weight = torch.cat(list(sampling.counts())).double()
    weight = torch.cat((torch.ones_like(weight[:1]), weight))
    every = [_statistics(logit, y, pa, weight) for logit in logits.values()]
    values = {name: np.stack([one[name] for one in every]) for name in every[0]}
    return Study(tuple(logits), values, len(y))


def _statistics(
    logit: Tensor, y: Tensor, pa: Mapping[str, Tensor], weight: Tensor
) -> dict[str, np.ndarray]:
    """Every statistic of one predictor, each of shape (1 + B,)."""
    score, share = logit.sigmoid(), weight / weight.sum(dim=1, keepdim=True)
    found = {"R_orig": share @ cross_entropy_from_logits(logit, y)}
    found["ECE_orig"] = pooled_calibration(score[:, None], y, torch.ones(1), share)
    for age in MEAN_AGES:
        near = ((pa["age"] - age).abs() <= _NEAR).double()
        found[f"mean_{age}"] = mean_score(weight * near, score)
        found[f"ill_{age}"] = mean_score(weight * near, y.double())
    found = {name: values.numpy() for name, values in found.items()}
    within = areas(logit, y, pa, weight)
    found |= {name: within[name] for name in within if name not in ("AUC_men", "AUC_women")}
    return found | without_worlds(logit, y, pa, weight)


def _write_study(study: Study, path: Path) -> Path:
    """A study as a file: estimates, and in half precision how far replicates are from them.

    What is the same for all predictors is written once.
    """
    tensors = {}
    for name, values in study.values.items():
        same = np.array_equal(values, np.broadcast_to(values[:1], values.shape), equal_nan=True)
        whole = torch.from_numpy(values[:1] if same else values)
        tensors[f"{name}.estimate"] = whole[:, 0].float()
        tensors[f"{name}.deviation"] = (whole[:, 1:] - whole[:, :1]).half()
    who = ";".join(f"{m.family},{m.strength:g},{m.seed}" for m in study.members)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, save(tensors, {"members": f"{study.patients};{who}"}))


def _read_study(path: Path) -> Study:
    with safe_open(path, "pt") as file:
        patients, *who = file.metadata()["members"].split(";")
        found = {name: file.get_tensor(name).double() for name in file.keys()}  # noqa: SIM118
    names = [name.removesuffix(".estimate") for name in found if name.endswith(".estimate")]
    values = {}
    for name in names:
        estimate = found[f"{name}.estimate"][:, None]
        every = torch.cat((estimate, estimate + found[f"{name}.deviation"]), 1).numpy()
        values[name] = np.broadcast_to(every, (len(who), every.shape[1])).copy()
    kinds = (one.split(",") for one in who)
    members = tuple(PredictorId(f, float(s), int(seed)) for f, s, seed in kinds)
    return Study(members, values, int(patients))
