"""Soundness: the truth is perfect, doing nothing is the baseline, and defects are caught."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from cfbook.study.learned import LEAK, RESULTS
from cfbook.study.recipes import GeneratorRecipe
from cfbook.theory.images import generator_noise
from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import Phantom
from cfchest.phantom.equations import fresh_detector
from cfcore.checks import InputError
from cfcore.cli import main
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.patients import Patients
from cfscm.soundness import interventions_of, soundness
from cfscm.soundness.baselines import Derived
from cfscm.soundness.distances import _structural_similarity, agreement, shift
from cfscm.soundness.leak import (
    _PENALTIES,
    _ridge,
    _whitened,
    gram,
    leak,
    noise_features,
)
from cfscm.soundness.support import support_table

TRIED = ("sex", "race", "age", "effusion")
NAMES = ("sex", "race", "age", "lung_size", "effusion")
COHORT = Phantom(16).sample(120, hospital="C", seed=5)
PAIRED = ("composition", "reversibility", "commutativity", "minimality", "faithfulness")


class Stamps:
    """Truth one can see: the parents are five pixels, the rest of the image is noise."""

    graph, leaf = CHEST, "base"

    def abduct(self, x: Tensor, pa: Mapping, *, index: object = None, rng: object = None) -> dict:
        x = x.clone()
        x[:, 0, 0, :5] = 0
        return {self.leaf: x}

    def act(self, pa: Mapping, do: Mapping, *, effect: str = "direct", rng: object = None) -> dict:
        return COHORT.phantom.act(pa, do, effect=effect)

    def predict(self, noise: Mapping[str, Tensor], pa: Mapping[str, Tensor]) -> Tensor:
        x = noise[self.leaf].clone()
        for column, name in enumerate(NAMES):
            x[:, 0, 0, column] = pa[name] / 90
        return x


class Stamp:
    """Reads a stamp, and nothing else."""

    def __init__(self, name: str) -> None:
        self.variable, self.column = CHEST[name], NAMES.index(name)

    def __call__(self, x: Tensor, pa: object = None) -> Tensor:
        value = x[:, 0, 0, self.column] * 90
        if self.variable.kind == "continuous":
            return value
        if self.variable.kind == "binary":
            return 20 * (value - 0.5)
        return -20 * (value[:, None] - torch.arange(3)) ** 2


def brightness(x: Tensor, pa: object = None) -> Tensor:
    return 20 * (x.mean(dim=(1, 2, 3)) - 0.5)


CLASSIFIERS = {name: Stamp(name) for name in NAMES}
AUDITED = {"brightness": brightness, "effusion": Stamp("effusion")}


@pytest.fixture(scope="module")
def data() -> Dataset:
    base = torch.rand(120, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    table = pd.DataFrame({name: COHORT.pa[name].numpy() for name in NAMES})
    x = Stamps().predict({"base": 0.5 * base}, COHORT.pa)
    return Dataset(table.assign(patient=[str(row) for row in range(120)]), x)


def judge(generator: object, data: Dataset, **options: object) -> pd.DataFrame:
    given = {"truth": Stamps(), "classifiers": CLASSIFIERS, "audited": AUDITED, "graph": CHEST}
    return soundness(generator, data, **given | {"interventions": TRIED} | options)


def pick(table: pd.DataFrame, column: str = "value", **labels: str) -> float:
    for name, label in labels.items():
        table = table[table[name] == label]
    return table[column].item()


def test_the_truth_is_perfect(data: Dataset) -> None:
    table = judge(Stamps(), data)

    assert set(table.axiom) == {*PAIRED, "effectiveness", "amplification", "leak"}
    pd.testing.assert_series_equal(table.value, table.oracle, check_names=False)
    exact = table[table.axiom.isin(PAIRED) & (table.axiom != "minimality")]
    perfect = exact.measure.map({"MAE": 0, "PSNR": np.inf, "SSIM": 1, "score difference": 0})
    np.testing.assert_allclose(exact.value, perfect, atol=1e-6)
    read = table[table.axiom == "effectiveness"]
    assert (read.value[read.measure.isin(["accuracy", "AUC"])] == 1).all()
    assert (read.value[read.measure == "error"] < 1e-4).all()


def test_doing_nothing_is_the_baseline(data: Dataset) -> None:
    class Nothing(Stamps):
        def abduct(self, x: Tensor, pa: Mapping, **_: object) -> dict:
            return {"x": x}

        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            return noise["x"]

    table = judge(Nothing(), data)

    pd.testing.assert_series_equal(table.value, table.identity, check_names=False)
    assert pick(table, axiom="effectiveness", intervention="sex", effect="direct",
                measure="accuracy", classifier="sex") == 0  # fmt: skip
    assert (table.value[(table.axiom == "minimality") & (table.measure == "MAE")] == 0).all()
    assert (table.value[(table.axiom == "faithfulness") & (table.measure == "MAE")] > 0).all()


def test_a_drift_is_caught_by_composition_and_reversibility(data: Dataset) -> None:
    class Drift(Stamps):
        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            return super().predict({"base": noise["base"] + 0.02}, pa)

    table = judge(Drift(), data, axioms=["composition", "reversibility"])

    mae = {"measure": "MAE", "axiom": "composition"}
    once = pick(table, intervention="null x 1", **mae)
    assert once == pytest.approx(0.02 * 251 / 256, abs=1e-6)
    assert pick(table, intervention="null x 3", **mae) == pytest.approx(3 * once, rel=1e-3)
    back = table[(table.axiom == "reversibility") & (table.measure == "MAE")]
    np.testing.assert_allclose(back.value, 2 * once, rtol=1e-3)
    assert (back.oracle == 0).all()


def test_an_unmoved_attribute_is_caught_by_effectiveness(data: Dataset) -> None:
    class Sexless(Stamps):
        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            return super().predict(noise, {**pa, "sex": COHORT.pa["sex"][: len(pa["sex"])]})

    table = judge(Sexless(), data, axioms=["effectiveness"], batch=120)

    labels = {"effect": "direct", "measure": "accuracy"}
    assert pick(table, intervention="sex", classifier="sex", **labels) == 0
    assert pick(table, "oracle", intervention="sex", classifier="sex", **labels) == 1
    assert pick(table, intervention="race", classifier="race", **labels) == 1


def test_a_spilled_attribute_is_caught_by_amplification(data: Dataset) -> None:
    class Spill(Stamps):
        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            return super().predict(noise, {**pa, "effusion": pa["sex"]})

    table = judge(Spill(), data, axioms=["amplification"])

    labels = {"intervention": "sex", "effect": "direct", "classifier": "effusion"}
    assert pick(table, measure="accuracy", **labels) < 0.8
    assert pick(table, "oracle", measure="accuracy", **labels) == 1
    assert pick(table, measure="shift", **labels) > 0.2
    assert pick(table, "oracle", measure="shift", **labels) == 0


def test_an_order_that_matters_is_caught_by_commutativity(data: Dataset) -> None:
    class Ordered(Stamps):
        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            added = 0.05 * (pa["sex"] * pa["age"] / 90)[:, None, None, None]
            return super().predict({"base": noise["base"] + added}, pa)

    table = judge(Ordered(), data, axioms=["commutativity"])

    assert pick(table, intervention="sex, age", measure="MAE") > 0.005
    assert pick(table, intervention="race, effusion", measure="MAE") == 0
    assert pick(table, "oracle", intervention="sex, age", measure="MAE") == 0
    assert not table.intervention.isin(["age, sex"]).any()


def test_noise_that_knows_the_parents_is_caught_by_the_leak(data: Dataset) -> None:
    class Leaky(Stamps):
        def abduct(self, x: Tensor, pa: Mapping, **_: object) -> dict:
            hint = torch.stack([pa["sex"], pa["age"]], dim=1)
            return {**super().abduct(x, pa), "hint": hint}

    table = judge(Leaky(), data, axioms=["leak"])

    assert pick(table, intervention="sex", measure="AUC") > 0.95
    assert 0.25 < pick(table, "oracle", intervention="sex", measure="AUC") < 0.75
    assert pick(table, intervention="sex", measure="p") < 0.05
    assert pick(table, intervention="sex", measure="by chance") < 0.8
    assert pick(table, intervention="age", measure="R2") > 0.8
    assert pick(table, "oracle", intervention="age", measure="R2") < 0.2


def test_an_overdrawn_counterfactual_is_caught_by_the_truth(data: Dataset) -> None:
    class Bold(Stamps):
        def predict(self, noise: Mapping[str, Tensor], pa: Mapping) -> Tensor:
            x = super().predict(noise, pa)
            x[:, :, 8:] += 0.2 * pa["effusion"][:, None, None, None]
            return x

    table = judge(Bold(), data, axioms=["faithfulness", "minimality", "effectiveness"])

    labels = {"intervention": "effusion", "effect": "direct"}
    assert pick(table, axiom="effectiveness", measure="accuracy", **labels) == 1
    for axiom in ("faithfulness", "minimality"):
        for measure, classifier in (("MAE", ""), ("score difference", "brightness")):
            label = {"axiom": axiom, "measure": measure, "classifier": classifier, **labels}
            assert pick(table, **label) > 5 * pick(table, "oracle", **label)
    assert pick(table, axiom="faithfulness", measure="SSIM", **labels) < 0.99


def test_the_residual_is_taken_away(data: Dataset) -> None:
    class Residual(Stamps):
        leaf = "residual"

    table = judge(Residual(), data, axioms=["composition", "reversibility", "minimality"])

    bare = table[table.axiom.str.endswith("without residual")]
    assert set(bare.axiom) == {f"{a} without residual" for a in ("composition", "reversibility")}
    mae = bare[bare.measure == "MAE"]
    np.testing.assert_allclose(mae.value, 0.25, atol=0.02)
    assert (mae[["identity", "oracle"]] == 0).all(axis=None)


def test_numbers_are_of_the_whole_set_whatever_the_batch(data: Dataset) -> None:
    some = data.take(range(31))

    tables = [judge(Stamps(), some, batch=batch) for batch in (7, 31)]

    pd.testing.assert_frame_equal(*tables, rtol=1e-4, atol=1e-6)


def test_the_oracle_of_the_phantom_has_a_floor_beside_it() -> None:
    cohort = COHORT.take(slice(0, 12))
    options = {"classifiers": {}, "audited": {"brightness": brightness}}

    table = soundness(
        cohort.oracle,
        from_phantom(cohort),
        graph=CHEST,
        truth=cohort.oracle,
        floor=Derived(cohort.oracle, fresh_detector),
        interventions=TRIED,
        axioms=["composition", "reversibility", "commutativity", "faithfulness"],
        batch=4,
        **options,
    )

    zero = table[table.measure.isin(["MAE", "score difference"])]
    assert (zero.value == 0).all()
    truth = zero[zero.axiom == "faithfulness"]
    assert set(truth.effect) == {"direct", "total"}
    assert (truth.floor > 0).all()
    assert (truth.identity > truth.floor)[truth.intervention == "sex"].all()


def test_without_truth_only_the_baseline_is_beside(data: Dataset) -> None:
    table = judge(Stamps(), data.take(range(8)), truth=None)

    assert "faithfulness" not in set(table.axiom)
    assert table[["oracle", "floor"]].isna().all(axis=None)
    assert table.identity[table.axiom == "composition"].notna().all()


def test_unknown_axioms_and_unknown_parents_are_refused(data: Dataset) -> None:
    with pytest.raises(ValueError, match="unknown axioms"):
        judge(Stamps(), data, axioms=["beauty"])
    with pytest.raises(InputError, match="the patients have no 'image', only sex"):
        judge(Stamps(), data, interventions=["image"])
    with pytest.raises(InputError, match="nothing to measure"):
        judge(Stamps(), data, axioms=["faithfulness"], truth=None)
    with pytest.raises(InputError, match="race"):
        judge(Stamps(), Dataset(data.table.assign(race=np.nan), data[:]))


def test_interventions_change_every_patient() -> None:
    made = interventions_of(COHORT.pa, graph=CHEST, seed=3)

    for name, do in made.items():
        assert (do[name] != COHORT.pa[name]).double().mean() > 0.98
        assert set(do[name].tolist()) <= set(COHORT.pa[name].tolist())
    again = interventions_of(COHORT.pa, graph=CHEST, seed=3)
    assert all(torch.equal(made[name][name], again[name][name]) for name in made)


def test_similarity_agrees_with_scipy(rng: torch.Generator) -> None:
    x = torch.rand(3, 1, 24, 20, generator=rng, dtype=torch.float64)
    y = (x + 0.2 * torch.rand(x.shape, generator=rng)).clamp(0, 1)

    def blur(image: np.ndarray) -> np.ndarray:
        return gaussian_filter(image, 1.5, truncate=3.5)[5:-5, 5:-5]

    for similarity, a, b in zip(_structural_similarity(x, y), x[:, 0], y[:, 0], strict=True):
        a, b = a.numpy(), b.numpy()
        ma, mb = blur(a), blur(b)
        va, vb, cov = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
        map_ = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4)
        map_ /= (ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)
        assert similarity.item() == pytest.approx(map_.mean())


def test_the_probe_is_ridge_regression(rng: torch.Generator) -> None:
    """The dual of a linear kernel against the normal equations, with the best penalty."""
    x = torch.randn(40, 5, generator=rng, dtype=torch.float64)
    y = x @ torch.randn(5, 2, generator=rng, dtype=torch.float64) + torch.randn(
        40, 1, generator=rng
    )
    fit, test = torch.arange(30), torch.arange(30, 40)
    own = x - x[fit].mean(dim=0)
    mean, found, errors = y[fit].mean(dim=0), [], []
    for penalty in _PENALTIES:
        ridged = penalty * own[fit].square().sum() * torch.eye(5, dtype=torch.float64)
        hat = torch.linalg.solve(own[fit].T @ own[fit] + ridged, own[fit].T)
        w, leverage = hat @ (y[fit] - mean), (own[fit] @ hat).diagonal()
        errors.append(
            ((y[fit] - mean - own[fit] @ w) / (1 - leverage[:, None])).square().mean(dim=0)
        )
        found.append(mean + own[test] @ w)
    best = torch.stack(errors).argmin(dim=0)
    expected = torch.stack([found[b][:, m] for m, b in enumerate(best)], dim=1)

    read = _ridge([gram("linear", x, fit)], y[fit], fit, test)

    torch.testing.assert_close(read, expected)
    silent = _ridge([gram("linear", x * 0, fit)], y[fit], fit, test)
    torch.testing.assert_close(silent, mean.expand(10, 2))


def test_whitened_features_have_no_scale(rng: torch.Generator) -> None:
    x = torch.randn(200, 3, generator=rng, dtype=torch.float64) @ torch.diag(
        torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)
    )
    white = _whitened(torch.cat((x, x[:, :1], x[:, :1] * 0), dim=1), torch.arange(100))

    expected = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(white[:100].T @ white[:100] / 100, expected, atol=1e-6, rtol=0)


def planted(rng: torch.Generator, n: int, spread: float) -> tuple[list[Tensor], dict]:
    """Noise of ten dimensions, one of which is wider in women: no mean differs."""
    pa = Phantom(16).sample(n, hospital="C", seed=int(torch.randint(10**6, (), generator=rng))).pa
    z = torch.randn(n, 10, generator=rng)
    z[:, 0] *= 1 + (spread - 1) * pa["sex"]
    return [z], pa


def test_a_leak_of_the_spread_is_found_by_kernels_and_not_by_a_line(rng: torch.Generator) -> None:
    leaves, pa = planted(rng, 1000, 2.5)
    line = leak(leaves, pa, CHEST, kernels=["linear"])["sex"]
    found = leak(leaves, pa, CHEST)

    assert line["AUC"] < 0.55 and line["p"] > 0.05
    assert found["sex"]["AUC"] > 0.6 > found["sex"]["by chance"] and found["sex"]["p"] <= 0.01
    assert found["race"]["p"] > 0.05


def test_the_probe_finds_leaks_in_free_noise_at_its_level_only(rng: torch.Generator) -> None:
    """The p-values of ten cohorts and five parents, of the oracle's own noise."""
    p = []
    for seed in range(10):
        cohort = Phantom(16).sample(300, hospital="C", seed=100 + seed)
        found = leak(noise_features(cohort.noise), cohort.pa, CHEST, permutations=59, seed=seed)
        p += [said["p"] for said in found.values()]

    below = sum(one <= 0.05 for one in p)
    assert below <= 7  # 2.5 are expected of 50; more than 7 at a chance of 0.4 %
    assert 0.35 < np.mean(p) < 0.65


