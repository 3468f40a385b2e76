r"""The deep structural causal model: mechanisms of the parents and of the image in one module."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Generator as RandomState
from torch import Tensor, nn

from cfchest.graph import CHEST
from cfcore.checks import InputError
from cfcore.generator import Effect, Parents
from cfcore.graph import CausalGraph
from cfscm.encoding import encode, widths
from cfscm.inference import InferenceConfig, ParentPredictors
from cfscm.mechanisms import MechanismConfig, build, fit
from cfscm.networks import read_weights, write_weights


class ImageModel(Protocol):
    r"""The mechanism of the image, which knows its parents as one vector (B, D)."""

    config: Any

    def abduct(self, x: Tensor, c: Tensor, rng: RandomState | None = None) -> dict[str, Tensor]:
        """The noise of images (B, 1, H, W): the posterior mean, or a draw with ``rng``."""

    def predict(self, noise: Mapping[str, Tensor], c: Tensor) -> Tensor:
        """The images that the noise gives, shape (B, 1, H, W), in [0, 1]."""


class DeepSCM(nn.Module):
    r"""A structural causal model whose mechanisms are learned (appendix of the paper).

    Parents follow :math:`y_j = f_j(\mathbf{pa}_j, u_j)` and the image
    :math:`x = f_x(\mathbf{pa}, u_x)`. A counterfactual value is obtained in topological order,

    .. math:: \tilde{y}_j = f_j\big(\widetilde{\mathbf{pa}}_j, f_j^{-1}(\mathbf{pa}_j, y_j)\big)

    It abducts, acts and predicts as a :class:`~cfcore.generator.Generator`.

    Args:
        image: The mechanism of the image, made for ``conditions(graph)`` parents.
        graph: The causal graph; the parents of ``outcome`` are the parents of the image.
        mechanisms: What the mechanisms of the parents are made of.
        target: The label to be predicted, held by every action on other variables.
        outcome: The name of the image in the graph.
        inference: What the predictors of missing parents are made of; there are none without.
        seed: The seed of the weights of the mechanisms and of the predictors.
    """

    def __init__(
        self,
        image: ImageModel,
        *,
        graph: CausalGraph = CHEST,
        mechanisms: MechanismConfig | None = None,
        target: str | None = "effusion",
        outcome: str = "image",
        inference: InferenceConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.graph, self.target, self.outcome = graph, target, outcome
        self.names = tuple(name for name in graph if name in graph.parents(outcome))
        if target is not None and target not in self.names:
            raise InputError(f"the target {target!r} is not among the parents {list(self.names)}")
        self.settings = mechanisms or MechanismConfig()
        self.mechanisms = build(graph, self.names, self.settings, seed=seed)
        self.image = image
        self.inference = None
        if inference is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.inference = ParentPredictors(graph, self.names, inference)

    @property
    def imputes(self) -> bool:
        """Whether it can fill in missing parents."""
        return self.inference is not None

    def impute(self, x: Tensor, pa: Parents, rng: RandomState | None = None) -> dict[str, Tensor]:
        """Fills in missing parents; see :meth:`.ParentPredictors.impute`."""
        if self.inference is None:
            raise InputError(
                "this generator has no predictors of missing parents: train one on partly labelled "
                "data, or leave out the rows that miss a parent"
            )
        return self.inference.impute(x, pa, rng)

    def fit_parents(self, pa: Parents, *, seed: int) -> dict[str, float]:
        """Fits the mechanisms of the parents; see :func:`cfscm.mechanisms.fit`."""
        return fit(self.mechanisms, pa, self.settings, seed=seed)

    def encode(self, pa: Parents) -> Tensor:
        """The parents as the image mechanism sees them, shape (B, D)."""
        return encode(self.graph, pa, self.names)

    def log_prob(self, pa: Parents) -> dict[str, Tensor]:
        r"""The terms :math:`\log p(y_j \mid \mathbf{pa}_j)` of each parent, shape (B,)."""
        return {name: m.log_prob(pa[name], pa) for name, m in self.mechanisms.items()}

    def abduct(
        self,
        x: Tensor,
        pa: Parents,
        *,
        index: Tensor | None = None,
        rng: RandomState | None = None,
    ) -> dict[str, Tensor]:
        """Infers the noise of the images; see :meth:`cfcore.generator.Generator.abduct`.

        Args:
            x: The images, shape (B, 1, H, W), in [0, 1].
            pa: Their parents, each of shape (B,).
            index: Not used, as the noise is inferred from the image.
            rng: The source of randomness of the posterior; its mean is taken without one.

        Returns:
            The noise, each with leading axis B.
        """
        return self.image.abduct(x, self.encode(pa), rng)

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Draws the images that the noise gives, shape (B, 1, H, W), in [0, 1]."""
        return self.image.predict(noise, self.encode(pa))

    def act(
        self,
        pa: Parents,
        do: Mapping[str, Tensor | float],
        *,
        effect: Effect = "direct",
        rng: RandomState | None = None,
    ) -> dict[str, Tensor]:
        """Intervenes; see :class:`cfcore.generator.Generator`.

        Whoever has the same causes as before keeps the very value, not one that went through
        the mechanism and back.

        Args:
            pa: The observed parents, each of shape (B,).
            do: The values to set: numbers, checked against the range of their variable, or
                tensors of shape (B,), which are not checked.
            effect: ``"direct"`` or ``"total"``.
            rng: The source of randomness of discrete mechanisms.

        Returns:
            All parents after the action, each of shape (B,).
        """
        if effect not in ("direct", "total"):
            raise InputError(f"effect is 'direct' or 'total', not {effect!r}")
        values = {name: self._value(name, value, pa) for name, value in do.items()}
        follow = set(self.graph.descendants(*do)) - {self.target} if effect == "total" else set()
        acted: dict[str, Tensor] = {}
        for name in self.names:
            if name in values:
                acted[name] = values[name]
            elif name in follow:
                acted[name] = self._follow(name, pa, acted, rng)
            else:
                acted[name] = pa[name]
        return acted

    def _follow(self, name: str, pa: Parents, acted: Parents, rng: RandomState | None) -> Tensor:
        """The value of a descendant, by its own noise, after its causes have changed."""
        mechanism, y = self.mechanisms[name], pa[name]
        u = mechanism.abduct(y, pa, rng)
        causes = self.graph.parents(name)
        same = torch.stack([pa[cause] == acted[cause] for cause in causes]).all(dim=0)
        return torch.where(same, y, mechanism.predict(u, acted).to(y.dtype))

    def _value(self, name: str, value: Tensor | float, pa: Parents) -> Tensor:
        if name not in self.names:
            raise InputError(f"do({name}) is not possible: the parents are {list(self.names)}")
        like = pa[name]
        if not isinstance(value, Tensor):
            self.graph[name].check(value)
            return torch.full_like(like, value)
        if value.shape not in ((), like.shape):
            have, want = tuple(value.shape), tuple(like.shape)
            raise InputError(f"do({name}) needs shape {want}, not {have}")
        return value.to(like).expand_as(like)

    def extra_repr(self) -> str:
        """The graph and the target, for ``repr``."""
        return f"graph={self.graph}, target={self.target!r}"


