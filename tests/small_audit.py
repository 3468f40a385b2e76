"""A table with PNG files, a TorchScript classifier and a plan: all that an audit needs, small."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

SIZE, ROWS = 32, 240


class Corner(nn.Module):
    """Reads the label off one corner, and the view off another one a little."""

    def __init__(self, outputs: int = 1, channels: int = 1) -> None:
        super().__init__()
        self.outputs, self.channels = outputs, channels

    def forward(self, x: Tensor) -> Tensor:
        ill, view = x[:, 0, :16, :16].mean(dim=(1, 2)), x[:, 0, 16:, 16:].mean(dim=(1, 2))
        return (20 * (ill - 0.45) + 6 * (view - 0.45))[:, None].repeat(1, self.outputs)


class Classes(Corner):
    """The same as two classes, healthy and ill, of which one is right."""

    def forward(self, x: Tensor) -> Tensor:
        ill = super().forward(x)
        return torch.cat((2 - ill, 3 * ill + 1), dim=1)


class Bright:
    """The true generator: the view brightens a corner by a fifth."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> dict:
        return {"residual": x - self._mean(pa)}

    def predict(self, noise: dict, pa: dict) -> Tensor:
        return (self._mean(pa) + noise["residual"]).clamp(0, 1)

    def _mean(self, pa: dict) -> Tensor:
        mean = torch.zeros(len(pa["view"]), 1, SIZE, SIZE)
        mean[:, :, 16:, 16:] = 0.2 * pa["view"][:, None, None, None]
        return mean


class Same:
    """A generator that changes nothing."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> Tensor:
        return x

    def predict(self, noise: Tensor, pa: dict) -> Tensor:
        return noise


class Half(Same):
    """A generator that draws smaller images."""

    def predict(self, noise: Tensor, pa: dict) -> Tensor:
        return noise[:, :, ::2, ::2]


class Named(Same):
    """A generator whose noise is not made of tensors."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> dict:
        return {"name": "noise", "x": x}

    def predict(self, noise: dict, pa: dict) -> Tensor:
        return noise["x"]


class Needy(Same):
    """A generator that cannot be made without weights."""

    def __init__(self, weights: Path) -> None:
        self.weights = weights


def blind(x: Tensor, pa: dict) -> Tensor:
    """A predictor that looks where no label is seen."""
    return 9 * x[:, 0, -1, 0] - 5


def picture(row: dict, rng: np.random.Generator) -> np.ndarray:
    x = 0.35 + 0.03 * rng.standard_normal((SIZE, SIZE))
    x[:16, :16] += 0.2 * row["ill"]
    x[16:, 16:] += 0.2 * (row["view"] == "PA")
    x[16:, :16] += 0.2 * row["age"] / 90
    return (255 * x.clip(0, 1)).astype(np.uint8)


def table(rows: int = ROWS) -> pd.DataFrame:
    """Two rows for each patient; the split is by patient."""
    rng, patient = np.random.default_rng(0), np.arange(rows) // 2
    found = {"file": [f"{i:03}.png" for i in range(rows)], "patient": [f"p{i}" for i in patient]}
    found |= {"view": rng.choice(["AP", "PA"], rows), "age": rng.integers(20, 90, rows)}
    found |= {"ill": rng.integers(2, size=rows), "split": np.where(patient % 2, "train", "test")}
    return pd.DataFrame(found)


def make(folder: Path) -> Path:
    """Write everything into a folder; returns the plan."""
    rng, rows = np.random.default_rng(1), table()
    (folder / "png").mkdir(parents=True)
    for row in rows.to_dict("records"):
        Image.fromarray(picture(row, rng)).save(folder / "png" / row["file"])
    rows.to_csv(folder / "table.csv", index=False)
    script(Corner(), folder / "mine.pt")
    return write(folder)


def script(module: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(module, torch.zeros(2, getattr(module, "channels", 1), SIZE, SIZE)).save(
            path
        )


def write(folder: Path, change: Callable[[dict], object] = lambda plan: None) -> Path:
    """Write the plan, changed in place by a function, beside the table."""
    plan = {
        "table": "table.csv",
        "images": "png",
        "image": "file",
        "patient": "patient",
        "graph": {
            "view": {"kind": "binary", "categories": ["AP", "PA"]},
            "age": {"kind": "continuous", "range": [20, 90], "units": "years"},
            "ill": {"kind": "binary", "parents": ["age"]},
        },
        "labels": ["ill"],
        "nuisances": {"view": "all"},
        "predictors": {"mine": "mine.pt"},
        "generator": "small_audit:Bright",
        "rows": {"train": "split == train"},
        "replicates": 50,
    }
    change(plan)
    path = folder / "plan.yml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path
