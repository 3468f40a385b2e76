r"""Distances: between images, and between a reading and what should be read."""

import torch
from torch import Tensor

from cfcore.graph import Variable
from cfcore.metrics import auc


def image_distances(x: Tensor, reference: Tensor) -> dict[str, Tensor]:
    """``MAE``, ``MSE`` and ``SSIM`` of each pair of images (B, C, H, W), float64, shape (B,)."""
    gap = (x - reference).double()
    absolute, squared = (part.mean(dim=(1, 2, 3)) for part in (gap.abs(), gap.square()))
    return {"MAE": absolute, "MSE": squared, "SSIM": _structural_similarity(x, reference)}


def signal_to_noise(squared_error: Tensor) -> Tensor:
    r"""Peak signal-to-noise ratio of a whole set of images in [0, 1], in decibels.

    .. math:: -10 \log_{10} \frac{1}{N} \sum_{i=1}^{N} \mathrm{MSE}_i

    The logarithm is taken once, of the mean over the set: the mean of the ratios would be
    infinite as soon as one image is reproduced exactly.

    Example:
        >>> round(signal_to_noise(torch.tensor([0.0, 0.02])).item(), 3)
        20.0
    """
    return -10 * squared_error.double().mean().log10()


def _structural_similarity(x: Tensor, reference: Tensor) -> Tensor:
    r"""Structural similarity of each pair of images in [0, 1].

    .. math:: \frac{(2 \mu_x \mu_y + c_1)(2 \sigma_{xy} + c_2)}
        {(\mu_x^2 + \mu_y^2 + c_1)(\sigma_x^2 + \sigma_y^2 + c_2)},
        \qquad c_1 = 0.01^2, \; c_2 = 0.03^2

    with moments under a Gaussian window of 11 pixels and deviation 1.5, averaged over all windows
    that lie inside the image, and over channels.

    References:
        Wang, Bovik, Sheikh and Simoncelli, *Image quality assessment*, 2004.
    """
    shape = x.shape[:2]
    x, y = (image.double().flatten(0, 1)[:, None] for image in (x, reference))
    rows, columns = (_window(side, x.device) for side in x.shape[2:])
    maps = rows @ torch.cat((x, y, x * x, y * y, x * y), dim=1) @ columns.T  # (B, 5, h, w)
    mx, my, xx, yy, xy = maps.unbind(dim=1)
    level = (2 * mx * my + 1e-4) / (mx**2 + my**2 + 1e-4)
    form = (2 * (xy - mx * my) + 9e-4) / (xx - mx**2 + yy - my**2 + 9e-4)
    return (level * form).mean(dim=(1, 2)).unflatten(0, shape).mean(dim=1)


def _window(side: int, device: torch.device) -> Tensor:
    """Gaussian means over 11 neighbours as a matrix, (side - 10, side): faster than convolving."""
    start = torch.arange(side - 10, device=device)
    step = torch.arange(side, device=device) - start[:, None] - 5
    weight = torch.exp(-0.5 * (step.double() / 1.5) ** 2) * (step.abs() <= 5)
    return weight / weight.sum(dim=1, keepdim=True)


def agreement(variable: Variable, out: Tensor, y: Tensor) -> dict[str, float]:
    """How well the outputs of a classifier agree with the values that should be there.

    Args:
        variable: The variable.
        out: Logits, shape (N,) or (N, C), or values of a continuous variable, shape (N,).
        y: The values, shape (N,).

    Returns:
        ``accuracy`` and ``AUC`` of a discrete variable (the mean over one class against the
        rest), ``error`` (the mean absolute one, in units) and ``R2`` of a continuous one; NaN
        where the values are all the same and a measure needs several.

    Example:
        >>> sex = Variable("sex", "binary")
        >>> agreement(sex, torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 0.0]))
        {'accuracy': 0.5, 'AUC': nan}
    """
    out, y = out.double(), y.double()
    if variable.kind == "continuous":
        spread = y.var(correction=0)
        r2 = 1 - (out - y).square().mean() / torch.where(spread > 0, spread, torch.nan)
        return {"error": (out - y).abs().mean().item(), "R2": r2.item()}
    if variable.kind == "binary":
        right, area = (out > 0) == y, auc(out, y)
    else:
        right = out.argmax(dim=1) == y
        area = torch.stack([auc(out[:, k], y == k) for k in variable.values]).mean()
    return {"accuracy": right.double().mean().item(), "AUC": area.item()}


def shift(variable: Variable, out: Tensor, before: Tensor) -> Tensor:
    r"""How far the reading of a classifier moved, for each image.

    The difference of the probability of a binary variable, half the sum of the differences of a
    categorical one (their total variation), the difference in units of a continuous one.
    """
    out, before = out.double(), before.double()
    if variable.kind == "continuous":
        return (out - before).abs()
    if variable.kind == "binary":
        return (out.sigmoid() - before.sigmoid()).abs()
    return (out.softmax(dim=1) - before.softmax(dim=1)).abs().sum(dim=1) / 2