def conditions(graph: CausalGraph = CHEST, outcome: str = "image") -> int:
    """The length D of the vector by which the image mechanism knows its parents.

    Example:
        >>> conditions()
        7
    """
    return sum(widths(graph, graph.parents(outcome)).values())


def save(
    model: DeepSCM, path: Path | str, *, seed: int, notes: Mapping[str, Any] | None = None
) -> None:
    """Writes a model as safetensors and a JSON manifest; see :mod:`cfscm.networks`.

    Args:
        model: The model.
        path: The file of the weights, ``*.safetensors``; the manifest ends in ``.json``.
        seed: The seed that the model was trained with.
        notes: Further entries of the manifest: training settings, statistics, data.
    """
    config = {
        "image": asdict(model.image.config),
        "mechanisms": asdict(model.settings),
        "target": model.target,
        "outcome": model.outcome,
        "graph": repr(model.graph),
    }
    if model.inference is not None:
        config["inference"] = asdict(model.inference.config)
    write_weights(path, model, config, seed=seed, notes=notes)


def load(
    path: Path | str,
    *,
    graph: CausalGraph = CHEST,
    image: Callable[[Mapping[str, Any]], ImageModel] | None = None,
) -> DeepSCM:
    """Reads a model that :func:`save` wrote.

    Args:
        path: The file of the weights.
        graph: The graph of the model.
        image: Makes the image mechanism from its configuration, with tuples for lists; by
            default an :class:`~cfscm.image.ImageMechanism`.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        InputError: If a file is damaged, or belongs to another graph.
    """

    def make(config: Mapping[str, Any]) -> DeepSCM:
        if config["graph"] != repr(graph):
            raise InputError(f"{path} was made for {config['graph']}, not for {graph!r}")
        parts = {name: _tuples(config[name]) for name in ("image", "mechanisms")}
        return DeepSCM(
            (image or _image)(parts["image"]),
            graph=graph,
            mechanisms=MechanismConfig(**parts["mechanisms"]),
            target=config["target"],
            outcome=config["outcome"],
            inference=InferenceConfig(**config["inference"]) if "inference" in config else None,
        )

    return read_weights(path, make).eval()


def _image(config: Mapping[str, Any]) -> ImageModel:
    from cfscm.image import ImageConfig, ImageMechanism

    return ImageMechanism(ImageConfig(**config))


def _tuples(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
