"""Predictors made biased on purpose, by an offset of the logit for one sex."""

from dataclasses import replace

from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.generator import Parents
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor


class LogitOffset(nn.Module):
    r"""A predictor made biased on purpose: :math:`g_\beta(x, s) = \sigma(\mathrm{logit}\,
    g_0(x) + \beta \cdot s)`.

    The sex is read from the parents that are passed in, so under :math:`\mathrm{do}(s)` it is
    the intervened one. The offset is the same for all patients of one sex: their order, and
    with it the AUC within a sex, does not depend on :math:`\beta`.

    Args:
        predictor: The predictor :math:`g_0`.
        beta: The offset of female patients, in logits.

    Example:
        >>> g = LogitOffset(lambda x, pa: x.mean(dim=(1, 2, 3)), beta=2.0)
        >>> g(torch.zeros(2, 1, 8, 8), {"sex": torch.tensor([0.0, 1.0])}).tolist()
        [0.0, 2.0]
    """

    def __init__(self, predictor: Predictor, beta: float) -> None:
        super().__init__()
        self.predictor, self.beta = predictor, beta
        self.variable = getattr(predictor, "variable", None)

    def forward(self, x: Tensor, pa: Parents) -> Tensor:
        """Predicts, with the offset added where ``pa["sex"]`` is 1."""
        return self.predictor(x, pa) + self.beta * pa["sex"]

    def extra_repr(self) -> str:
        """The offset, for ``repr``."""
        return f"beta={self.beta}"


def offset(predictions: Predictions, beta: float) -> Predictions:
    r"""The predictions of a logit-offset predictor, derived from those of its base.

    .. math:: \mathrm{logit}\, g_\beta(x, s) = \mathrm{logit}\, g_0(x) + \beta s

    The observed and the null image are read with the recorded :math:`s`, the counterfactual ones
    with the intervened :math:`s`. Nothing is run again; sums are in float64, so that no two
    patients of one sex become tied.

    Args:
        predictions: Those of the base, on a grid that sets the sex :math:`s`.
        beta: The offset.

    Example:
        >>> base = Predictions(
        ...     logit_obs=torch.zeros(1),
        ...     logit_cf=torch.zeros(1, 2),
        ...     grid={"sex": torch.tensor([0.0, 1.0])},
        ...     parents={"sex": torch.tensor([1.0])},
        ... )
        >>> offset(base, 0.5).logit_cf.tolist(), offset(base, 0.5).logit_obs.tolist()
        ([[0.0, 0.5]], [0.5])
    """
    if "sex" not in predictions.grid or "sex" not in predictions.parents:
        raise InputError("neither set nor recorded: an offset needs both of 'sex'", column="sex")
    own = beta * predictions.parents["sex"].double()
    moved = {"logit_cf": predictions.logit_cf.double() + beta * predictions.grid["sex"].double()}
    for name in ("logit_obs", "logit_null", "logit_decoded"):
        if (logits := getattr(predictions, name)) is not None:
            moved[name] = logits.double() + own
    return replace(predictions, **moved)