def test_features_of_noise_are_small_and_free_of_keys() -> None:
    noise = {"z": torch.zeros(3, 4, 2, 2), "r": torch.zeros(3, 1, 64, 64), "key": torch.arange(3)}

    assert [tuple(leaf.shape) for leaf in noise_features(noise)] == [(3, 16), (3, 256)]
    assert all(leaf.shape == (120, 1) for leaf in noise_features(COHORT.noise))


def test_the_noise_of_the_phantom_does_not_leak() -> None:
    cohort = Phantom(16).sample(1200, hospital="C", seed=6)

    found = leak(noise_features(cohort.noise), cohort.pa, CHEST)

    assert sum(said["p"] <= 0.05 for said in found.values()) <= 1
    assert abs(found["sex"]["AUC"] - 0.5) < 0.1
    assert found["age"]["R2"] < 0.05


def test_the_kept_probes_find_the_leak_of_the_learned_noise_and_none_of_the_true() -> None:
    table = pd.read_csv(RESULTS / LEAK)
    assert set(table.patients) == {2000} and set(table.generator) >= {"learned-0", "oracle"}

    by = table[(table.noise == "all") & (table.probe == "kernel")].set_index(
        ["generator", "parent"]
    )
    assert (by.loc["oracle", "p"] > 0.05).all()
    assert (by.loc["learned-0", "p"] < 0.05).all()
    assert (by.loc["learned-0", "value"] > by.loc["learned-0", "by_chance"]).all()


