"""The waist of the project: what one predictor says of every patient in every world."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
from cfcore.evaluation import as_numbers, check_logits, check_options, check_scores
from cfcore.files import write_atomically
from cfcore.marks import announced
from cfcore.metrics.loss import Loss
from cfcore.metrics.stability import flip_rate, mean_absolute_difference
from cfcore.metrics.summary import Scores, summarise
from cfcore.resampling import (
    bootstrap_scores,
    check_patients,
    check_resampling,
    compare_scores,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
LOGITS = ("logit_obs", "logit_cf", "logit_null", "logit_decoded")
SAME = 1e-3  # of 1 + |logit|: more than rounding of an image that is reproduced


@dataclass(frozen=True, eq=False)
class Predictions:
    r"""Observed, null and counterfactual logits of one predictor, with all that explains them.

    Logits, not probabilities: a saturated float32 probability has lost its loss and its rank.
    Scores that all lie in [0, 1] come with a :class:`cfcore.ScoreWarning`.

    Attributes:
        logit_obs: Logits of the observed images, shape (N,).
        logit_cf: Logits of the counterfactual images, shape (N, K).
        grid: The values of the intervened variables, each of shape (K,), or (N, K) if every
            patient has its own Monte Carlo draws.
        q: Intervention probabilities, shape (K,); uniform by default.
        y: Labels 0 or 1, shape (N,), if known.
        parents: The recorded parents, each of shape (N,).
        patient: A patient identifier for each row, whole numbers or text, shape (N,); several
            rows may be of one patient.
        provenance: Whatever is needed to make this again: JSON values only.
        logit_null: Logits under the null intervention, each patient's own parents, shape (N,), if
            known: what the generator alone does to the score.
        logit_decoded: Logits of the images decoded without the residual that the generator holds,
            shape (N,), if it holds one: what the generator explains of the score.

    Example:
        >>> predictions = Predictions(
        ...     logit_obs=torch.tensor([2.0, -1.0]),
        ...     logit_cf=torch.tensor([[2.0, -2.0], [-1.0, -1.0]]),
        ...     grid={"sex": torch.tensor([0.0, 1.0])},
        ... )
        >>> predictions.evaluate()["S_flip"]
        0.25
    """

    logit_obs: Tensor
    logit_cf: Tensor
    grid: Mapping[str, Tensor]
    q: Tensor | None = None
    y: Tensor | None = None
    parents: Mapping[str, Tensor] = field(default_factory=dict)
    patient: Sequence[int] | Sequence[str] | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    logit_null: Tensor | None = None
    logit_decoded: Tensor | None = None

    def __post_init__(self) -> None:
        for name in (*LOGITS, "y"):
            if getattr(self, name) is not None:
                values = as_tensor(getattr(self, name), name, axes=1 + (name == "logit_cf"))
                object.__setattr__(self, name, values)
        for part in ("grid", "parents"):
            values = {name: torch.as_tensor(v) for name, v in getattr(self, part).items()}
            object.__setattr__(self, part, values)
        rows, interventions = self.logit_cf.shape
        if self.y is not None:
            check_labels(self.y)
        for name, values in self._tensors().items():
            if name.startswith("grid."):
                _check_shape(values, name, (interventions,), (rows, interventions))
            elif name not in ("q", "logit_cf"):
                _check_shape(values, name, (rows,))
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
    def scores(self) -> Scores:
        """The checked scores."""
        return check_scores(self.logit_obs, self.logit_cf, self.y, self.q, logits=True)

    def evaluate(
        self,
        *,
        threshold: float = 0.5,
        alphas: Sequence[float] = (0.5, 0.25, 0.1),
        bins: int = 10,
        loss: str | Loss = "bce",
    ) -> dict[str, float]:
        """Every metric, as :func:`cfcore.evaluate` gives them, with losses exact from logits."""
        options = check_options(threshold, alphas, bins, loss, correction=int(self.draws))
        return as_numbers(summarise(self.scores, options))

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
        options = check_options(threshold, alphas, bins, loss, correction=int(self.draws))
        sampling = check_resampling(
            len(self), self.patient, replicates, rank_replicates, level, seed
        )
        return bootstrap_scores(self.scores, options, sampling)

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
        _check_same_patients(self, other)
        options = check_options(threshold, alphas, bins, loss, correction=int(self.draws))
        patient = other.patient if self.patient is None else self.patient
        sampling = check_resampling(len(self), patient, replicates, rank_replicates, level, seed)
        return compare_scores(self.scores, other.scores, options, sampling)

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
        if self.logit_null is None:
            problem = "a floor needs the scores under the null intervention, which are not here"
            raise InputError(problem, column="logit_null")
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
        """Write a safetensors file, as :func:`save_all` does for one predictor."""
        return save_all({"": self}, path)

    @classmethod
    def load(cls, path: str | Path) -> "Predictions":
        """Read a file of one predictor, as :func:`load_all` does."""
        found = load_all(path)
        if len(found) > 1:
            raise InputError(f"{path}: there are {len(found)} predictors in it; see load_all")
        return next(iter(found.values()))

    def _tensors(self) -> dict[str, Tensor]:
        """All that is there, by the names that a file gives it."""
        named = {name: getattr(self, name) for name in (*LOGITS, "q", "y")}
        named |= {f"grid.{name}": values for name, values in self.grid.items()}
        named |= {f"parents.{name}": values for name, values in self.parents.items()}
        return {name: values for name, values in named.items() if values is not None}


def save_all(predictions: Mapping[str, Predictions], path: str | Path) -> Path:
    """Write what several predictors say of the same patients in the same worlds to one file.

    Patients, labels, parents and grid are written once, the logits stacked. Nothing is pickled,
    the file is written whole or not at all, and the same predictions are the same bytes.

    Args:
        predictions: The predictions by the name of the predictor, all of the same patients in the
            same order, on the same grid and under the same q.
        path: Where to write, usually ``*.safetensors``.

    Returns:
        The path.

    Raises:
        InputError: If there are none, or they are not about the same patients and worlds.
    """
    from safetensors.torch import save

    if not predictions:
        raise InputError("there are no predictions to save: a file needs a predictor")
    first = next(iter(predictions.values()))
    for name, other in predictions.items():
        _check_same_worlds(first, other, name)
    tensors = first._tensors()
    for name in tensors.keys() & set(LOGITS):
        tensors[name] = torch.stack([getattr(p, name) for p in predictions.values()])
    header = {"format": FORMAT, "patient": None if first.patient is None else list(first.patient)}
    header["predictors"] = {name: dict(p.provenance) for name, p in predictions.items()}
    # One entry only: safetensors writes several in an order that changes from run to run. Its keys
    # are not sorted, because their order is that of the logits.
    text = json.dumps(header, allow_nan=False)
    own = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
    return write_atomically(path, save(own, metadata={"cfcore": text}))


def load_all(path: str | Path) -> dict[str, Predictions]:
    """Read what :func:`save_all` or :meth:`Predictions.save` wrote.

    Args:
        path: A file.

    Returns:
        The predictions by the name of the predictor, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If the file is damaged or something else; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata.get("cfcore-bundle") or metadata["cfcore"])
        announced(header)
        if check_count(header["format"], "format") > FORMAT:
            raise InputError("written by a newer version of cfcore")
        if "provenance" in header:  # format 1 had a form of its own for one predictor
            header["predictors"] = {"": header["provenance"]}
            tensors |= {name: tensors[name][None] for name in LOGITS if name in tensors}
        common = {name: tensors[name] for name in ("q", "y") if name in tensors}
        common |= {"grid": _part(tensors, "grid."), "parents": _part(tensors, "parents.")}
        return {
            name: Predictions(
                **{logit: tensors[logit][i] for logit in LOGITS if logit in tensors},
                **common,
                patient=header["patient"],
                provenance=provenance,
            )
            for i, (name, provenance) in enumerate(header["predictors"].items())
        }
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: these are not predictions, or damaged: {error}") from None


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _check_shape(values: Tensor, name: str, *shapes: tuple[int, ...]) -> None:
    """Refuse a tensor that has none of these shapes."""
    if tuple(values.shape) not in shapes:
        raise InputError(f"has shape {tuple(values.shape)}, not {shapes[0]}", column=name)


def _check_same_patients(first: Predictions, second: Predictions) -> None:
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


def _check_same_worlds(first: Predictions, other: Predictions, name: str) -> None:
    """Refuse predictions about other patients, parents or worlds than the first."""
    _check_same_patients(first, other)
    ours, theirs = first._tensors(), other._tensors()
    if ours.keys() & set(LOGITS) != theirs.keys() & set(LOGITS):
        raise InputError(f"{name!r} and the first are of different generators")
    for key in sorted((ours.keys() | theirs.keys()) - {*LOGITS, "y"}):
        pair = [given[key].nan_to_num(-1) for given in (ours, theirs) if key in given]
        if len(pair) < 2 or not torch.equal(*pair):
            what = key.partition(".")[0]
            raise InputError(f"{name!r} is on another {what} than the first", column=what)
