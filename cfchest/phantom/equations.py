r"""The structural causal model of the phantom: who the patients are and what shapes them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cfchest.graph import CHEST
from cfchest.phantom.draws import mix, row_keys, truncated_normal, uniform
from cfcore.checks import InputError

CAUSES = tuple(CHEST.parents("image"))
_ANATOMY = (
    "shift_x", "shift_y", "tilt", "wall", "shoulder", "aspect", "apex", "dome", "dome_right",
    "rib_phase", "rib_slope", "bone", "heart", "heart_tilt", "aorta", "lucency", "hilum", "vessels",
    "breast", "breast_low", "stomach", "trachea", "scar_right", "scar_left",
    "severity", "side", "opacity", "gamma", "gain", "offset",
)  # fmt: skip
"""The names of the exogenous variables of the image, one number each."""
_UNIFORM = frozenset({"rib_phase", "vessels", "severity", "side"})
"""Those of them that are uniform on (0, 1); the others are standard normal, truncated."""
_LATTICE = 2.0**20


@dataclass(frozen=True)
class Hospital:
    """Where patients come from and how they are imaged.

    Args:
        female: Probability that a patient is female.
        race: Probabilities of white, asian and black.
        age_mean: Mean of age before truncation to its range, in years.
        age_sd: Standard deviation of age before truncation, in years.
        log_odds: Log-odds of effusion at the age of 60.
        gamma: Mean exponent of the display curve.
        gain: Mean brightness of the densest tissue.
        grain: Standard deviation of the detector noise, on the scale of the image.
    """

    female: float
    race: tuple[float, float, float]
    age_mean: float
    age_sd: float
    log_odds: float
    gamma: float
    gain: float
    grain: float


HOSPITALS: Mapping[str, Hospital] = {
    "C": Hospital(0.42, (0.72, 0.18, 0.10), 61.0, 17.0, -0.62, 1.00, 0.94, 0.008),
    "M": Hospital(0.50, (0.64, 0.08, 0.28), 57.0, 19.0, -1.05, 1.18, 0.90, 0.006),
}
"""Hospital C resembles CheXpert and M resembles MIMIC-CXR, in kind rather than in number."""


@dataclass(frozen=True)
class Coefficients:
    r"""The coefficients of the structural equations.

    With :math:`s` the sex (1 = female), :math:`a = (\mathrm{age} - 55) / 35`, :math:`r` the
    race, :math:`\ell` the lung size, :math:`y` the effusion, :math:`u` independent noise and
    :math:`v` that of the side:

    .. math::
        \mathrm{logit}\, P(y = 1) &= b_h + \texttt{effusion\_age} \cdot (\mathrm{age} - 60) / 20 \\
        \ell &= \texttt{lung} + \texttt{lung\_sex} \cdot s + \texttt{lung\_age} \cdot a
            + \texttt{lung\_noise} \cdot u_\ell \\
        \mathrm{bone} &= 1 + \texttt{bone\_age} \cdot a + \texttt{bone\_noise} \cdot u \\
        \mathrm{heart} &= 1 + \texttt{heart\_age} \cdot a + \texttt{heart\_sex} \cdot s
            + \texttt{heart\_noise} \cdot u \\
        \mathrm{aorta} &= 1 + \texttt{aorta\_age} \cdot a + \texttt{aorta\_noise} \cdot u \\
        \mathrm{lucency} &= 1 + \texttt{lucency\_age} \cdot a + \texttt{lucency\_noise} \cdot u \\
        \mathrm{breast} &= s \cdot (1 + \texttt{breast\_noise} \cdot u) \\
        \mathrm{shoulder} &= 1 + \texttt{shoulder\_sex} \cdot s
            + \texttt{shoulder\_noise} \cdot u \\
        \mathrm{scar} &= \texttt{scar} \cdot [u + \texttt{scar\_age} \cdot a]_+ \\
        \mathrm{fluid} &= y \cdot (\texttt{fluid\_least} + \texttt{fluid\_span} \cdot u^2) \\
        \mathrm{right} &= \mathrm{fluid} \cdot 1[v < 0.7] + \mathrm{scar}_{\mathrm{right}} \\
        \mathrm{left} &= \mathrm{fluid} \cdot (1 - 0.4 \cdot 1[v < 0.7]) \cdot 1[v > 0.4]
            + \mathrm{scar}_{\mathrm{left}} \\
        \gamma &= \gamma_h \cdot (1 + \texttt{gamma\_noise} \cdot u)
            (1 + \texttt{gamma\_race}_r) \\
        g &= g_h \cdot (1 + \texttt{gain\_noise} \cdot u)

    where :math:`b_h`, :math:`\gamma_h` and :math:`g_h` belong to the hospital. Every other
    number of the anatomy is noise alone.

    The effect of race is **arbitrary**: a shift of the display curve that stands for whatever
    differences of acquisition let networks read race from real radiographs. It depicts no
    anatomy, and no claim about patients follows from it.

    The values were settled on draws for training and validation, and are frozen: a later
    number is never met by changing the data.
    """

    effusion_age: float = 0.5
    lung: float = 0.305
    lung_sex: float = -0.027
    lung_age: float = -0.012
    lung_noise: float = 0.018
    bone_age: float = -0.28
    bone_noise: float = 0.12
    heart_age: float = 0.14
    heart_sex: float = -0.03
    heart_noise: float = 0.07
    aorta_age: float = 0.45
    aorta_noise: float = 0.15
    lucency_age: float = 0.13
    lucency_noise: float = 0.06
    breast_noise: float = 0.25
    shoulder_sex: float = -0.05
    shoulder_noise: float = 0.04
    gamma_race: tuple[float, float, float] = (0.0, 0.12, -0.12)
    gamma_noise: float = 0.14
    gain_noise: float = 0.035
    fluid_least: float = 0.035
    fluid_span: float = 0.32
    scar: float = 0.038
    scar_age: float = 0.5


COEFFICIENTS = Coefficients()


def standard_age(age: Tensor) -> Tensor:
    """Age on the scale of the equations, -1 at 20 and 1 at 90 years."""
    return (age - 55) / 35


def lung_mean(sex: Tensor, age: Tensor) -> Tensor:
    r"""The mean of the lung size given sex and age.

    Rounded to a multiple of :math:`2^{-20}`, as the lung sizes themselves are: sums and
    differences of such numbers are exact in float32, so moving a lung size from one mean to
    another and back returns the very number.
    """
    c = COEFFICIENTS
    mean = c.lung + c.lung_sex * sex + c.lung_age * standard_age(age)
    return (mean * _LATTICE).round() / _LATTICE


def effusion_probability(age: Tensor, h: Hospital) -> Tensor:
    """The probability of effusion given age."""
    return torch.sigmoid(h.log_odds + COEFFICIENTS.effusion_age * (age - 60) / 20)


def draw_parents(u: Mapping[str, Tensor], hospital: str) -> dict[str, Tensor]:
    r"""The parents that the noise gives: the structural equations in topological order.

    Discrete variables are quantile functions of uniform noise, :math:`y = 1[u < p]` and
    :math:`r = \#\{k : u \ge p_0 + \dots + p_k\}`; age is the quantile function of a normal
    distribution truncated to its range; lung size adds normal noise to its mean.

    Args:
        u: Uniform noise for each parent, float64, shape (N,).
        hospital: ``"C"`` or ``"M"``.

    Returns:
        The parents, float32, each of shape (N,).
    """
    h = HOSPITALS[hospital]
    edges = (torch.tensor(CHEST["age"].range, dtype=torch.float64) - h.age_mean) / h.age_sd
    low, high = torch.special.ndtr(edges)
    age = (h.age_mean + h.age_sd * torch.special.ndtri(low + (high - low) * u["age"])).float()
    sex = (u["sex"] < h.female).float()
    lung_noise = COEFFICIENTS.lung_noise * truncated_normal(u["lung_size"])
    return {
        "sex": sex,
        "race": (u["race"] >= h.race[0]).float() + (u["race"] >= h.race[0] + h.race[1]),
        "age": age.clamp(*CHEST["age"].range),
        "lung_size": lung_mean(sex, age) + (lung_noise * _LATTICE).round().float() / _LATTICE,
        "effusion": (u["effusion"] < effusion_probability(age.double(), h)).float(),
    }


def parent_noise(rows: Tensor, *, hospital: str, seed: int) -> dict[str, Tensor]:
    """The exogenous noise of the parents: uniform on (0, 1), float64, each of shape (N,)."""
    key = row_keys(seed, _stream(hospital, 0), rows)
    return {name: uniform(key, position) for position, name in enumerate(CAUSES)}


def image_noise(rows: Tensor, *, hospital: str, seed: int) -> dict[str, Tensor]:
    """The exogenous noise of the image.

    The display of an image is noise whose distribution belongs to the hospital; the structural
    equations are the same everywhere. The two fields, anatomical texture and detector noise,
    are held as keys from which they are drawn when the image is.

    Args:
        rows: The row numbers, int64, shape (N,).
        hospital: ``"C"`` or ``"M"``.

    Returns:
        One tensor of shape (N,) for each name of ``_ANATOMY``, float32; and ``texture`` and
        ``detector``, int64 keys of shape (N,).
    """
    key = row_keys(seed, _stream(hospital, 1), rows)
    h, c = HOSPITALS[hospital], COEFFICIENTS
    noise = {}
    for position, name in enumerate(_ANATOMY):
        u = uniform(key, position)
        noise[name] = u.float() if name in _UNIFORM else truncated_normal(u).float()
    noise["gamma"] = h.gamma * (1 + c.gamma_noise * noise["gamma"])
    noise["gain"] = h.gain * (1 + c.gain_noise * noise["gain"])
    noise["grain"] = torch.full_like(noise["gain"], h.grain)
    for use, name in enumerate(("texture", "detector"), start=2):
        noise[name] = row_keys(seed, _stream(hospital, use), rows)
    return noise


def fresh_detector(noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same noise behind a detector whose own noise is drawn anew.

    What it changes is no property of the patient, so that no generator can be asked to know it:
    the distance that it makes from the true counterfactual is the least that can be expected.
    """
    return {**noise, "detector": mix(noise["detector"] + 1)}


def _stream(hospital: str, use: int) -> int:
    if hospital not in HOSPITALS:
        raise InputError(f"unknown hospital {hospital!r}; there are {list(HOSPITALS)}")
    return 4 * list(HOSPITALS).index(hospital) + use