def test_the_command_probes_generators_the_oracle_and_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneratorRecipe, "obtain", lambda recipe: recipe.untrained())
    words = ["results", "--leak", "--preset", "smoke", "--generators", "1", "--patients", "60"]
    assert main([*words, "--out", str(tmp_path)]) == 0

    table = pd.read_csv(tmp_path / LEAK)
    assert set(table.generator) == {"learned-0", "detailed-0", "oracle", "image"}
    parts = table.groupby("generator")["noise"].agg(set)
    assert parts["learned-0"] == {"all", "z0", "residual"}
    assert parts["detailed-0"] == {"all", "z0", "flow", "residual"}
    assert set(table.patients) == {60} and table.p.between(0, 1).all()


def test_readings_are_judged_by_their_kind() -> None:
    race = Variable("race", "categorical", categories=("a", "b", "c"))
    out, y = torch.eye(3), torch.tensor([0.0, 1.0, 2.0])

    assert agreement(race, out, y) == {"accuracy": 1.0, "AUC": 1.0}
    assert agreement(CHEST["age"], y, y) == {"error": 0.0, "R2": 1.0}
    assert np.isnan(agreement(CHEST["age"], y, torch.ones(3))["R2"])
    assert shift(race, 100 * out, 100 * out.roll(1, 0)).tolist() == pytest.approx([1, 1, 1])


