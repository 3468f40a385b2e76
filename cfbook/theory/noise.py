r"""Generator noise: how much of a score's variance is the generator's own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from cfbook.theory.estimators import (
    counterfactual_variance,
    observational_mean,
    tolerable_generator_noise,
)
from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfcore.generator import Effect, Generator, Parents, act
from cfcore.graph import CausalGraph
from cfcore.metrics import stability_variance
from cfcore.predictor import Predictor

Scores = dict[tuple[str, str], Tensor]
"""Probabilities by world and predictor."""


def generator_noise(
    generator: Generator,
    data: Dataset,
    audited: Mapping[str, Predictor],
    *,
    truth: Generator | None = None,
    attributes: Sequence[str] = ("sex", "race"),
    draws: int = 8,
    effect: Effect = "direct",
    graph: CausalGraph = CHEST,
    seed: int = 0,
    batch: int = 32,
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    r"""Abducts every patient several times and asks what the draws do to the score.

    In each world :math:`z` (nothing changed, or one attribute set to one value for everybody)
    patient i has R scores :math:`g_{ir}` from R draws of the posterior of the noise. The
    generator's noise, its error against the true score :math:`g_i^*`, and the squared bias are

    .. math:: \sigma^2_{\mathrm{gen}} = \frac{1}{n} \sum_i \mathrm{Var}_r[g_{ir}], \qquad
        \mathrm{MSE} = \frac{1}{nR} \sum_{i,r} (g_{ir} - g_i^*)^2, \qquad
        \mathrm{bias}^2 = \mathrm{MSE} - \sigma^2_{\mathrm{gen}}

    Proposition 1 promises a gain where :math:`\sigma^2_{\mathrm{gen}} \leq \sigma^2 (1 - n_z/n)`;
    it knows of no bias, which is why the error stands beside it.

    Args:
        generator: The generator on trial.
        data: The patients, n of them.
        audited: The predictors, by name.
        truth: The generator of true counterfactuals, where they are known.
        attributes: The discrete variables to set.
        draws: The draws R of each patient's noise.
        effect: The effect of the interventions.
        graph: The graph.
        seed: The seed of the draws.
        batch: Patients at once.
        device: Where to compute; networks are there already.

    Returns:
        One row for each world and predictor: ``intervention, effect, classifier, patients, draws,
        sigma2_gen, S_var, mse, squared_bias, mean_error, sigma2, n_z, tolerable, holds``. The
        stability ``S_var`` is what the noise causes by itself, in a world in which nothing else
        varies; in the null world an additive residual makes it 0, whatever is drawn. NaN where
        a column does not apply; ``holds`` is then ``None``.
    """
    worlds: dict[str, dict[str, float]] = {"null": {}}
    for name in attributes:
        worlds |= {f"{name} = {value}": {name: float(value)} for value in graph[name].values}
    rng, device = torch.Generator(device).manual_seed(seed), torch.device(device)
    kept: dict[str, dict[tuple[str, str], list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    index = data.index
    for rows, x, pa in data.batches(batch):
        place = (x.to(device), {n: v.to(device) for n, v in pa.items()}, index[rows].to(device))
        for source, scores in _scores(
            generator, truth, audited, place, worlds, effect, draws, rng
        ).items():
            for key, values in scores.items():
                kept[source][key].append(values.cpu())
    whole = {s: {k: torch.cat(v) for k, v in part.items()} for s, part in kept.items()}
    made = [
        {"intervention": world, "effect": effect, "classifier": name}
        | _row(whole, (world, name), do, data.parents)
        for world, do in worlds.items()
        for name in audited
    ]
    return pd.DataFrame(made)


@torch.inference_mode()
def _scores(
    generator: Generator,
    truth: Generator | None,
    audited: Mapping[str, Predictor],
    place: tuple[Tensor, Parents, Tensor],
    worlds: Mapping[str, Mapping[str, float]],
    effect: Effect,
    draws: int,
    rng: torch.Generator,
) -> dict[str, Scores]:
    """The scores of a batch: observed (B,), drawn (B, R) and, where it is known, true (B,)."""
    x, pa, index = place

    def read(image: Tensor, parents: Parents) -> dict[str, Tensor]:
        return {name: g(image, parents).double().sigmoid() for name, g in audited.items()}

    def drawn(source: Generator, rng: torch.Generator | None) -> Scores:
        noise, found = source.abduct(x, pa, index=index, rng=rng), {}
        for world, do in worlds.items():
            values = {name: torch.full_like(pa[name], value) for name, value in do.items()}
            acted = act(source, pa, values, effect) if do else pa
            scores = read(source.predict(noise, acted), acted)
            found |= {(world, name): score for name, score in scores.items()}
        return found

    every = [drawn(generator, rng) for _ in range(draws)]
    scores = {
        "observed": {("", name): score for name, score in read(x, pa).items()},
        "drawn": {key: torch.stack([one[key] for one in every], dim=1) for key in every[0]},
    }
    return scores if truth is None else scores | {"true": drawn(truth, None)}


def _row(
    whole: Mapping[str, Scores], key: tuple[str, str], do: Mapping[str, float], pa: Parents
) -> dict[str, object]:
    g, observed = whole["drawn"][key], whole["observed"]["", key[1]]
    n, draws = g.shape
    noise = counterfactual_variance(g).noise.item() * n
    row: dict[str, object] = {"patients": n, "draws": draws, "sigma2_gen": noise}
    q = torch.full((draws,), 1 / draws, dtype=torch.float64)
    row["S_var"] = stability_variance(g, q, correction=1).item()
    row |= dict.fromkeys(("mse", "squared_bias", "mean_error", "sigma2", "n_z"), torch.nan)
    row |= {"tolerable": torch.nan, "holds": None}
    if "true" in whole:
        error = g - whole["true"][key][:, None]
        mse = error.square().mean().item()
        row |= {"mse": mse, "squared_bias": mse - noise, "mean_error": error.mean().item()}
    for name, value in do.items():
        member = pa[name] == value
        n_z = int(member.sum())
        sigma2 = observational_mean(observed, member).variance.item() * n_z
        limit = tolerable_generator_noise(sigma2, n_z, n).item()
        holds = noise <= limit if n_z > 1 else None
        row |= {"sigma2": sigma2, "n_z": n_z, "tolerable": limit, "holds": holds}
    return row
