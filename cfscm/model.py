r"""The deep structural causal model: mechanisms of the parents and of the image in one module."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Generator as RandomState
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.generator import Effect, Parents, values_set
from cfcore.graph import CausalGraph
from cfscm.detail import DetailConfig, DetailedImage
from cfscm.encoding import encode, widths
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.inference import InferenceConfig, ParentPredictors
from cfscm.mechanisms import MechanismConfig, build_mechanisms, fit_mechanisms
from cfscm.weights import read_weights, write_weights

_Values = Mapping[str, Tensor | float]  # of an intervention


class DeepSCM(nn.Module):
    r"""A structural causal model whose mechanisms are learned (appendix of the paper).

    Parents follow :math:`y_j = f_j(\mathbf{pa}_j, u_j)` and the image
    :math:`x = f_x(\mathbf{pa}, u_x)`. A counterfactual value is obtained in topological order,

    .. math:: \tilde{y}_j = f_j\big(\widetilde{\mathbf{pa}}_j, f_j^{-1}(\mathbf{pa}_j, y_j)\big)

    It abducts, acts and predicts as a :class:`~cfcore.generator.Generator`.

    Args:
        image: The mechanism of the image, made for the vector :meth:`encode` of its parents.
        graph: The causal graph; the parents of ``outcome`` are the parents of the image.
        target: The label to be predicted, held by every action on other variables.
        mechanisms: What the mechanisms of the parents are made of.
        outcome: The name of the image in the graph.
        inference: What the predictors of missing parents are made of; there are none without.
    """

    def __init__(
        self,
        image: ImageMechanism | DetailedImage,
        *,
        graph: CausalGraph,
        target: str | None,
        mechanisms: MechanismConfig | None = None,
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
        self.mechanisms = build_mechanisms(graph, self.names, self.settings, seed=seed)
        self.image, self.inference = image, None
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
            how = "train one on partly labelled data, or leave out the rows that miss a parent"
            raise InputError(f"this generator has no predictors of missing parents: {how}")
        return self.inference.impute(x, pa, rng)

    def fit_parents(self, pa: Parents, *, seed: int) -> dict[str, float]:
        """Fits the mechanisms of the parents; see :func:`.fit_mechanisms`."""
        return fit_mechanisms(self.mechanisms, pa, self.settings, seed=seed)

    def encode(self, pa: Parents) -> Tensor:
        """The parents as the image mechanism sees them, shape (B, D)."""
        return encode(self.graph, pa, self.names)

    def log_prob(self, pa: Parents) -> dict[str, Tensor]:
        r"""The terms :math:`\log p(y_j \mid \mathbf{pa}_j)` of each parent, shape (B,)."""
        return {name: m.log_prob(pa[name], pa) for name, m in self.mechanisms.items()}

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        """Infers the noise of the images, from them alone, not from ``index``.

        See :meth:`cfcore.generator.Generator.abduct`.
        """
        return self.image.abduct(x, self.encode(pa), rng)

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Draws the images that the noise gives, shape (B, 1, H, W), in [0, 1]."""
        return self.image.predict(noise, self.encode(pa))

    def act(
        self, pa: Parents, do: _Values, *, effect: Effect = "direct", rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        """Intervenes; see :class:`cfcore.generator.Generator`.

        A variable whose causes did not change keeps its exact value, not one that went through
        the mechanism and back.

        Numbers in ``do`` are checked against the range of their variable, tensors of shape (B,) are
        not.
        """
        if effect not in ("direct", "total"):
            raise InputError(f"effect is 'direct' or 'total', not {effect!r}")
        own = {name: pa[name] for name in self.names}
        acted = own | values_set(self.graph, own, do)
        follow = set(self.graph.descendants(*do)) - {self.target} if effect == "total" else set()
        for name in self.names:
            if name in follow and name not in do:
                acted[name] = self._follow(name, pa, acted, rng)
        return acted

    def _follow(self, name: str, pa: Parents, acted: Parents, rng: RandomState | None) -> Tensor:
        """The value of a descendant, by its own noise, after its causes have changed."""
        mechanism, y = self.mechanisms[name], pa[name]
        u, causes = mechanism.abduct(y, pa, rng), self.graph.parents(name)
        same = torch.stack([pa[cause] == acted[cause] for cause in causes]).all(dim=0)
        return torch.where(same, y, mechanism.predict(u, acted).to(y.dtype))

    def extra_repr(self) -> str:
        """The graph and the target, for ``repr``."""
        return f"graph={self.graph}, target={self.target!r}"


def save_model(
    model: DeepSCM, path: Path | str, *, seed: int, notes: Mapping[str, Any] | None = None
) -> None:
    """Writes a model as safetensors and a JSON manifest; see :func:`.write_weights`.

    The image mechanism is kept, and from then on used, in half precision.
    """
    image = model.image
    config = {"image": asdict(getattr(image, "first", image).config)}
    config |= {"mechanisms": asdict(model.settings)}
    if isinstance(image, DetailedImage):
        config["detail"] = asdict(image.config)
    config |= {"target": model.target, "outcome": model.outcome, "graph": repr(model.graph)}
    if model.inference is not None:
        config["inference"] = asdict(model.inference.config)
    write_weights(path, model, config, seed=seed, notes=notes, half="image")


def load_model(path: Path | str, *, graph: CausalGraph) -> DeepSCM:
    """Reads a model that :func:`~cfscm.model.save_model` wrote.

    It is in evaluation mode, on the CPU. A file that is damaged, or of another graph, raises an
    :class:`InputError`.
    """

    def make(config: Mapping[str, Any]) -> DeepSCM:
        if config["graph"] != repr(graph):
            raise InputError(f"{path} was made for {config['graph']}, not for {graph!r}")
        inference = InferenceConfig(**config["inference"]) if "inference" in config else None
        settings = {name: config[name] for name in ("target", "outcome")}
        settings |= {"mechanisms": MechanismConfig(**config["mechanisms"]), "inference": inference}
        image = ImageMechanism(ImageConfig(**config["image"]))
        if "detail" in config:
            names = [name for name in graph if name in graph.parents(config["outcome"])]
            entries = widths(graph, names)
            image = DetailedImage(image, DetailConfig(**config["detail"]), entries)
        return DeepSCM(image, graph=graph, **settings)

    return read_weights(path, make).eval()