class Jitter(Stamps):
    """Draws of the posterior differ by a brightness; the mean is off by ``bias``."""

    def __init__(self, spread: float, bias: float = 0.0) -> None:
        self.spread, self.bias = spread, bias

    def abduct(self, x: Tensor, pa: Mapping, *, index: object = None, rng: object = None) -> dict:
        jitter = self.spread * torch.randn(len(x), 1, 1, 1, generator=rng)
        return {"base": super().abduct(x, pa)["base"] + jitter + self.bias}


def centre(x: Tensor, pa: object = None) -> Tensor:
    return x[:, 0, 8, 8]


def test_generator_noise_is_what_was_put_in(data: Dataset) -> None:
    table = generator_noise(
        Jitter(0.2, 0.4), data, {"centre": centre}, truth=Stamps(), draws=16
    ).set_index("intervention")

    # A logit near 0.25 has a slope of about 0.246: variance 0.246^2 0.04, bias about 0.24 0.4.
    assert list(table.index) == ["null", "sex = 0", "sex = 1", "race = 0", "race = 1", "race = 2"]
    np.testing.assert_allclose(table.sigma2_gen, 0.04 * 0.24**2, rtol=0.15)
    np.testing.assert_allclose(table.mean_error, 0.24 * 0.4, rtol=0.05)
    np.testing.assert_allclose(table.squared_bias, (0.24 * 0.4) ** 2, rtol=0.1)
    np.testing.assert_allclose(table.S_var, table.sigma2_gen)
    assert table.n_z["sex = 1"] == int(COHORT.pa["sex"].sum())


