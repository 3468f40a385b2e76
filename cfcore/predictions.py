"""The waist of the project: what one predictor says of every patient in every world."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cfcore.bootstrap import bootstrap_table, compare_tables
from cfcore.checks import (
    InputError,
    Numbers,
    as_tensor,
    check_count,
    check_fraction,
    check_labels,
    check_weights,
    warn_of_probabilities,
)
from cfcore.evaluate import Table, check_logits, check_question, check_table, evaluate_table
from cfcore.files import write_atomically
from cfcore.marks import announced
from cfcore.metrics.loss import Loss
from cfcore.metrics.stability import flip_rate, mean_absolute_difference
from cfcore.metrics.summary import from_logits
from cfcore.resampling import check_patients, check_resampling

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
SAME = 1e-3  # of 1 + |logit|: more than rounding of an image that is reproduced


def check_shape(values: Tensor | None, name: str, *shapes: tuple[int, ...]) -> None:
    """Refuse a tensor that has none of these shapes; None passes."""
    if values is not None and tuple(values.shape) not in shapes:
        raise InputError(f"has shape {tuple(values.shape)}, not {shapes[0]}", column=name)


@dataclass(frozen=True, eq=False)
class Predictions:
    r"""Observed, null and counterfactual logits of one predictor, with all that explains them.

    Logits, not probabilities: a saturated float32 probability has lost its loss and its rank.
    Scores that all lie in [0, 1] come with a :class:`cfcore.ScoreWarning`.

    Attributes:
        logit_obs: Logits of the observed images, shape (N,).
        logit_null: Logits under the null intervention, each patient's own parents, shape (N,):
            what the generator alone does to the score.
        logit_cf: Logits of the counterfactual images, shape (N, K).
        grid: The values of the intervened variables, each of shape (K,), or (N, K) if every
            patient has its own Monte Carlo draws.
        q: Intervention probabilities, shape (K,); uniform by default.
        y: Labels 0 or 1, shape (N,), if known.
        parents: The recorded parents, each of shape (N,).
        patient: A patient identifier for each row, whole numbers or text, shape (N,); several
            rows may be of one patient.
        provenance: Whatever is needed to make this again: JSON values only.
        logit_decoded: Logits of the images decoded without the residual that the generator holds,
            shape (N,), if it holds one: what the generator explains of the score.

    Example:
        >>> predictions = Predictions(
        ...     logit_obs=torch.tensor([2.0, -1.0]),
        ...     logit_null=torch.tensor([2.0, -1.0]),
        ...     logit_cf=torch.tensor([[2.0, -2.0], [-1.0, -1.0]]),
        ...     grid={"sex": torch.tensor([0.0, 1.0])},
        ... )
        >>> predictions.evaluate()["S_flip"]
        0.25
    """

    logit_obs: Tensor
    logit_null: Tensor
    logit_cf: Tensor
    grid: Mapping[str, Tensor]
    q: Tensor | None = None
    y: Tensor | None = None
    parents: Mapping[str, Tensor] = field(default_factory=dict)
    patient: Sequence[int] | Sequence[str] | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    logit_decoded: Tensor | None = None

    def __post_init__(self) -> None:
        axes_of = {"logit_obs": 1, "logit_null": 1, "logit_decoded": 1, "logit_cf": 2, "y": 1}
        for name, axes in axes_of.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_tensor(getattr(self, name), name, axes))
        for part in ("grid", "parents"):
            values = {name: torch.as_tensor(v) for name, v in getattr(self, part).items()}
            object.__setattr__(self, part, values)
        rows, interventions = self.logit_cf.shape
        if self.y is not None:
            check_labels(self.y)
        columns = {n: getattr(self, n) for n in ("logit_obs", "logit_null", "logit_decoded", "y")}
        columns |= {f"parents.{name}": values for name, values in self.parents.items()}
        for name, values in columns.items():
            check_shape(values, name, (rows,))
        for name, values in self.grid.items():
            check_shape(values, f"grid.{name}", (interventions,), (rows, interventions))
        if interventions == 0 or (self.draws and interventions < 2):
            raise InputError(f"{interventions} worlds are too few", column="logit_cf")
        warn_of_probabilities(self.logit_obs, self.logit_cf, name="logit_obs and logit_cf")
        object.__setattr__(self, "q", check_weights(self.q, interventions))
        if self.patient is not None:
            object.__setattr__(self, "patient", check_patients(self.patient, rows))

    def __len__(self) -> int:
        return self.logit_obs.shape[0]

    @property
    def draws(self) -> bool:
        """Whether every patient has its own Monte Carlo draws instead of a common grid."""
        return any(values.ndim == 2 for values in self.grid.values())

    @property
    def table(self) -> Table:
        """The checked scores."""
        return check_table(self.logit_obs, self.logit_cf, self.y, self.q, read=from_logits)

    def evaluate(
        self,
        *,
        threshold: float = 0.5,
        alphas: Sequence[float] = (0.5, 0.25, 0.1),
        bins: int = 10,
        loss: str | Loss = "bce",
    ) -> dict[str, float]:
        """Every metric, as :func:`cfcore.evaluate` gives them, with losses exact from logits."""
        question = check_question(threshold, alphas, bins, loss, correction=int(self.draws))
        return evaluate_table(self.table, question)

    def bootstrap(
        self,
        *,
        threshold: float = 0.5,
        alphas: Sequence[float] = (0.5, 0.25, 0.1),
        bins: int = 10,
        loss: str | Loss = "bce",
        replicates: int = 1000,
        rank_replicates: int = 200,
        level: float = 0.95,
        seed: int = 0,
    ) -> "pd.DataFrame":
        """Every metric with an interval, as :func:`cfcore.bootstrap` gives them."""
        question = check_question(threshold, alphas, bins, loss, correction=int(self.draws))
        sampling = check_resampling(
            len(self), self.patient, replicates, rank_replicates, level, seed
        )
        return bootstrap_table(self.table, question, sampling)

    def compare(
        self,
        other: "Predictions",
        *,
        threshold: float = 0.5,
        alphas: Sequence[float] = (0.5, 0.25, 0.1),
        bins: int = 10,
        loss: str | Loss = "bce",
        replicates: int = 1000,
        rank_replicates: int = 200,
        level: float = 0.95,
        seed: int = 0,
    ) -> "pd.DataFrame":
        """The other predictor's metrics minus these, as :func:`cfcore.compare` gives them."""
        check_same_patients(self, other)
        question = check_question(threshold, alphas, bins, loss, correction=int(self.draws))
        patient = other.patient if self.patient is None else self.patient
        sampling = check_resampling(len(self), patient, replicates, rank_replicates, level, seed)
        return compare_tables(self.table, other.table, question, sampling)

    def floor(self, *, threshold: float = 0.5) -> dict[str, float | bool]:
        """Flips and score changes that the generator causes without any intervention.

        A generator that holds what it cannot explain as a residual reproduces every image, however
        little it knows. Its floor is zero by construction and vouches for nothing; what it explains
        shows in the figures without the residual.

        Returns:
            ``S_flip`` and ``D_abs`` of the null intervention against the observed score: what
            remains of these metrics for a predictor that ignores the nuisance variables.
            ``by_construction`` says that all scores are reproduced to the digit. If the generator
            holds a residual, ``S_flip_decoded`` and ``D_abs_decoded`` are the same without it.
        """
        check_fraction(threshold, "threshold")
        found = self._moved(self.logit_null, "logit_null", threshold)
        near = torch.isclose(self.logit_null, self.logit_obs, rtol=SAME, atol=SAME)
        found["by_construction"] = bool(near.all())
        if self.logit_decoded is not None:
            decoded = self._moved(self.logit_decoded, "logit_decoded", threshold)
            found |= {f"{name}_decoded": value for name, value in decoded.items()}
        return found

    def _moved(self, logits: Tensor, name: str, threshold: float) -> dict[str, float | bool]:
        check_logits(self.logit_obs, "logit_obs")
        check_logits(logits, name)
        p_obs, p = self.logit_obs.double().sigmoid(), logits.double().sigmoid()
        everything = torch.ones(1, device=p_obs.device)
        return {
            "S_flip": flip_rate(p_obs, p[:, None], everything, threshold).item(),
            "D_abs": mean_absolute_difference(p_obs, p).item(),
        }

    def reweight(self, q: Numbers) -> "Predictions":
        """The same table under another target distribution on its grid, at no cost."""
        if self.draws:
            raise InputError("Monte Carlo draws follow the q they were drawn from", column="q")
        return replace(self, q=check_weights(q, self.logit_cf.shape[1]))

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file: no pickle, all or nothing, the same bytes every time.

        Args:
            path: Where to write, usually ``*.safetensors``.

        Returns:
            The path.
        """
        from safetensors.torch import save

        tensors = {
            name: getattr(self, name) for name in ("logit_obs", "logit_null", "logit_cf", "q")
        }
        tensors |= {f"grid.{name}": values for name, values in self.grid.items()}
        tensors |= {f"parents.{name}": values for name, values in self.parents.items()}
        for name in ("y", "logit_decoded"):
            if getattr(self, name) is not None:
                tensors[name] = getattr(self, name)
        header = {"format": FORMAT, "provenance": dict(self.provenance)}
        header |= {"patient": None if self.patient is None else list(self.patient)}

        # One entry only: safetensors writes several in an order that changes from run to run.
        text = json.dumps(header, sort_keys=True, allow_nan=False)
        own = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
        return write_atomically(path, save(own, metadata={"cfcore": text}))

    @classmethod
    def load(cls, path: str | Path) -> "Predictions":
        """Read what :meth:`save` wrote.

        Args:
            path: A file.

        Returns:
            The predictions, on the CPU.

        Raises:
            FileNotFoundError: If there is no such file.
            InputError: If the file is damaged or something else; the message names it.
        """
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["cfcore"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            announced(header)
            if check_count(header["format"], "format") > FORMAT:
                raise InputError("written by a newer version of cfcore")
            return cls(
                **{name: values for name, values in tensors.items() if "." not in name},
                grid=part(tensors, "grid."),
                parents=part(tensors, "parents."),
                patient=header["patient"],
                provenance=header["provenance"],
            )
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: these are not predictions, or damaged: {error}") from None


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def check_same_patients(first: Predictions, second: Predictions) -> None:
    """Refuse to compare predictions that are not about the same patients in the same order."""
    if len(first) != len(second):
        raise InputError(f"the predictions are about {len(first)} and {len(second)} rows")
    if first.draws != second.draws:
        raise InputError("only one of the predictions is on Monte Carlo draws")
    if (first.y is None) != (second.y is None):
        raise InputError("only one of the predictions has labels")
    if first.y is not None and (first.y != second.y).any():
        raise InputError("the predictions disagree about the labels", column="y")
    if first.patient is not None and second.patient is not None:
        pairs = enumerate(zip(first.patient, second.patient, strict=True))
        row = next((i for i, (a, b) in pairs if a != b), None)
        if row is not None:
            pair = f"{first.patient[row]!r} and {second.patient[row]!r}"
            raise InputError(f"the predictions are about {pair}", column="patient", row=row)
