r"""From parents and noise to the measures of one chest."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cfchest.phantom.equations import COEFFICIENTS, standard_age

_WIDTH, _HEIGHT = 0.56, 1.38  # of one lung at scale 1; the image spans [-1, 1] both ways
APEX_CURVE = 0.60  # share of the height over which the apex rounds off
DOME_AT = 0.42  # where the dome of the diaphragm is highest, as a share of the width


def measures(noise: Mapping[str, Tensor], pa: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The measures of the chests: the structural equations of :class:`Coefficients`.

    Args:
        noise: The exogenous noise of the image, each of shape (B,).

    Returns:
        Every number that the renderer reads, each of shape (B, 1, 1).
    """
    a, s, c = standard_age(pa["age"]), pa["sex"], COEFFICIENTS
    m = {
        "shift_x": 0.020 * noise["shift_x"],
        "shift_y": 0.025 * noise["shift_y"],
        "tilt": 0.022 * noise["tilt"],
        "wall": 0.17 + 0.04 * noise["wall"],
        "shoulder": 1 + c.shoulder_sex * s + c.shoulder_noise * noise["shoulder"],
        "rib_phase": noise["rib_phase"],
        "rib_slope": 1 + 0.15 * noise["rib_slope"],
        "bone": 1 + c.bone_age * a + c.bone_noise * noise["bone"],
        "heart": 1 + c.heart_age * a + c.heart_sex * s + c.heart_noise * noise["heart"],
        "heart_tilt": 0.32 + 0.044 * noise["heart_tilt"],  # tangent of half the angle
        "aorta": 1 + c.aorta_age * a + c.aorta_noise * noise["aorta"],
        "lucency": 1 + c.lucency_age * a + c.lucency_noise * noise["lucency"],
        "vessels": 2 * torch.pi * noise["vessels"],
        "hilum": 1 + 0.20 * noise["hilum"],
        "breast": s * (1 + c.breast_noise * noise["breast"]),
        "breast_low": 0.05 * noise["breast_low"],
        "stomach": (0.25 + 0.25 * noise["stomach"]).clamp(min=0),
        "trachea": 0.02 + 0.02 * noise["trachea"],
        "gamma": noise["gamma"] * (1 + _race_effect(pa["race"])),
        "gain": noise["gain"],
        "offset": 0.03 + 0.01 * noise["offset"],
    }
    m |= lungs(noise, pa["lung_size"]) | fluid_depths(noise, pa["effusion"], a)
    return {name: value[:, None, None] for name, value in m.items()}


def _race_effect(race: Tensor) -> Tensor:
    """The arbitrary shift of the display curve, picked by the code without a host round trip."""
    white, asian, black = COEFFICIENTS.gamma_race
    return white + (asian - white) * (race == 1) + (black - white) * (race == 2)


def lungs(noise: Mapping[str, Tensor], lung_size: Tensor) -> dict[str, Tensor]:
    r"""The width, height and diaphragm of the lungs, so that they cover the given area.

    In its own coordinates, :math:`\xi` from the medial to the lateral edge and :math:`\eta`
    downwards from the apex, a lung lies between half an ellipse and a parabola,

    .. math:: h \big(1 - \sqrt{1 - t(\xi)^2}\big) < \eta < 1 - \delta
        - d \Big(1 - \big(\tfrac{\xi - m}{1 - m}\big)^2\Big)

    with :math:`t` from -1 to 1 across the lung and :math:`h = 0.6`, :math:`m = 0.42`. Its area
    is :math:`A = 1 - \delta - d\,(1 - J) - h\,(1 - \pi/4)`, where :math:`J =
    \frac{(1-m)^3 + m^3}{3 (1-m)^2}`; so both lungs fill the share :math:`\ell` of an image of
    area 4 when they are scaled by

    .. math:: k = \sqrt{\frac{4 \ell}{w h_0 (A_{\mathrm{left}} + A_{\mathrm{right}})}}

    The area is that of the lung fields, the part behind the heart or under fluid included.
    """
    dome = 0.17 + 0.02 * noise["dome"]
    rise = 0.045 + 0.015 * noise["dome_right"]  # delta of the right side; 0 on the left
    parabola = ((1 - DOME_AT) ** 3 + DOME_AT**3) / (3 * (1 - DOME_AT) ** 2)  # J
    lost = (1 - parabola) * dome + APEX_CURVE * (1 - torch.pi / 4)
    scale = torch.sqrt(4 * lung_size / (_WIDTH * _HEIGHT * (2 - rise - 2 * lost)))
    aspect = 1 + 0.04 * noise["aspect"]
    width, height = _WIDTH * scale * aspect, _HEIGHT * scale / aspect
    low = {"apex": -0.82 + 0.03 * noise["apex"], "dome": dome, "dome_right": rise}
    return {"lung_width": width, "lung_height": height, **low}


def fluid_depths(noise: Mapping[str, Tensor], effusion: Tensor, a: Tensor) -> dict[str, Tensor]:
    r"""The depth of fluid above each costophrenic angle, in lung heights.

    An effusion has a severity and a side of its own: right, left, or both with less on the
    left. Old pleural scars blunt the angle of healthy patients too, a little, which is what
    keeps small effusions difficult.
    """
    c, side = COEFFICIENTS, noise["side"]
    depth = effusion * (c.fluid_least + c.fluid_span * noise["severity"] * noise["severity"])
    right, left = depth * (side < 0.70), depth * (1 - 0.4 * (side < 0.70)) * (side > 0.40)
    return {
        "fluid_right": right + c.scar * (noise["scar_right"] + c.scar_age * a).clamp(min=0),
        "fluid_left": left + c.scar * (noise["scar_left"] + c.scar_age * a).clamp(min=0),
        "opacity": 0.85 + 0.10 * noise["opacity"],
    }