def test_the_premise_fails_for_a_noisy_generator_only(data: Dataset) -> None:
    premises = [
        generator_noise(Jitter(spread), data, {"centre": centre}, draws=4)[:3]
        for spread in (1e-3, 3.0)
    ]

    assert [list(table.holds) for table in premises] == [[None, True, True], [None, False, False]]
    assert premises[0].mse.isna().all()


def test_the_oracle_has_no_noise_of_its_own() -> None:
    cohort = COHORT.take(slice(0, 8))

    table = generator_noise(
        cohort.oracle, from_phantom(cohort), AUDITED, truth=cohort.oracle, draws=2
    )

    assert len(table) == 6 * len(AUDITED)
    assert (table[["sigma2_gen", "mse"]] == 0).all(axis=None)


DEVICES = CausalGraph(
    [
        Variable("dose", "continuous", range=(0.0, 1.0)),
        Variable("implant", "binary"),
        Variable("scan", "continuous", range=(0.0, 1.0)),
    ],
    {"scan": ("dose", "implant")},
)


class Blurred:
    """Another graph: one pixel is the dose, another the implant, of which a share stays behind."""

    def __init__(self, left: float = 0.0) -> None:
        self.left = left

    def abduct(self, x: Tensor, pa: Mapping, *, index: object = None, rng: object = None) -> dict:
        base = x.clone()
        base[:, 0, 0, 0] -= pa["dose"]
        base[:, 0, 0, 1] -= (1 - self.left) * pa["implant"]
        return {"base": base}

    def predict(self, noise: Mapping[str, Tensor], pa: Mapping[str, Tensor]) -> Tensor:
        x = noise["base"].clone()
        x[:, 0, 0, 0] += pa["dose"]
        x[:, 0, 0, 1] += (1 - self.left) * pa["implant"]
        return x


