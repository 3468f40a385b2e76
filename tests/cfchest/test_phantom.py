from dataclasses import fields

import pytest
import torch
from torch import Tensor

from cfchest.graph import CHEST
from cfchest.phantom import COEFFICIENTS, HOSPITALS, Coefficients, Cohort, Phantom
from cfchest.phantom.anatomy import measures
from cfchest.phantom.draws import field, row_keys, uniform
from cfchest.phantom.equations import draw_parents, effusion_probability, lung_mean, parent_noise
from cfchest.phantom.render import _lung_fields, frame
from cfcore.generator import Generator

PHANTOM = Phantom()
SEED = 11  # of the tests alone


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return PHANTOM.sample(64, hospital="C", seed=SEED)


@pytest.fixture(scope="module")
def x(cohort: Cohort) -> Tensor:
    return cohort.images[:]


def interventions(cohort: Cohort) -> dict[str, dict[str, Tensor | float]]:
    return {
        "sex": {"sex": 1 - cohort.pa["sex"]},
        "race": {"race": (cohort.pa["race"] + 1) % 3},
        "age": {"age": 110 - cohort.pa["age"]},
        "lung_size": {"lung_size": 0.25},
        "effusion": {"effusion": 1 - cohort.pa["effusion"]},
        "sex and age": {"sex": 1, "age": 33.3},
    }


NAMES = ("sex", "race", "age", "lung_size", "effusion", "sex and age")


def counterfactual(cohort: Cohort, pa: dict[str, Tensor]) -> Tensor:
    return PHANTOM.predict(cohort.noise, pa)


# The image


def test_images_are_what_the_contract_says(cohort: Cohort, x: Tensor) -> None:
    assert x.shape == (64, 1, 64, 64)
    assert len(cohort.images) == 64
    assert x.dtype == torch.float32
    assert x.min() >= 0 and x.max() <= 1
    assert set(cohort.pa) == set(CHEST.parents("image"))
    assert all(v.shape == (64,) and v.dtype == torch.float32 for v in cohort.pa.values())
    assert all(v.shape == (64,) for v in cohort.noise.values())


@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_images_are_the_same_bits_in_any_chunk(cohort: Cohort, x: Tensor, chunk: int) -> None:
    again = PHANTOM.sample(64, hospital="C", seed=SEED)
    parts = [again.images[rows] for rows in torch.arange(64).split(chunk)]

    assert torch.equal(torch.cat(parts), x)


@pytest.mark.parametrize("threads", [2, 4])
def test_images_are_the_same_bits_with_more_threads(
    cohort: Cohort, x: Tensor, threads: int
) -> None:
    torch.set_num_threads(threads)
    again = cohort.images[:]
    torch.set_num_threads(1)

    assert torch.equal(again, x)


def test_a_cohort_starts_with_the_shorter_one(cohort: Cohort, x: Tensor) -> None:
    shorter = PHANTOM.sample(5, hospital="C", seed=SEED)

    assert torch.equal(shorter.images[:], x[:5])
    assert torch.equal(cohort.images[4], x[4])
    assert torch.equal(cohort.take(torch.tensor([9, 2])).images[:], x[[9, 2]])


@pytest.mark.parametrize(("hospital", "seed"), [("C", SEED + 1), ("M", SEED)])
def test_other_seeds_and_hospitals_share_no_noise(cohort: Cohort, hospital: str, seed: int) -> None:
    other = PHANTOM.sample(64, hospital=hospital, seed=seed)

    for key in ("texture", "detector"):
        assert not set(other.noise[key].tolist()) & set(cohort.noise[key].tolist())
    assert not torch.isclose(other.noise["heart"], cohort.noise["heart"]).any()


@pytest.mark.parametrize("size", [16, 65, (48, 80)])
def test_any_size_shows_the_same_chest(cohort: Cohort, x: Tensor, size: int | tuple) -> None:
    phantom = Phantom(size)
    other = phantom.predict(cohort.noise, cohort.pa)

    assert other.shape == (64, 1, *phantom.shape)
    shrunk = [torch.nn.functional.adaptive_avg_pool2d(image, 8) for image in (other, x)]
    assert (shrunk[0] - shrunk[1]).abs().mean() < 0.02


