r"""Patients drawn from the phantom, and the generator of their true counterfactuals."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Generator as RandomState
from torch import Tensor

from cfchest.graph import CHEST
from cfchest.phantom.anatomy import measures
from cfchest.phantom.equations import CAUSES, draw_parents, image_noise, lung_mean, parent_noise
from cfchest.phantom.render import develop
from cfcore.checks import InputError
from cfcore.generator import Effect, Parents, values_set
from cfcore.graph import CausalGraph

_CHUNK = {"cpu": 2**17, "other": 2**24}  # pixels drawn at once: the cache of a core, a GPU's fill
Index = int | slice | Tensor
_Values = Mapping[str, Tensor | float]  # of an intervention


@dataclass(frozen=True)
class Phantom:
    r"""The phantom: a structural causal model and a renderer.

    Abduction needs the noise that a :class:`Cohort` holds, and is done by its
    :class:`Oracle`; action and prediction are done here.

    Args:
        size: Height and width of the images, in pixels; one number for square images.

    Example:
        >>> phantom = Phantom()
        >>> cohort = phantom.sample(4, hospital="C", seed=0)
        >>> x = cohort.images[:]
        >>> x.shape, sorted(cohort.pa)
        (torch.Size([4, 1, 64, 64]), ['age', 'effusion', 'lung_size', 'race', 'sex'])
        >>> older = phantom.act(cohort.pa, {"age": 80}, effect="total")
        >>> phantom.predict(cohort.noise, older).shape
        torch.Size([4, 1, 64, 64])
    """

    size: int | tuple[int, int] = 64
    graph: ClassVar[CausalGraph] = CHEST

    def __post_init__(self) -> None:
        if min(self.shape) < 8:
            raise InputError(f"images need 8 pixels a side or more, not {self.size}")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the images."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def sample(
        self, n: int, *, hospital: str, seed: int, device: torch.device | str = "cpu"
    ) -> "Cohort":
        """Draws patients.

        Row i depends on the seed, the hospital and i alone: a longer cohort starts with the
        shorter one, and cohorts of different seeds or hospitals share no noise.

        Args:
            n: The number of patients.
            hospital: ``"C"`` or ``"M"``.
            seed: The seed.
            device: Where to keep the noise and to render.

        Returns:
            The cohort; its images are rendered when they are asked for.
        """
        if n < 1:
            raise InputError(f"a cohort needs a patient, not n = {n}")
        rows = torch.arange(n)
        noise = image_noise(rows, hospital=hospital, seed=seed)
        u = parent_noise(rows, hospital=hospital, seed=seed)
        made = (draw_parents(u, hospital), noise)
        pa, noise = ({name: value.to(device) for name, value in tree.items()} for tree in made)
        return Cohort(self, pa, noise, hospital, seed, rows)

    def act(
        self, pa: Parents, do: _Values, *, effect: Effect = "direct", rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        r"""Replaces parents by values; see :class:`cfcore.generator.Generator`.

        Lung size is the one descendant that can follow: its noise :math:`u_\ell = \ell -
        m(s, a)` is kept, so that :math:`\tilde{\ell} = \ell + m(\tilde{s}, \tilde{a}) -
        m(s, a)`. Effusion descends from age, but it is the label and is held. Numbers are
        checked against the range of their variable, tensors are not. ``rng`` is not used, as the
        mechanism that may follow is invertible.
        """
        if effect not in ("direct", "total"):
            raise InputError(f"effect is 'direct' or 'total', not {effect!r}")
        own = {name: pa[name] for name in CAUSES}
        acted = own | values_set(CHEST, own, do)
        if effect == "total" and "lung_size" not in do:
            shift = lung_mean(acted["sex"], acted["age"]) - lung_mean(pa["sex"], pa["age"])
            acted["lung_size"] = pa["lung_size"] + shift
        return acted

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Renders the images that the noise gives under the parents, a chunk at a time.

        The bits do not depend on the chunk when height times width is a multiple of 32 and the
        number of threads a power of two. Otherwise the ends of the vector loops of a processor
        may round differently: pixels then agree to 1e-7.

        Args:
            noise: The exogenous noise of the image, each of shape (B,).
            pa: The parents, each of shape (B,).

        Returns:
            The images, float32, shape (B, 1, H, W), in [0, 1].
        """
        count = len(noise["texture"])
        wrong = {name: tuple(pa[name].shape) for name in CAUSES if pa[name].shape != (count,)}
        if wrong:
            raise InputError(f"parents of shape ({count},) are needed, not {wrong}")
        x = noise["gamma"].new_empty(count, 1, *self.shape)
        chunk = max(1, _CHUNK.get(x.device.type, _CHUNK["other"]) // (x.shape[2] * x.shape[3]))
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            m = measures(_take(noise, rows), _take(pa, rows))
            fields = (noise[name][rows] for name in ("texture", "detector", "grain"))
            x[rows] = develop(m, *fields, self.shape)
        return x


@dataclass(frozen=True)
class _Rendered:
    """The images of a cohort, rendered when indexed, or called with rows as a data set does."""

    cohort: "Cohort" = field(repr=False)

    def __len__(self) -> int:
        return len(self.cohort)

    def __getitem__(self, index: Index) -> Tensor:
        if isinstance(index, int):
            return self[torch.tensor([index])][0]
        cohort = self.cohort
        return cohort.phantom.predict(_take(cohort.noise, index), _take(cohort.pa, index))

    def __call__(self, rows: np.ndarray) -> Tensor:
        return self[torch.as_tensor(rows)].cpu()

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of all that decides how the rows look, by which a cache is named."""
        cohort = self.cohort
        facts = [_own_digest(), cohort.hospital, cohort.seed, cohort.phantom.shape]
        digest = hashlib.sha256(json.dumps(facts).encode())
        digest.update(cohort.rows[torch.as_tensor(rows)].numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Cohort:
    """Patients: their parents and the noise of their images.

    A patient takes less than 200 bytes, against 16 kB for a rendered image of 64 pixels.

    Args:
        phantom: The phantom that drew them.
        noise: The exogenous noise of the images, each of shape (N,).
        rows: The row of each patient in the draw of that seed, int64, shape (N,).
    """

    phantom: Phantom
    pa: dict[str, Tensor] = field(repr=False)
    noise: dict[str, Tensor] = field(repr=False)
    hospital: str
    seed: int
    rows: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.pa["sex"])

    @property
    def images(self) -> _Rendered:
        """The images: index them as one tensor of shape (N, 1, H, W)."""
        return _Rendered(self)

    @property
    def oracle(self) -> "Oracle":
        """The generator of the true counterfactuals of these patients."""
        return Oracle(self.phantom.size, self.noise)

    def take(self, index: Index) -> "Cohort":
        """The patients of some rows, in their order."""
        rows = self.rows[index.cpu() if isinstance(index, Tensor) else index]
        return replace(self, pa=_take(self.pa, index), noise=_take(self.noise, index), rows=rows)


@dataclass(frozen=True)
class Oracle(Phantom):
    """The generator of true counterfactuals: a phantom that knows the noise of its patients.

    The noise cannot be read off the pixels (nobody knows the breasts of a man), so abduction
    looks it up by the row of the patient.

    Args:
        size: Height and width of the images, as of the phantom.
        noise: The exogenous noise of the cohort, each of shape (N,).
    """

    noise: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        """Looks up the noise that made the images, each of shape (B,).

        Of ``x`` only the number of images is read, of ``pa`` and ``rng`` nothing; ``index`` holds
        the rows of the images in the cohort, shape (B,).
        """
        if index is None:
            raise InputError("the oracle looks its noise up: pass index, the rows of the images")
        if index.shape != (len(x),):
            have = tuple(index.shape)
            raise InputError(f"{len(x)} images need an index of shape ({len(x)},), not {have}")
        return _take(self.noise, index)


@cache
def _own_digest() -> str:
    """A hash of the phantom: of its coefficients, and of the source code that draws with them."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _take(tree: Mapping[str, Tensor], index: Index) -> dict[str, Tensor]:
    return {name: value[index] for name, value in tree.items()}