class Pixel:
    """Reads one of the two, and nothing else."""

    def __init__(self, name: str) -> None:
        self.variable, self.column = DEVICES[name], list(DEVICES).index(name)

    def __call__(self, x: Tensor, pa: object = None) -> Tensor:
        value = x[:, 0, 0, self.column]
        return value if self.variable.kind == "continuous" else 20 * (value - 0.5)


def test_any_parents_of_any_graph_are_tried(rng: torch.Generator) -> None:
    base = 0.2 * torch.rand(60, 1, 16, 16, generator=rng)
    base[:, 0, 0, :2] = 0
    pa = {"dose": torch.rand(60, generator=rng), "implant": (torch.arange(60) % 2).float()}
    data = Patients(Blurred().predict({"base": base}, pa), pa)
    classifiers = {name: Pixel(name) for name in pa}
    options = {"graph": DEVICES, "classifiers": classifiers, "audited": {"bright": brightness}}

    whole, half = (
        soundness(Blurred(left), data, truth=Blurred(), effects=["direct"], **options)
        for left in (0.0, 0.6)
    )

    assert set(whole.axiom) == {*PAIRED, "effectiveness", "amplification", "leak"}
    single = whole[~whole.axiom.isin(["composition", "commutativity"])]
    assert set(single.intervention) == {"dose", "implant"}
    read = {"axiom": "effectiveness", "intervention": "implant", "measure": "accuracy"}
    assert pick(whole, **read) == 1 > pick(half, **read) == 0
    assert pick(half, "oracle", **read) == 1
    leaks = {"axiom": "leak", "intervention": "implant", "measure": "AUC"}
    assert pick(half, **leaks) > 0.9 > pick(whole, **leaks)
    assert pick(half, axiom="leak", intervention="dose", measure="R2") < 0.5


