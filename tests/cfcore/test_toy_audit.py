"""An audit that is not of a chest: photographs in colour, four sites, two labels, one network."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cfcore.graph import CausalGraph
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.patients import Patients

GRAPH = """
site: {kind: categorical, categories: [Oxford, Lyon, Rome, Bonn]}
rash: {kind: binary}
fever: {kind: binary, parents: [site]}
image: {kind: continuous, range: [0, 1], parents: [site, rash, fever]}
"""


class Camera:
    """Red shows the site, green the rash, blue the fever: all that a photograph says."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> Tensor:
        return x - self.predict(torch.zeros_like(x), pa)

    def predict(self, noise: Tensor, pa: dict) -> Tensor:
        shades = torch.stack((pa["site"] / 4, pa["rash"] / 2, pa["fever"] / 2), dim=1)
        return noise + shades[:, :, None, None]


class Head(nn.Module):
    """Two logits from one image: the rash from the green channel alone, the fever from the red."""

    def forward(self, x: Tensor) -> Tensor:
        red, green, _ = x.mean(dim=(2, 3)).unbind(dim=1)
        return torch.stack((8 * green - 2, 4 * red - 2), dim=1)


def test_a_network_is_found_to_read_the_site_in_one_of_its_two_labels() -> None:
    graph, sites = CausalGraph.from_yaml(GRAPH), ["Oxford", "Lyon", "Lyon", "Bonn"]
    pa = {"site": torch.tensor([0.0, 1, 1, 3]), "rash": torch.tensor([0.0, 1, 0, 1])}
    labels = {"rash": pa["rash"], "fever": torch.tensor([0.0, 0, 1, 1])}
    x = Camera().predict(torch.full((4, 3, 8, 8), 0.1), {**pa, **labels})
    data = Patients(x, {**pa, **labels}, labels, sites, columns={"town": sites})
    grid = Grid.product({"site": ["Oxford", "Lyon", "Bonn"]}, graph=graph).empirical(data)

    found = marginalise(Camera(), {"head": Head()}, data, grid)

    assert grid.q.tolist() == [0.25, 0.5, 0.25]
    assert [p.provenance["outputs"] for p in found.values()] == [["rash", "fever"]] * 2
    assert found["head:rash"].evaluate()["S_var"] == pytest.approx(0, abs=1e-12)
    p = 1 / (1 + np.exp(2 - 4 * (0.1 + np.array([0, 1, 1, 3]) / 4)))  # at the patients' own sites
    assert found["head:fever"].evaluate()["S_var"] == pytest.approx(p.var(), rel=1e-5)
