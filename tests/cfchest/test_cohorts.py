"""Cohorts: exact balance, exact masks, dropping within binomial bounds, patients kept apart."""

from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest

from cfchest.balance import _largest_balance, _shrunk, balanced
from cfchest.cohorts import (
    AGE_GROUPS,
    _assert_disjoint,
    _normalised_age,
    age_group,
    composition,
    drop_age,
    drop_sex,
    mask_labels,
    match_size,
    natural,
    one_per,
    split,
)
from cfchest.data import PARENTS, schema
from cfcore.checks import InputError


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Some 20,000 images of 4,000 patients, some values missing, disease rising with age."""
    rng = np.random.default_rng(7)
    n, age = 20_000, rng.normal(58, 18, 4_000).clip(18, 95)
    patient = rng.integers(0, 4_000, n)
    effusion = rng.random(n) < 0.1 + 0.5 * _normalised_age(pd.Series(age[patient]))
    frame = {
        "patient": [f"p{number:05d}" for number in patient],
        "study": [f"s{number:05d}" for number in rng.integers(0, 15_000, n)],
        "sex": (rng.random(4_000) < 0.42)[patient].astype(float),
        "age": age[patient].round(),
        "race": rng.integers(0, 3, n).astype(float),
        "lung_size": rng.uniform(0.1, 0.4, n),
        "effusion": effusion.astype(float),
    }
    table = schema(pd.DataFrame(frame))
    for column in ("sex", "age", "effusion"):
        table.loc[rng.random(n) < 0.02, column] = np.nan
    return table


def within_binomial_bounds(dropped: int, probability: np.ndarray) -> bool:
    """Five standard deviations: a correct draw fails once in two million."""
    deviation = np.sqrt((probability * (1 - probability)).sum())
    return abs(dropped - probability.sum()) <= 5 * deviation


@pytest.mark.parametrize("seed", range(5))
def test_no_patient_is_in_two_parts(seed: int, table: pd.DataFrame) -> None:
    parts = split(table, {"train": 0.7, "val": 0.1, "test": 0.2}, seed=seed)
    patients = [set(part.patient) for part in parts.values()]

    assert not (patients[0] & patients[1] or patients[0] & patients[2] or patients[1] & patients[2])
    assert sum(len(part) for part in parts.values()) == len(table)
    assert [len(part) for part in patients] == pytest.approx(
        [0.7 * 3_980, 0.1 * 3_980, 0.2 * 3_980], rel=0.02
    )


def test_a_split_depends_on_the_seed_and_not_on_the_order_of_rows(table: pd.DataFrame) -> None:
    fractions = {"train": 0.5, "test": 0.5}
    first = split(table, fractions, seed=0)["test"]

    assert set(split(table[::-1], fractions, seed=0)["test"].index) == set(first.index)
    assert set(split(table, fractions, seed=1)["test"].index) != set(first.index)
    assert first.equals(split(table, fractions, seed=np.random.default_rng(0))["test"])


def test_a_patient_in_two_parts_is_named() -> None:
    train, test = (pd.DataFrame({"patient": list(names)}) for names in ("abc", "cd"))

    with pytest.raises(InputError, match="patient 'c' is in 'train' and in 'test'"):
        _assert_disjoint({"train": train, "test": test})
    with pytest.raises(InputError, match="row 1 of 'train' has no patient"):
        _assert_disjoint({"train": train.replace("b", None)})


@pytest.mark.parametrize("shares", [(0.5, 0.4), (1.2, -0.2), (np.nan, 1), (np.nan, np.nan), ()])
def test_fractions_must_be_numbers_and_sum_to_one(
    shares: tuple[float, ...], table: pd.DataFrame
) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        split(table, dict(zip("ab", shares, strict=False)), seed=0)


def test_both_45_and_65_belong_to_the_middle() -> None:
    groups = age_group(pd.Series([0, 44, 45, 65, 66, np.nan]))

    np.testing.assert_equal(groups.tolist(), [0, 0, 1, 1, 2, np.nan])


@pytest.mark.parametrize("prevalence", [None, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("per", [None, "patient", "study"])
def test_the_balanced_set_is_exactly_balanced(
    prevalence: float | None, per: str | None, table: pd.DataFrame
) -> None:
    cohort = balanced(table, seed=0, prevalence=prevalence, per=per)
    groups = cohort.groupby(["sex", age_group(cohort.age)]).effusion
    exact = {Fraction(int(values.sum()), len(values)) for _, values in groups}

    assert len(groups) == 6
    assert len(exact) == 1
    assert (cohort.sex == 0).sum() == (cohort.sex == 1).sum()
    for column in ("sex", age_group(cohort.age)):
        marginal = {Fraction(int(y.sum()), len(y)) for _, y in cohort.groupby(column).effusion}
        assert marginal == exact
    if prevalence is not None:
        assert abs(float(exact.pop()) - prevalence) <= 0.005
    if per is not None:
        assert not cohort.duplicated(["patient", per]).any()
        assert per == "study" or cohort.patient.is_unique


def test_the_balanced_set_depends_on_the_seed(table: pd.DataFrame) -> None:
    cohort, other = (balanced(table, seed=seed) for seed in (0, 1))

    assert len(cohort) == len(other)
    assert not cohort.equals(other)
    assert cohort.equals(balanced(table, seed=0))


@pytest.mark.parametrize("seed", range(8))
def test_no_larger_balanced_set_exists(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(1, 9, (2, 3, 2))
    parts = _largest_balance(counts)
    taken = parts.units[..., None] * np.array([parts.healthy, parts.diseased])

    assert (taken <= counts).all()
    assert (taken.sum(axis=(1, 2)) == taken[0].sum()).all()
    assert taken.sum() == largest_by_enumeration(counts)


def largest_by_enumeration(counts: np.ndarray) -> int:
    """Try every fraction and, for each, every sum that both sexes can reach."""
    prevalences = {
        Fraction(y, y + n)
        for y, n in product(range(1, counts[..., 1].max() + 1), range(1, counts[..., 0].max() + 1))
    }
    best = 0
    for prevalence in prevalences:
        reachable = []
        for sex in counts:
            sizes = [
                {
                    y + n
                    for y, n in product(range(1, diseased + 1), range(1, healthy + 1))
                    if Fraction(y, y + n) == prevalence
                }
                for healthy, diseased in sex
            ]
            reachable.append({sum(choice) for choice in product(*sizes)})
        best = max(best, 2 * max(reachable[0] & reachable[1], default=0))
    return best


@pytest.mark.parametrize("n", [60, 100, 151, 10_000])
def test_a_balanced_set_can_be_limited(n: int, table: pd.DataFrame) -> None:
    whole = balanced(table, seed=0, prevalence=0.4, tolerance=0.1)

    cohort = balanced(table, seed=0, prevalence=0.4, tolerance=0.1, n=n)

    assert min(n, len(whole)) * 0.9 <= len(cohort) <= n
    assert (cohort.sex == 1).mean() == 0.5
    prevalence = cohort.groupby(["sex", age_group(cohort.age)]).effusion.mean()
    assert len(prevalence) == 6
    assert prevalence.nunique() == 1
    assert abs(prevalence.iloc[0] - 0.4) <= 0.1


def test_a_balance_that_cannot_be_is_explained() -> None:
    counts = np.full((2, 3, 2), 4)
    assert _largest_balance(counts, n=12).units.sum() == 6
    with pytest.raises(ValueError, match="leaves all groups filled with 11 images or fewer"):
        _largest_balance(counts, n=11)
    with pytest.raises(ValueError, match=r"within 0\.005 of 0\.01"):
        _largest_balance(counts, prevalence=0.01)
    counts[1, 2, 1] = 0
    with pytest.raises(ValueError, match="no diseased female image of age >65"):
        _largest_balance(counts)


@pytest.mark.parametrize("total", range(3, 31))
def test_shrinking_keeps_the_sum_and_every_group(total: int) -> None:
    units = np.array([1, 20, 9])
    small = _shrunk(units, total)

    assert small.sum() == total
    assert ((small >= 1) & (small <= units)).all()


def test_the_natural_set_is_drawn_and_keeps_the_demographics(table: pd.DataFrame) -> None:
    cohort, other = (natural(table, n=5_000, seed=seed) for seed in (0, 1))
    known = table.dropna(subset=["sex", "age", "effusion"])

    assert len(cohort) == 5_000
    assert len(natural(table, seed=0)) == len(known)
    assert cohort.sex.mean() == pytest.approx(known.sex.mean(), abs=0.03)
    assert natural(table, seed=0, per="patient").patient.is_unique
    assert not cohort.equals(other)
    assert cohort.index.is_monotonic_increasing
    # The mean place of 5,000 drawn ones is the middle, with a deviation of 1 in 200.
    assert cohort.index.to_numpy().mean() == pytest.approx(known.index.to_numpy().mean(), rel=0.05)
    for n in (-5, 20_001):
        with pytest.raises(ValueError, match=f"{n} images asked for"):
            natural(table, n=n, seed=0)


def test_composition_counts_what_it_says(table: pd.DataFrame) -> None:
    parts = composition(table)
    known = table.dropna(subset=["sex", "age", "effusion"])

    assert parts.index.tolist() == list(product(("male", "female"), AGE_GROUPS))
    assert parts.images.sum() == len(known)
    old_men = known[(known.sex == 0) & (known.age > 65)]
    assert parts.loc[("male", ">65"), "prevalence"] == old_men.effusion.mean()


@pytest.mark.parametrize("strength", [0, 0.8, 0.9, 0.95, 1])
def test_sex_bias_drops_at_its_rate(strength: float, table: pd.DataFrame) -> None:
    against = (table.sex == 1 - table.effusion).to_numpy()
    kept = table.index.isin(drop_sex(table, strength, seed=0).index)

    assert kept[~against].all()
    assert within_binomial_bounds((~kept).sum(), strength * against)
    for sex in (0, 1):
        chosen = against & (table.sex == sex).to_numpy()
        assert within_binomial_bounds((~kept & chosen).sum(), strength * chosen)


@pytest.mark.parametrize("strength", [0, 0.8, 0.9, 0.95])
def test_age_bias_drops_at_its_rate(strength: float, table: pd.DataFrame) -> None:
    a = ((table.age - 20) / 70).clip(0, 1)
    probability = (strength * np.where(table.effusion == 1, 1 - a, a)).astype(float)
    probability[(table.age.isna() | table.effusion.isna()).to_numpy()] = 0
    kept = table.index.isin(drop_age(table, strength, seed=0).index)

    assert kept[probability == 0].all()
    for chosen in (table.effusion == 1, table.effusion == 0, table.age < 40, table.age > 75):
        rows = chosen.to_numpy()
        assert within_binomial_bounds((~kept & rows).sum(), probability * rows)


@pytest.mark.parametrize("drop", [drop_sex, drop_age])
def test_dropping_puts_the_shortcut_in(drop: object, table: pd.DataFrame) -> None:
    column = "sex" if drop is drop_sex else "age"
    correlations = [
        drop(table, strength, seed=0)[[column, "effusion"]].corr().iloc[0, 1]
        for strength in (0, 0.8, 0.9, 0.95)
    ]

    assert (np.diff(correlations) > 0).all()


@pytest.mark.parametrize("drop", [drop_sex, drop_age])
def test_a_stronger_bias_keeps_less_of_the_same(drop: object, table: pd.DataFrame) -> None:
    weak, strong = (drop(table, strength, seed=4).index for strength in (0.8, 0.95))

    assert strong.isin(weak).all()
    assert len(strong) < len(weak)
    with pytest.raises(ValueError, match=r"is outside \[0, 1\]"):
        drop(table, 1.5, seed=0)


@pytest.mark.parametrize("n", [0, 1, 777, 12_345, 20_000])
def test_a_size_matched_set_keeps_the_prevalence(n: int, table: pd.DataFrame) -> None:
    control = match_size(table, n, seed=0)

    assert len(control) == n
    assert control.index.is_unique
    for value in (0, 1, -1):
        share = (table.effusion.fillna(-1) == value).mean()
        assert abs((control.effusion.fillna(-1) == value).sum() - n * share) <= 1
    with pytest.raises(ValueError, match="images asked for"):
        match_size(table, 20_001, seed=0)


@pytest.mark.parametrize("fraction", [0, 0.1, 0.2, 1])
def test_masking_by_variable_keeps_its_share_of_each(fraction: float, table: pd.DataFrame) -> None:
    masked = mask_labels(table, fraction, seed=0)

    for column in PARENTS:
        assert masked[column].notna().sum() == round(fraction * table[column].notna().sum())
        kept = masked[column].notna()
        assert (masked[column][kept] == table[column][kept]).all()
    assert masked.drop(columns=list(PARENTS)).equals(table.drop(columns=list(PARENTS)))


def test_masking_by_variable_is_independent_between_variables(table: pd.DataFrame) -> None:
    masked = mask_labels(table, 0.5, seed=0, columns=["race", "lung_size"])
    both = (masked.race.notna() & masked.lung_size.notna()).sum()

    assert within_binomial_bounds(both, np.full(len(table), 0.25))
    assert masked.age.equals(table.age)


def test_masking_by_row_keeps_whole_rows(table: pd.DataFrame) -> None:
    masked = mask_labels(table, 0.2, seed=0, by="row")
    kept = masked.race.notna()

    assert kept.sum() == round(0.2 * len(table))
    pd.testing.assert_frame_equal(masked[kept], table[kept])
    assert masked.loc[~kept, list(PARENTS)].isna().all(axis=None)


@pytest.mark.parametrize("by", ["variable", "row"])
def test_more_labels_include_those_of_fewer(by: str, table: pd.DataFrame) -> None:
    few, many = (mask_labels(table, f, seed=0, by=by)[list(PARENTS)].notna() for f in (0.1, 0.4))

    assert (many | ~few).all(axis=None)


def test_masking_refuses_what_it_does_not_know(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="neither 'variable' nor 'row'"):
        mask_labels(table, 0.1, seed=0, by="patient")
    with pytest.raises(ValueError, match=r"is outside \[0, 1\]"):
        mask_labels(table, 20, seed=0)


def test_no_cohort_changes_the_table(table: pd.DataFrame) -> None:
    before = table.copy()
    balanced(table, seed=0)
    drop_sex(table, 0.9, seed=0)
    drop_age(table, 0.9, seed=0)
    mask_labels(table, 0.1, seed=0)
    match_size(table, 100, seed=0)

    pd.testing.assert_frame_equal(table, before)


def test_one_image_for_each_patient_or_study(table: pd.DataFrame) -> None:
    cohort = one_per(table, "patient", seed=0)
    assert set(cohort.patient) == set(table.patient)
    assert cohort.patient.is_unique
    assert cohort.index.is_monotonic_increasing

    # Studies of two patients are two studies, whatever they are called.
    table = pd.DataFrame({"patient": list("aabb"), "study": ["1", "1", "1", "2"]}, [7, 3, 5, 1])
    cohort = one_per(table, "study", seed=0)

    assert cohort[["patient", "study"]].to_numpy().tolist() == [["a", "1"], ["b", "1"], ["b", "2"]]
    assert cohort.index.tolist()[1:] == [5, 1]


def test_the_balanced_set_keeps_the_order_of_any_table(table: pd.DataFrame) -> None:
    shuffled = table.sample(frac=1, random_state=0)
    for per in (None, "patient"):
        cohort = balanced(shuffled, seed=0, per=per)

        assert cohort.index.is_unique
        assert cohort.index.equals(shuffled.index[shuffled.index.isin(cohort.index)])
        pd.testing.assert_frame_equal(cohort, shuffled.loc[cohort.index])


def test_a_table_whose_rows_cannot_be_told_apart_is_not_balanced(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="two rows of the table have the index 0"):
        balanced(pd.concat([table, table[:1]]), seed=0)


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_balances_the_one_of_the_smallest_unit_is_used(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(2, 12, (2, 3, 2))
    healthy, diseased = counts[..., 0], counts[..., 1]
    sizes = {
        (a, b): (a + b) * np.minimum(diseased // a, healthy // b).sum(axis=1).min()
        for a in range(1, diseased.min() + 1)
        for b in range(1, healthy.min() + 1)
    }
    largest = [sum(unit) for unit, size in sizes.items() if size == max(sizes.values())]
    parts = _largest_balance(counts)

    assert parts.diseased + parts.healthy == min(largest)
    assert _largest_balance(np.full((2, 3, 2), 4))[:2] == (1, 1)


def test_a_part_without_patients_is_refused_unless_asked_for() -> None:
    table = pd.DataFrame({"patient": list("abc")})

    assert len(split(table, {"train": 1, "test": 0}, seed=0)["test"]) == 0
    with pytest.raises(ValueError, match=r"'test' gets none of 3 patients for its 0\.1"):
        split(table, {"train": 0.9, "test": 0.1}, seed=0)
    with pytest.raises(ValueError, match="'train' gets none of 0 patients"):
        split(table[:0], {"train": 1}, seed=0)


def test_ages_beyond_the_interventions_are_clipped() -> None:
    assert _normalised_age(pd.Series([0, 20, 55, 90, 120])).tolist() == [0, 0, 0.5, 1, 1]
