r"""An optimiser for networks of convolutions: orthogonal steps for kernels, AdamW for the rest."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_HIDDEN = 16  # channels of a layer between others, at least
_SERIES = (3.4445, -4.7750, 2.0315)  # of the iteration, from the reference


class Muon(torch.optim.AdamW):
    r"""AdamW, but for kernels a step of equal length in all directions of their matrix.

    The momentum :math:`M = U S V^\top` of a kernel, its outputs by all else, is replaced by
    :math:`U V^\top`.

    References:
        Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024.

    Args:
        module: The network; kernels are its weights with four axes between 16 channels or more.
        rate: The learning rate of kernels, as a multiple of that of AdamW.

    Example:
        >>> conv = nn.Conv2d(16, 16, 3)
        >>> optimiser = Muon(conv, lr=0.1, rate=1.0, betas=(0.9, 0.99), weight_decay=0.0)
        >>> before = conv.weight.detach().clone()
        >>> conv(torch.ones(1, 16, 3, 3)).sum().backward()
        >>> optimiser.step()
        >>> step = (conv.weight - before).flatten(1)
        >>> bool(torch.linalg.matrix_norm(step, ord=2) < 0.15)
        True
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float,
        rate: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        kernels = [p for p in module.parameters() if p.ndim == 4 and min(p.shape[:2]) >= _HIDDEN]
        known = {id(p) for p in kernels}
        others = [p for p in module.parameters() if id(p) not in known]
        groups = [{"params": others, "rate": 1.0}, {"params": kernels, "rate": rate}]
        super().__init__(groups, lr=lr, betas=betas, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Moves kernels, then leaves the rest to AdamW; gradients of kernels are used up."""
        group = self.param_groups[1]
        for kernel in group["params"]:
            if kernel.grad is None:
                continue
            state = self.state[kernel]
            if not state:
                state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(kernel)
            momentum = state["momentum"].mul_(_MOMENTUM).add_(kernel.grad)
            ahead = _orthogonal(kernel.grad.add(momentum, alpha=_MOMENTUM).flatten(1))
            length = max(1.0, ahead.shape[0] / ahead.shape[1]) ** 0.5
            kernel.mul_(1 - group["lr"] * group["weight_decay"])
            kernel.add_(ahead.view_as(kernel), alpha=-group["lr"] * length)
            kernel.grad = None
        super().step(closure)


def _orthogonal(m: Tensor) -> Tensor:
    """Nearly the orthogonal factor of a matrix, by five Newton-Schulz iterations."""
    tall, (a, b, c) = m.shape[0] > m.shape[1], _SERIES
    x = m.T if tall else m
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
