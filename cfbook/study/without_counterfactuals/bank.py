r"""A bank of patients whose worlds are all computed once, from which test sets are drawn.

20,000 patients of hospital C as it is, drawn by a seed of their own: none of them trained,
stopped or tested anything else in the book. Of each the bank holds what the seven committed
predictors say of the observed image and in the sixteen worlds of the paper's grid with the oracle;
of the first 3,000 also with the other generators, for want of time. Of 60,000 further
patients, by another seed, it holds the observed image alone: pools of 8,000 drawn from 20,000 would
share two fifths of their patients, and what is found in many of them would be found in one.

================ ================================================================================
generator        images
================ ================================================================================
``oracle``       the truth: the direct effect, other parents and noise held
``learned``      the first training of the book's generator, direct effect
``overdrawn``    :math:`x + 2 (\tilde{x} - x)` with the oracle's :math:`\tilde{x}`, in [0, 1]
``wrong graph``  the oracle's total effect, in which lung size follows, taken for the direct one
``nothing``      the observed image in every world
================ ================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm import tqdm

from cfbook.paths import DATA
from cfbook.study.presets import Preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe
from cfbook.study.runs import STRENGTHS, PredictorId
from cfchest.data import Dataset, from_phantom
from cfchest.graph import paper_grid
from cfchest.phantom import Phantom
from cfcore.files import write_atomically
from cfcore.generator import Generator, Parents
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions, load_all, save_all
from cfcore.standardise.estimate import Pool
from cfscm.soundness.baselines import Derived

_PATIENTS = {"oracle": 20_000, "learned": 3_000, "overdrawn": 3_000, "wrong graph": 3_000}
_OBSERVED = 60_000
GENERATORS = ("oracle", "learned", "overdrawn", "wrong graph", "nothing")
_FOLDER = Path("runs") / "bank"
_EXAMPLE = DATA / "results"
_APART = 10  # added to the seed of the patients: those of the experiments are other ones
_BLOCK, _OBSERVED_BLOCK = 1_000, 20_000  # patients in a file
_IN_FLIGHT = 72  # images: what is fastest for seven small networks on one core


class _Overdrawn(Derived):
    """Draws twice the difference that the other generator draws."""

    def abduct(self, x: Tensor, pa: Parents, **how: object) -> dict[str, object]:
        """The noise of the other one, and the image."""
        return {"noise": super().abduct(x, pa, **how), "image": x}

    def predict(self, noise: Mapping[str, object], pa: Parents) -> Tensor:
        """The image with the difference twice, in [0, 1]."""
        x = noise["image"]
        return (x + 2 * (super().predict(noise["noise"], pa) - x)).clamp(0, 1)


@dataclass(frozen=True)
class Bank:
    """What is known of the patients of a bank, N of them in K worlds with P predictors.

    Args:
        table: The parents, ``y`` and ``patient`` of each row.
        predictors: The names of the predictors.
        observed: The observed logits, shape (N, P).
        made: The logits in the worlds by generator, each of shape (n, K, P), of the first n rows.
        grid: The worlds.
    """

    table: pd.DataFrame
    predictors: Sequence[str]
    observed: np.ndarray
    made: Mapping[str, np.ndarray]
    grid: Grid

    def __len__(self) -> int:
        return len(self.table)

    @property
    def worlds(self) -> dict[str, np.ndarray]:
        """What each world sets, each of shape (K,)."""
        return {name: values.double().numpy() for name, values in self.grid.values.items()}

    def first(self, count: int) -> "Bank":
        """The first patients alone."""
        made = {name: logits[:count] for name, logits in self.made.items()}
        some = {"table": self.table.iloc[:count], "observed": self.observed[:count]}
        return replace(self, made=made, **some)

    def count(self, generator: str) -> int:
        """How many patients a generator was tried on."""
        return len(self.made["oracle" if generator == "nothing" else generator])

    def logits(self, generator: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Logits of some rows in the worlds, shape (rows, K, P)."""
        if generator == "nothing":
            return np.repeat(self.observed[rows, None], len(self.grid), axis=1)
        return self.made[generator][rows]

    def losses(self, logits: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Cross-entropies of logits of some rows, of any further shape."""
        sign = 1 - 2 * self.table.y.to_numpy()[rows].astype(float)
        return np.logaddexp(0, sign.reshape(-1, *[1] * (logits.ndim - 1)) * logits)

    def frame(self, rows: np.ndarray, predictor: str) -> pd.DataFrame:
        """What is observed of some rows, each a patient of its own: a bank may be drawn from twice.

        The columns are ``logit``, the parents, ``y`` and ``patient``.
        """
        logit = self.observed[rows, self.predictors.index(predictor)].astype(float)
        names = [f"{place}-{row}" for place, row in enumerate(rows)]
        return self.table.iloc[rows].assign(logit=logit, patient=names).reset_index(drop=True)

    def pool(self, rows: np.ndarray) -> Pool:
        """The same rows as standardisation reads them."""
        return Pool.from_frame(self.frame(rows, self.predictors[0]), list(self.worlds))

    def predictions(self, generator: str, rows: np.ndarray, predictor: str) -> Predictions:
        """What a predictor says of some rows with a generator."""
        frame, at = self.frame(rows, predictor), self.predictors.index(predictor)
        known = {n: torch.tensor(frame[n].to_numpy(np.float32)) for n in self.table.columns[:-1]}
        logits = frame.logit.to_numpy(np.float32), self.logits(generator, rows)[..., at]
        given = map(torch.tensor, logits)
        known = {"y": known.pop("y"), "parents": known}
        values = dict(self.grid.values)
        return Predictions(*given, values, self.grid.q, patient=frame.patient.tolist(), **known)


def bank_recipes(preset: Preset) -> dict[str, PredictorRecipe]:
    """The seven predictors of seed 0, by their names in bundles."""
    kinds = [("basic", 0.0), *((name, s) for name in ("sex", "age") for s in STRENGTHS)]
    return {PredictorId(*kind, 0).name: PredictorRecipe(preset, "C", *kind) for kind in kinds}


def fill_bank(preset: Preset, *, most: int | None = None, folder: Path = _FOLDER) -> Path:
    """Compute the worlds of patients, block by block, and keep each block in a file.

    Args:
        most: Try no generator on more patients.
    """
    counts = {name: min(n, most or n) for name, n in _PATIENTS.items()}
    seed = preset.cohort + _APART
    cohort = Phantom(preset.size).sample(counts["oracle"], hospital="C", seed=seed)
    data, oracle = from_phantom(cohort), cohort.oracle
    readers = {name: recipe.obtain() for name, recipe in bank_recipes(preset).items()}
    for name in GENERATORS[:-1]:
        generator = {
            "learned": lambda: DetailedRecipe(preset).obtain(),
            "overdrawn": lambda: _Overdrawn(oracle),
        }.get(name, lambda: oracle)()
        effect = "total" if name == "wrong graph" else "direct"
        for start in tqdm(range(0, counts[name], _BLOCK), desc=name):
            out = folder / f"{name.replace(' ', '-')}-{start:06d}.safetensors"
            if not out.is_file():
                out.parent.mkdir(parents=True, exist_ok=True)
                last = min(start + _BLOCK, counts[name])
                _fill_block(generator, readers, data.take(range(start, last)), effect, out)
    return folder


def _fill_block(
    generator: Generator,
    readers: Mapping[str, object],
    data: Dataset,
    effect: str,
    out: Path,
) -> None:
    """Marginalise the predictors over patients and write what they say."""
    how = {"effect": effect, "max_images": _IN_FLIGHT}
    save_all(marginalise(generator, readers, data, paper_grid(), **how), out)


def fill_observed(preset: Preset, *, count: int = _OBSERVED, folder: Path = _FOLDER) -> Path:
    """Compute what the predictors say of the further patients, block by block."""
    readers = [recipe.obtain() for recipe in bank_recipes(preset).values()]
    seed = preset.cohort + _APART + 1
    data = from_phantom(Phantom(preset.size).sample(count, hospital="C", seed=seed))
    for start in tqdm(range(0, count, _OBSERVED_BLOCK), desc="observed"):
        out = folder / f"observed-{start:06d}.safetensors"
        if not out.is_file():
            some = data.take(range(start, min(start + _OBSERVED_BLOCK, count)))
            with torch.inference_mode():
                read = [torch.stack([g(b.x, b.pa) for g in readers], 1) for b in some.batches()]
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(out, save({"logit": torch.cat(read), **some.parents}))
    return folder


def read_bank(folder: Path = _FOLDER) -> Bank:
    """The blocks that are there, joined."""
    found = {name: [load_all(path) for path in _blocks(folder, name)] for name in GENERATORS[:-1]}
    made = {name: _joined(blocks, "logit_cf") for name, blocks in found.items() if blocks}
    firsts = [next(iter(block.values())).parents for block in found["oracle"]]
    others = [load_file(path) for path in _blocks(folder, "observed")]
    logits = [_joined(found["oracle"], "logit_obs"), *(one["logit"].numpy() for one in others)]
    names = [*(name for name in firsts[0] if name != "effusion"), "effusion"]
    parents = {name: torch.cat([one[name] for one in (*firsts, *others)]).numpy() for name in names}
    table = pd.DataFrame(parents).astype(float).rename(columns={"effusion": "y"})
    table = table.assign(patient=np.arange(len(table)).astype(str))
    return Bank(table, list(found["oracle"][0]), np.concatenate(logits), made, paper_grid())


def keep_example(
    bank: Bank, folder: Path = _EXAMPLE, *, test: int = 1_000, pool: int = 8_000
) -> list[Path]:
    """Keep a test set with two generators, and a pool of observed patients, for the book."""
    rows = np.arange(test)
    paths = [folder / f"without_{name}.safetensors" for name in ("oracle", "learned", "observed")]
    for path, name in zip(paths[:2], ("oracle", "learned"), strict=True):
        given = {p: bank.predictions(name, rows, p) for p in bank.predictors}
        save_all(given, path, half=True)
    others = bank.count("oracle") + np.arange(pool)
    columns = {n: bank.table[n].to_numpy()[others] for n in bank.table.columns.drop("patient")}
    kept = {n: torch.tensor(values, dtype=torch.float32) for n, values in columns.items()}
    write_atomically(paths[2], save({"logit": torch.tensor(bank.observed[others]), **kept}))
    return paths


def read_example(
    folder: Path = _EXAMPLE,
) -> tuple[dict[str, dict[str, Predictions]], dict[str, pd.DataFrame]]:
    """The predictions by generator and predictor, and what was observed of others by predictor."""
    made = {n: load_all(folder / f"without_{n}.safetensors") for n in ("oracle", "learned")}
    kept = {n: v.numpy() for n, v in load_file(folder / "without_observed.safetensors").items()}
    logits, predictors = kept.pop("logit"), list(made["oracle"])
    frame = pd.DataFrame(kept)
    frame["patient"] = [f"observed {row}" for row in range(len(frame))]
    return made, {n: frame.assign(logit=logits[:, p]) for p, n in enumerate(predictors)}


def _blocks(folder: Path, generator: str) -> list[Path]:
    return sorted(folder.glob(f"{generator.replace(' ', '-')}-[0-9]*.safetensors"))


def _joined(blocks: Sequence[Mapping[str, Predictions]], name: str) -> np.ndarray:
    """Logits of all blocks, the predictors last."""
    parts = [np.stack([getattr(p, name).numpy() for p in block.values()], -1) for block in blocks]
    return np.concatenate(parts)