def test_rendering_needs_no_host() -> None:
    cohort = PHANTOM.sample(3, hospital="M", seed=0, device="meta")
    pa = PHANTOM.act(cohort.pa, {"sex": 1}, effect="total")

    assert cohort.oracle.predict(cohort.noise, pa).device.type == "meta"


def test_lungs_cover_the_lung_size(cohort: Cohort) -> None:
    m = measures(cohort.noise, cohort.pa)
    mask = _lung_fields(frame(m, (256, 256), m["gamma"])) > 0.5

    torch.testing.assert_close(
        mask.float().mean(dim=(1, 2)), cohort.pa["lung_size"], rtol=0.01, atol=0
    )


def test_grey_levels_resemble_radiographs(x: Tensor) -> None:
    """Quantiles of adult posteroanterior radiographs of NIH ChestX-ray14, within 0.06."""
    levels = torch.tensor([0.05, 0.25, 0.50, 0.75, 0.95])
    real = torch.tensor([0.04, 0.33, 0.55, 0.75, 0.89])

    assert (x.flatten().quantile(levels) - real).abs().max() < 0.06


# Interventions


@pytest.mark.parametrize("effect", ["direct", "total"])
def test_null_intervention_reproduces_the_image(cohort: Cohort, x: Tensor, effect: str) -> None:
    rows = torch.arange(len(cohort))
    noise = cohort.oracle.abduct(x, cohort.pa, index=rows)

    for do in ({}, dict(cohort.pa), {"sex": cohort.pa["sex"], "age": cohort.pa["age"]}):
        pa = PHANTOM.act(cohort.pa, do, effect=effect)
        assert torch.equal(cohort.oracle.predict(noise, pa), x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("effect", ["direct", "total"])
def test_do_is_effective_and_undone_to_the_bit(
    cohort: Cohort, x: Tensor, name: str, effect: str
) -> None:
    do = interventions(cohort)[name]
    pa = PHANTOM.act(cohort.pa, do, effect=effect)
    back = PHANTOM.act(pa, {key: cohort.pa[key] for key in do}, effect=effect)
    changed = (counterfactual(cohort, pa) - x).abs().amax(dim=(1, 2, 3))

    assert all((pa[key] == value).all() for key, value in do.items())
    assert (changed > 0.01).float().mean() > 0.9
    assert torch.equal(counterfactual(cohort, back), x)


@pytest.mark.parametrize("effect", ["direct", "total"])
def test_interventions_commute(cohort: Cohort, effect: str) -> None:
    do = interventions(cohort)
    orders = (("sex", "age", "race"), ("race", "age", "sex"))
    images = []
    for order in orders:
        pa = cohort.pa
        for name in order:
            pa = PHANTOM.act(pa, do[name], effect=effect)
        images.append(counterfactual(cohort, pa))
    at_once = PHANTOM.act(cohort.pa, do["sex"] | do["age"] | do["race"], effect=effect)

    assert torch.equal(*images)
    assert torch.equal(images[0], counterfactual(cohort, at_once))


@pytest.mark.parametrize("name", NAMES)
def test_direct_and_total_differ_only_through_descendants(cohort: Cohort, name: str) -> None:
    do = interventions(cohort)[name]
    direct, total = (PHANTOM.act(cohort.pa, do, effect=e) for e in ("direct", "total"))
    differ = {key for key in direct if not torch.equal(direct[key], total[key])}
    may = set(CHEST.descendants(*do)) - {"image", "effusion"} - set(do)

    assert differ == may
    direct |= {key: total[key] for key in differ}
    assert torch.equal(counterfactual(cohort, direct), counterfactual(cohort, total))


def test_the_label_is_held_unless_intervened_on(cohort: Cohort) -> None:
    held = PHANTOM.act(cohort.pa, {"age": 90}, effect="total")
    set_ = PHANTOM.act(cohort.pa, {"age": 90, "effusion": 1}, effect="total")

    assert torch.equal(held["effusion"], cohort.pa["effusion"])
    assert (set_["effusion"] == 1).all()


def test_effusion_fills_the_bases_and_spares_the_apices(cohort: Cohort) -> None:
    well, ill = (counterfactual(cohort, PHANTOM.act(cohort.pa, {"effusion": y})) for y in (0, 1))
    change = (ill - well).mean(dim=(0, 1))

    assert change[:12].abs().max() < 1e-3
    assert change.max() > 0.1 and change.min() > -1e-3


def test_lung_size_follows_its_mechanism(cohort: Cohort) -> None:
    pa = PHANTOM.act(cohort.pa, {"sex": 1 - cohort.pa["sex"]}, effect="total")
    step = (pa["lung_size"] - cohort.pa["lung_size"]) / (pa["sex"] - cohort.pa["sex"])

    torch.testing.assert_close(
        step, torch.full_like(step, COEFFICIENTS.lung_sex), rtol=0, atol=2**-19
    )
    age = cohort.pa["age"]
    noise = cohort.pa["lung_size"] - lung_mean(cohort.pa["sex"], age)
    assert torch.equal(lung_mean(cohort.pa["sex"], age) + noise, cohort.pa["lung_size"])


# The structural equations


@pytest.mark.parametrize("hospital", list(HOSPITALS))
def test_parents_have_their_distributions(hospital: str) -> None:
    n, h = 40_000, HOSPITALS[hospital]
    pa = PHANTOM.sample(n, hospital=hospital, seed=SEED).pa
    share = torch.stack([(pa["race"] == code).float().mean() for code in range(3)])

    assert abs(pa["sex"].mean() - h.female) < 4 * 0.5 / n**0.5
    torch.testing.assert_close(share, torch.tensor(h.race), rtol=0, atol=4 * 0.5 / n**0.5)
    assert pa["age"].min() >= 20 and pa["age"].max() <= 90
    for low in (20, 40, 60, 80):
        some = (pa["age"] >= low) & (pa["age"] < low + 10)
        expected = effusion_probability(pa["age"][some], h).mean()
        assert abs(pa["effusion"][some].mean() - expected) < 4 * 0.5 / some.sum() ** 0.5


def test_log_odds_of_effusion_rise_by_half_in_twenty_years() -> None:
    age = torch.tensor([40.0, 60.0, 80.0], dtype=torch.float64)
    rise = torch.logit(effusion_probability(age, HOSPITALS["C"])).diff()

    torch.testing.assert_close(rise, torch.full_like(rise, 0.5))


def test_parents_are_a_function_of_their_noise(cohort: Cohort) -> None:
    u = parent_noise(torch.arange(64), hospital="C", seed=SEED)

    assert all(torch.equal(v, cohort.pa[k]) for k, v in draw_parents(u, "C").items())


def test_measures_obey_the_equations_of_the_docstring(cohort: Cohort) -> None:
    """The equations once more, from the docstring, in scalars."""
    m, c = measures(cohort.noise, cohort.pa), COEFFICIENTS
    for i in range(8):
        u = {name: value[i].item() for name, value in cohort.noise.items()}
        pa = {name: value[i].item() for name, value in cohort.pa.items()}
        s, a, y = pa["sex"], (pa["age"] - 55) / 35, pa["effusion"]
        fluid = y * (c.fluid_least + c.fluid_span * u["severity"] ** 2)
        scars = {s: c.scar * max(0, u[f"scar_{s}"] + c.scar_age * a) for s in ("right", "left")}
        expected = {
            "bone": 1 + c.bone_age * a + c.bone_noise * u["bone"],
            "heart": 1 + c.heart_age * a + c.heart_sex * s + c.heart_noise * u["heart"],
            "aorta": 1 + c.aorta_age * a + c.aorta_noise * u["aorta"],
            "lucency": 1 + c.lucency_age * a + c.lucency_noise * u["lucency"],
            "breast": s * (1 + c.breast_noise * u["breast"]),
            "shoulder": 1 + c.shoulder_sex * s + c.shoulder_noise * u["shoulder"],
            "gamma": u["gamma"] * (1 + c.gamma_race[int(pa["race"])]),
            "fluid_right": scars["right"] + (fluid if u["side"] < 0.7 else 0),
            "fluid_left": scars["left"]
            + fluid * (0 if u["side"] <= 0.4 else 0.6 if u["side"] < 0.7 else 1),
        }
        for name, value in expected.items():
            assert m[name][i].item() == pytest.approx(value, abs=1e-5), name


def test_every_coefficient_is_in_the_docstring() -> None:
    text = Coefficients.__doc__.replace(r"\_", "_")

    for coefficient in fields(Coefficients):
        assert rf"\texttt{{{coefficient.name}}}" in text


# The noise


def test_fields_are_standard_and_white() -> None:
    z = field(row_keys(0, 0, torch.arange(500)), 4096)

    assert abs(z.mean()) < 4 / z.numel() ** 0.5
    assert abs(z.var() - 1) < 0.01
    for a, b in ((z[:, 1:], z[:, :-1]), (z[1:], z[:-1])):
        assert abs((a * b).mean()) < 4 / z.numel() ** 0.5


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    key = row_keys(3, 1, torch.arange(50_000))
    u = torch.stack([uniform(key, position) for position in range(4)])
    counts = torch.stack([torch.histc(row, 20, 0, 1) for row in u])

    assert ((counts - 2500) ** 2 / 2500).sum(dim=1).max() < 50  # chi-squared, 19 degrees
    assert (u.corrcoef() - torch.eye(4)).abs().max() < 4 / 50_000**0.5


def test_fresh_detector_noise_changes_the_grain_alone(cohort: Cohort, x: Tensor) -> None:
    fresh = cohort.noise | {"detector": cohort.noise["detector"] + 1}
    change = PHANTOM.predict(fresh, cohort.pa) - x

    assert change.std().item() == pytest.approx(2**0.5 * HOSPITALS["C"].grain, rel=0.05)


# Refusals


def test_the_oracle_is_a_generator(cohort: Cohort) -> None:
    assert isinstance(cohort.oracle, Generator)


def test_the_oracle_asks_for_the_rows(cohort: Cohort, x: Tensor) -> None:
    with pytest.raises(ValueError, match="pass index"):
        cohort.oracle.abduct(x, cohort.pa)
    with pytest.raises(ValueError, match=r"index of shape \(64,\)"):
        cohort.oracle.abduct(x, cohort.pa, index=torch.arange(3))


@pytest.mark.parametrize(
    ("do", "effect", "message"),
    [
        ({"weight": 1}, "direct", "weight"),
        ({"image": 1}, "direct", "image"),
        ({"sex": 2}, "direct", "sex takes one of"),
        ({"age": 130}, "total", "age lies in"),
        ({"age": torch.ones(3)}, "direct", r"shape \(64,\), not \(3,\)"),
        ({"age": 50}, "indirect", "'indirect'"),
    ],
)
def test_impossible_actions_are_refused(
    cohort: Cohort, do: dict, effect: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PHANTOM.act(cohort.pa, do, effect=effect)


def test_bad_cohorts_are_refused(cohort: Cohort) -> None:
    with pytest.raises(ValueError, match="unknown hospital 'X'"):
        PHANTOM.sample(1, hospital="X", seed=0)
    with pytest.raises(ValueError, match="n = 0"):
        PHANTOM.sample(0, hospital="C", seed=0)
    with pytest.raises(ValueError, match="8 pixels"):
        Phantom(4)
    with pytest.raises(ValueError, match=r"parents of shape \(64,\)"):
        PHANTOM.predict(cohort.noise, {k: v[:1] for k, v in cohort.pa.items()})
