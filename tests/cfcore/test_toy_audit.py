"""An audit that is not of a chest: photographs in colour, four sites, two labels, one network."""

import pytest
import torch
from torch import Tensor, nn

from cfcore import CausalGraph, Grid, Patients, marginalise


class Camera:
    """Red shows the site, green the rash, blue the fever: all that a photograph says."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> Tensor:
        return x - self.predict(torch.zeros_like(x), pa)

    def predict(self, noise: Tensor, pa: dict) -> Tensor:
        shades = torch.stack((pa["site"] / 4, pa["rash"] / 2, pa["fever"] / 2), dim=1)
        return noise + shades[:, :, None, None]


class Head(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # the rash from the green, the fever from the red
        return x.mean(dim=(2, 3))[:, [1, 0]] * torch.tensor([8, 4]) - 2


def test_a_network_is_found_to_read_the_site_in_one_of_its_two_labels() -> None:
    sites = ["Oxford", "Lyon", "Rome", "Bonn"]
    graph = CausalGraph.from_yaml(f"site: {{kind: categorical, categories: {sites}}}")
    labels = {"rash": torch.tensor([0.0, 1, 0, 1]), "fever": torch.tensor([0.0, 0, 1, 1])}
    pa = {"site": torch.tensor([0.0, 1, 1, 3]), **labels}
    data = Patients(Camera().predict(torch.full((4, 3, 8, 8), 0.1), pa), pa, labels)
    grid = Grid.product({"site": sites}, graph=graph).empirical(data)
    found = marginalise(Camera(), {"head": Head()}, data, grid)

    assert grid.q.tolist() == [0.25, 0.5, 0, 0.25]
    assert found["head:rash"].evaluate()["S_var"] == pytest.approx(0, abs=1e-12)
    p = (4 * (0.1 + pa["site"].double() / 4) - 2).sigmoid()  # at the patients' own sites
    assert found["head:fever"].evaluate()["S_var"] == pytest.approx(p.var(correction=0).item())