# Support


class Seen(torch.nn.Module):
    """A reader whose features are two pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x[:, 0, 0, :2])


class Set:
    """Draws the pixel of the age that is set, off by so much, and holds the other pixel."""

    def __init__(self, off: float = 0.0) -> None:
        self.off = off

    def abduct(self, x: Tensor, pa: Mapping, *, index: object = None, rng: object = None) -> Tensor:
        return x

    def predict(self, noise: Tensor, pa: Mapping) -> Tensor:
        x = noise.clone()
        x[:, 0, 0, 0] = pa["age"] / 100 + self.off
        return x


def people(count: int, ages: list[float], name: str) -> Patients:
    """Patients of some ages in turn, with an image that shows the age and one number more."""
    x, age = torch.zeros(count, 1, 16, 16), torch.tensor(ages * count)[:count]
    x[:, 0, 0, 0] = age / 100
    x[:, 0, 0, 1] = torch.rand(count, generator=torch.Generator().manual_seed(len(name)))
    return Patients(x, {"age": age}, patient=[f"{name} {i}" for i in range(count)])


def test_distances_are_by_hand_where_the_features_are_pixels() -> None:
    grid, real = Grid.product({"age": [30, 70, 110]}), people(40, [30, 70], "real")
    data = people(12, [30, 70], "mine")
    found = support_table({"right": Set(), "off": Set(0.5)}, data, real, grid, Seen())

    assert found["patients"].tolist() == [20, 20, 0]
    assert found.loc[2, ["right", "off"]].isna().all()  # nobody is there
    seen, mine = (part[:][:, 0, 0, :2].double().numpy() for part in (real, data))
    spread = seen.std(axis=0, ddof=1)
    own = seen[::2] / spread
    between = np.sort(np.abs(own[:, 1, None] - own[:, 1]), axis=1)[:, 1:6].mean()
    for name, off in (("right", 0), ("off", 0.5 / spread[0])):
        gaps = np.hypot(off, mine[:, 1, None] / spread[1] - own[:, 1])
        away = np.sort(gaps, axis=1)[:, :5].mean()
        assert found.loc[0, name] == pytest.approx(away / between)
    assert found.loc[0, "off"] > 2 > found.loc[0, "right"]


def test_nobody_is_compared_with_their_own_image() -> None:
    grid, real = Grid.product({"age": [30, 70]}), people(40, [30, 70], "real")
    found = support_table({"right": Set()}, real.take(range(0, 40, 2)), real, grid, Seen())

    assert found["right"][0] == pytest.approx(1)  # each is its own image there
    with pytest.raises(InputError, match="no real patient is near any world"):
        support_table({}, real, real, Grid.product({"age": [130, 170]}), Seen())
