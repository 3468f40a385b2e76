"""The waist of the project: what one predictor says of every patient in every world."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfcore import checks
from cfcore.checks import InputError, Numbers
from cfcore.evaluation import Asked, check_patients, check_scores, evaluate_all
from cfcore.files import write_atomically
from cfcore.inputs import Aside, gather
from cfcore.marks import announce, sources_in
from cfcore.metrics.stability import flip_rate, mean_absolute_difference
from cfcore.metrics.summary import Scores
from cfcore.resampling import Sampled, bootstrap_all, check_same, compare_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMAT = 2
_OBSERVED, _NULL = "logit_obs", "logit_null"
_LOGITS = (_OBSERVED, "logit_cf", _NULL, "logit_decoded")
_ROWS = ("y", "weight")
_SAME = 1e-3  # of 1 + |logit|: more than rounding of an image that is reproduced


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
        weight: How much each row counts, shape (N,); all the same by default.

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
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        for name in (*_LOGITS, *_ROWS):
            if getattr(self, name) is not None:
                values = checks.as_tensor(getattr(self, name), name, axes=1 + (name == "logit_cf"))
                object.__setattr__(self, name, values)
        for part in ("grid", "parents"):
            values = {name: torch.as_tensor(v) for name, v in getattr(self, part).items()}
            object.__setattr__(self, part, values)
        rows, worlds = self.logit_cf.shape
        if self.y is not None:
            checks.check_labels(self.y)
        for name, values in self._tensors().items():
            shapes = [(worlds,), (rows, worlds)] if name.startswith("grid.") else [(rows,)]
            if name not in ("q", "logit_cf") and tuple(values.shape) not in shapes:
                raise InputError(f"has shape {tuple(values.shape)}, not {shapes[0]}", column=name)
        if worlds == 0 or (self.draws and worlds < 2):
            raise InputError(f"{worlds} worlds are too few", column="logit_cf")
        checks.warn_of_probabilities(self.logit_obs, self.logit_cf, name="logit_obs and logit_cf")
        object.__setattr__(self, "q", checks.check_weights(self.q, worlds))
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
        aside = {name: getattr(self, name) for name in ("weight", "patient", "draws")}
        return check_scores(self.logit_obs, self.logit_cf, self.y, self.q, logits=True, **aside)

    def evaluate(self, **asked: Unpack[Asked]) -> dict[str, float]:
        """Every metric, as :func:`cfcore.evaluate` gives them, with losses exact from logits."""
        return evaluate_all({"": self.scores}, asked)[""]

    def bootstrap(self, *, by: Aside = None, **asked: Unpack[Sampled]) -> pd.DataFrame:
        """Every metric with an interval, as :func:`cfcore.bootstrap` gives them.

        Groups are made by the name of a parent, or given, one for each row.
        """
        if isinstance(by, str):
            if by not in self.parents:
                known = ", ".join(self.parents)
                raise InputError(f"there is no parent {by!r} (there are: {known})")
            by = self.parents[by].tolist()
        return bootstrap_all({"": self.scores}, asked, by)

    def compare(self, other: "Predictions", **asked: Unpack[Sampled]) -> pd.DataFrame:
        """The other predictor's metrics minus these, as :func:`cfcore.compare` gives them."""
        return compare_all({"": self.scores}, {"": other.scores}, asked)

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
        checks.check_fraction(threshold, "threshold")
        if self.logit_null is None:
            problem = "a floor needs the scores under the null intervention, which are not here"
            raise InputError(problem, column="logit_null")
        near = torch.isclose(self.logit_null, self.logit_obs, rtol=_SAME, atol=_SAME)
        found = self._moved("logit_null", threshold) | {"by_construction": bool(near.all())}
        if self.logit_decoded is not None:
            decoded = self._moved("logit_decoded", threshold)
            found |= {f"{name}_decoded": value for name, value in decoded.items()}
        return found

    def _moved(self, name: str, threshold: float) -> dict[str, float]:
        """How far logits of no intervention are from the observed ones."""
        for each in ("logit_obs", name):
            checks.check_logits(getattr(self, each), each)
        p_obs, p = (getattr(self, each).double().sigmoid() for each in ("logit_obs", name))
        flips = flip_rate(p_obs, p[:, None], torch.ones(1, device=p.device), threshold)
        return {"S_flip": flips.item(), "D_abs": mean_absolute_difference(p_obs, p).item()}

    def reweight(self, q: Numbers) -> "Predictions":
        """The same table under another target distribution on its grid, at no cost."""
        if self.draws:
            raise InputError("Monte Carlo draws follow the q they were drawn from", column="q")
        return replace(self, q=checks.check_weights(q, self.logit_cf.shape[1]))

    def plot_curves(self, attribute: str, **how: object) -> "Axes":
        """The mean score along one attribute; see :func:`cfcore.report.plots.plot_curves`."""
        return import_module("cfcore.report.plots").plot_curves(self, attribute, **how)

    def plot_calibration(self, **how: object) -> "Axes":
        """Scores against frequencies; see :func:`cfcore.report.plots.plot_calibration`."""
        return import_module("cfcore.report.plots").plot_calibration(self, **how)

    def plot_spread(self, **how: object) -> "Axes":
        """How far the worlds of a patient are apart; see :mod:`cfcore.report.plots`."""
        return import_module("cfcore.report.plots").plot_spread(self, **how)

    def to_frame(self) -> pd.DataFrame:
        """A row for each image: ``logit_obs``, ``logit_cf_0``, ..., ``y``, parents, patient."""
        named = {name: getattr(self, name) for name in (*_LOGITS, *_ROWS) if name != "logit_cf"}
        named |= {**self.parents, "patient": self.patient}
        named |= {f"logit_cf_{k}": v for k, v in enumerate(self.logit_cf.unbind(dim=1))}
        return pd.DataFrame({n: np.asarray(v) for n, v in named.items() if v is not None})

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        grid: Mapping[str, Numbers],
        *,
        q: Numbers | None = None,
        parents: Sequence[str] = (),
        weight: str | None = None,
    ) -> "Predictions":
        """Take the columns of :meth:`to_frame`, or probabilities ``p_obs``, ``p_cf_0``, ...

        ``y`` and ``patient`` are taken if they are there, recorded parents and the weight by their
        names. The values of the intervened variables are each of shape (K,).
        """
        frame = frame.copy()  # which nobody else changes
        given = gather(frame, None, None, weight=weight)
        if "" not in given.parts:
            raise InputError(f"there is no column p_obs, but of {', '.join(given.parts)}: take one")
        obs, cf, y = given.parts[""]
        scores = torch.tensor(np.column_stack((obs, cf)).astype(np.float64))
        if not given.logits:
            checks.check_probabilities(scores, "p_obs, p_cf")
            if bool(((scores == 0) | (scores == 1)).any()):
                problem = "a probability of 0 or 1 has no logit: see cfcore.evaluate(frame)"
                raise InputError(problem, column="p_obs, p_cf")
            scores = scores.logit()
        known = {name: frame[name].to_numpy(copy=True) for name in parents}
        rows = scores[:, 0], scores[:, 1:], grid, q, y, known, given.patient
        return cls(*rows, weight=given.weight)

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file by :func:`~cfcore.predictions.save_all`."""
        return save_all({"": self}, path)

    @classmethod
    def load(cls, path: str | Path) -> "Predictions":
        """Read a file of one predictor, as :func:`~cfcore.predictions.load_all` does."""
        found = load_all(path)
        if len(found) > 1:
            raise InputError(f"{path}: there are {len(found)} predictors in it; see load_all")
        return next(iter(found.values()))

    def _tensors(self) -> dict[str, Tensor]:
        """All that is there, by the names that a file gives it."""
        named = {name: getattr(self, name) for name in (*_LOGITS, *_ROWS, "q")}
        named |= {f"grid.{name}": values for name, values in self.grid.items()}
        named |= {f"parents.{name}": values for name, values in self.parents.items()}
        return {name: values for name, values in named.items() if values is not None}


def save_all(
    predictions: Mapping[str, Predictions], path: str | Path, *, half: bool = False
) -> Path:
    """Write what several predictors say of the same patients in the same worlds to one file.

    Patients, labels, parents and grid are written once, the logits stacked. Nothing is pickled,
    the file is written whole or not at all, and the same predictions are the same bytes. They are
    given by the name of the predictor, and refused unless all are of the same patients in the same
    order, on the same grid and under the same q. Logits may be rounded to half precision; those of
    the null intervention are written only if they differ from the observed ones.
    """
    from safetensors.torch import save

    if not predictions:
        raise InputError("there are no predictions to save: a file needs a predictor")
    first = next(iter(predictions.values()))
    tensors = first._tensors()
    for name, other in predictions.items():
        check_same(first.scores, other.scores)
        theirs = other._tensors()
        if tensors.keys() & set(_LOGITS) != theirs.keys() & set(_LOGITS):
            raise InputError(f"{name!r} and the first are of different generators")
        for key in sorted((tensors.keys() | theirs.keys()) - {*_LOGITS, "y"}):
            pair = [given[key].nan_to_num(-1) for given in (tensors, theirs) if key in given]
            if len(pair) < 2 or not torch.equal(*pair):
                what = key.partition(".")[0]
                raise InputError(f"{name!r} is on another {what} than the first", column=what)
    for name in tensors.keys() & set(_LOGITS):
        logits = torch.stack([getattr(p, name) for p in predictions.values()])
        tensors[name] = logits.half() if half else logits
    header = {"format": _FORMAT, "patient": first.patient}
    if _NULL in tensors and torch.equal(tensors[_NULL], tensors[_OBSERVED]):
        del tensors[_NULL]
        header["null"] = _OBSERVED
    header["predictors"] = {name: dict(p.provenance) for name, p in predictions.items()}
    # One entry only: safetensors writes several in an order that changes from run to run. Its keys
    # are not sorted, because their order is that of the logits.
    text = json.dumps(header, allow_nan=False)
    own = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
    return write_atomically(path, save(own, metadata={"cfcore": text}))


def load_all(path: str | Path) -> dict[str, Predictions]:
    """Read what :func:`save_all` or ``Predictions.save`` wrote, by the name of the predictor.

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
        announce(sources_in(str(header).encode()))
        if checks.check_count(header["format"], "format") > _FORMAT:
            raise InputError("written by a newer version of cfcore")
        if "provenance" in header:  # format 1 had a form of its own for one predictor
            header["predictors"] = {"": header["provenance"]}
            tensors |= {name: tensors[name][None] for name in _LOGITS if name in tensors}
        if "null" in header:
            tensors[_NULL] = tensors[header["null"]]
        logits = {name: tensors.pop(name) for name in _LOGITS if name in tensors}
        logits = {of: v.float() if v.dtype == torch.half else v for of, v in logits.items()}
        common = {"patient": header["patient"], "grid": {}, "parents": {}}
        for name, values in tensors.items():
            part, _, own = name.partition(".")
            if own:
                common[part][own] = values
            else:
                common[part] = values
        found = {}
        for i, (name, facts) in enumerate(header["predictors"].items()):
            own = {of: values[i] for of, values in logits.items()}
            found[name] = Predictions(**own, **common, provenance=facts)
        return found
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: these are not predictions, or damaged: {error}") from None
