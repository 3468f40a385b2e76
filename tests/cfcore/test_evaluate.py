"""Input that cannot be used is refused at once, with its name, row and value."""

import numpy as np
import pandas as pd
import pytest
import torch

from cfcore import InputError, bootstrap, compare, evaluate

P_OBS = [0.9, 0.2, 0.6]
P_CF = [[0.9, 0.5], [0.2, 0.1], [0.7, 0.3]]
Y = [1, 0, 1]


def changed(values: list, row: int, value: object) -> list:
    return [value if i == row else v for i, v in enumerate(values)]


BAD = {
    "NaN": ((changed(P_OBS, 1, np.nan), P_CF, Y), {}, r"p_obs\[1\]: nan is not a probability"),
    "above 1": ((P_OBS, changed(P_CF, 2, [0.1, 1.5]), Y), {}, r"p_cf_1\[2\]: 1.5 is not a prob"),
    "below 0": ((changed(P_OBS, 0, -1e-9), P_CF, Y), {}, r"p_obs\[0\]: -1e-09 is not a prob"),
    "infinite": ((changed(P_OBS, 0, np.inf), P_CF, Y), {}, r"p_obs\[0\]: inf is not a prob"),
    "label 2": ((P_OBS, P_CF, [0, 1, 2]), {}, r"y\[2\]: 2 is not a label"),
    "label 0.5": ((P_OBS, P_CF, [0, 0.5, 1]), {}, r"y\[1\]: 0.5 is not a label"),
    "label NaN": ((P_OBS, P_CF, [0, np.nan, 1]), {}, r"y\[1\]: nan is not a label"),
    "ragged": ((P_OBS, [[0.1], [0.1, 0.2], [0.1]], Y), {}, "p_cf: is ragged"),
    "text": ((["a", "b", "c"], P_CF, Y), {}, "p_obs: must be real numbers"),
    "numbers as text": (
        (["0.9", "0.2", "0.6"], P_CF, Y),
        {},
        "p_obs: must be real numbers, not <U3",
    ),
    "a series of text": ((pd.Series(P_OBS).astype(str), P_CF, Y), {}, r"p_obs\[0\]: '0.9' is not"),
    "one text": ((P_OBS, changed(P_CF, 1, [0.1, "1"]), Y), {}, "p_cf: must be real numbers"),
    "labels as text": ((P_OBS, P_CF, ["1", "0", "1"]), {}, "y: must be real numbers"),
    "text in objects": (
        (P_OBS, np.array(changed(P_CF, 1, [0.1, "1"]), dtype=object), Y),
        {},
        r"p_cf_1\[1\]: '1' is not a number",
    ),
    "nothing": ((changed(P_OBS, 2, None), P_CF, Y), {}, r"p_obs\[2\]: None is not a number"),
    "missing": (
        (P_OBS, P_CF, pd.array([1, None, 0], dtype="Int64")),
        {},
        r"y\[1\]: (<NA> is not a number|nan is not a label)",
    ),
    "dates": ((np.zeros(3, dtype="M8[s]"), P_CF, Y), {}, "p_obs: must be real numbers"),
    "complex array": ((np.ones(3, dtype=complex), P_CF, Y), {}, "p_obs: must be real"),
    "logits": (([-1.2, 0.3, 2.2], P_CF, Y), {}, r"p_obs\[0\]: -1.2 is not.*\]; are these logits\?"),
    "per cent": (
        (P_OBS, np.multiply(P_CF, 100), Y),
        {},
        "90 is not.*; are these logits, or per ce",
    ),
    "rounding": ((changed(P_OBS, 0, 1 + 1e-9), P_CF, Y), {}, r"in \[0, 1\]$"),
    "classes": ((P_CF, P_CF, Y), {}, r"p_obs: needs 1 axes.*\(3, 2\); .*one class at a time"),
    "classes in worlds": ((P_OBS, [P_CF], Y), {}, r"p_cf: needs 2 axes.*; .*one class at a time"),
    "loss": ((P_OBS, P_CF, Y), {"loss": "mse"}, r"loss must be a callable or one of .*'mse'"),
    "loss list": ((P_OBS, P_CF, Y), {"loss": ["bce"]}, "loss must be a callable or one of"),
    "complex": ((torch.ones(3, dtype=torch.complex64), P_CF, Y), {}, "p_obs: must be real"),
    "one axis": ((P_OBS, P_OBS, Y), {}, r"p_cf: needs 2 axes, but its shape is \(3,\)"),
    "no patients": ((np.zeros(0), np.zeros((0, 2)), None), {}, "no patients"),
    "no interventions": ((P_OBS, np.zeros((3, 0)), Y), {}, "no interventions"),
    "fewer labels": ((P_OBS, P_CF, Y[:2]), {}, "y: has 2 rows, but p_obs has 3"),
    "fewer counterfactuals": ((P_OBS, P_CF[:2], Y), {}, "p_cf: has 2 rows, but p_obs has 3"),
    "q too long": ((P_OBS, P_CF, Y), {"q": [0.5, 0.25, 0.25]}, "q: has 3 weights, but"),
    "q too heavy": ((P_OBS, P_CF, Y), {"q": [0.5, 0.6]}, "q: the weights sum to 1.1"),
    "q negative": ((P_OBS, P_CF, Y), {"q": [1.5, -0.5]}, r"q\[1\]: -0.5 is not a weight"),
    "q NaN": ((P_OBS, P_CF, Y), {"q": [np.nan, 1]}, r"q\[0\]: nan is not a weight"),
    "threshold": ((P_OBS, P_CF, Y), {"threshold": 1.5}, "threshold: 1.5 is outside"),
    "threshold NaN": ((P_OBS, P_CF, Y), {"threshold": np.nan}, "threshold: nan is outside"),
    "threshold text": ((P_OBS, P_CF, Y), {"threshold": "0.5"}, "threshold: must be a number"),
    "alpha": ((P_OBS, P_CF, Y), {"alphas": (0.5, 1.1)}, "alphas: 1.1 is outside"),
    "alphas collide": ((P_OBS, P_CF, Y), {"alphas": (0.1, 0.104)}, "both called 0.10"),
    "alphas repeat": ((P_OBS, P_CF, Y), {"alphas": (0.1, 0.1)}, "both called 0.10"),
    "alphas number": ((P_OBS, P_CF, Y), {"alphas": 0.1}, "alphas: must be a sequence"),
    "no bins": ((P_OBS, P_CF, Y), {"bins": 0}, "bins: 0 is less than 1"),
    "half a bin": ((P_OBS, P_CF, Y), {"bins": 0.5}, "bins: must be a whole number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_place_and_value(name: str) -> None:
    data, options, message = BAD[name]
    with pytest.raises(InputError, match=message):
        evaluate(*data, **options)


@pytest.mark.parametrize(
    "convert",
    [
        np.array,
        lambda x: np.array(x, dtype=">f4"),
        lambda x: np.asfortranarray(np.array(x)),
        lambda x: torch.tensor(x, dtype=torch.float64),
        lambda x: torch.tensor(x, dtype=torch.float64).requires_grad_(),
        lambda x: pd.DataFrame(x).squeeze(axis=1) if np.ndim(x) == 1 else pd.DataFrame(x),
        lambda x: np.array(x, dtype=object),
        lambda x: (
            pd.array(x, dtype="Float64") if np.ndim(x) == 1 else pd.DataFrame(x, dtype="Float64")
        ),
    ],
)
def test_any_kind_of_numbers_will_do(convert: object) -> None:
    expected = evaluate(P_OBS, P_CF, Y)

    assert evaluate(*map(convert, (P_OBS, P_CF, Y))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(Y, dtype=bool),
        pd.Series(Y, dtype="boolean"),
        pd.Series(Y, dtype="Int64"),
        pd.Categorical(Y),
        pd.Series(Y, dtype="category"),
        np.array([True, 0, 1.0], dtype=object),
    ],
    ids=lambda labels: f"{type(labels).__name__}-{labels.dtype}",
)
def test_any_kind_of_labels_will_do(labels: object) -> None:
    assert evaluate(P_OBS, P_CF, labels) == evaluate(P_OBS, P_CF, Y)


def test_input_is_not_changed() -> None:
    p_obs, p_cf, y, q = np.array(P_OBS), np.array(P_CF), np.array(Y), np.array([0.3, 0.7])
    copies = [values.copy() for values in (p_obs, p_cf, y, q)]
    for values in (p_obs, p_cf, y, q):
        values.setflags(write=False)

    evaluate(p_obs, p_cf, y, q=q)

    for values, copy in zip((p_obs, p_cf, y, q), copies, strict=True):
        np.testing.assert_array_equal(values, copy)


def test_weights_in_float32_are_weights() -> None:
    q = torch.full((3,), 1 / 3)
    p = torch.tensor([[0.2, 0.2, 0.2], [0.7, 0.7, 0.7]])

    report = evaluate(p[:, 0], p, q=q)

    assert report["D_abs"] == pytest.approx(0, abs=1e-16)


def test_results_are_plain_numbers_in_a_fixed_order() -> None:
    report = evaluate(P_OBS, P_CF, Y, alphas=(0.3, 0))

    risks = "R_orig R_CM R_IE R_CVaR_0.30 R_CVaR_0.00 R_WC"
    calibration = "Brier_orig ECE_orig MCE_orig Brier_marg ECE_marg MCE_marg"
    stability = "S_var S_flip D_obs D_abs S_rank tau_b abs_rank_change"
    assert " ".join(report) == f"{risks} {calibration} {stability}"
    assert {type(value) for value in report.values()} == {float}
    assert report["R_CVaR_0.00"] == report["R_WC"]


def test_decisions_are_strict_and_the_threshold_counts() -> None:
    report = evaluate([0.5, 0.6], [[0.5], [0.4]], threshold=0.5)
    assert (report["S_flip"], report["D_obs"]) == (0.5, 0.5)

    report = evaluate([0.5, 0.6], [[0.5], [0.4]], threshold=0.3)
    assert (report["S_flip"], report["D_obs"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patient": ["a"]}, "patient: has 1 rows, not 3"),
        ({"level": 1.2}, "level: 1.2 is outside"),
        ({"replicates": 1}, "replicates: 1 is less than 2"),
        ({"rank_replicates": -1}, "rank_replicates: -1 is less than 0"),
    ],
)
def test_the_bootstrap_refuses_bad_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bootstrap(P_OBS, P_CF, Y, **options)


def test_comparing_needs_the_same_patients() -> None:
    with pytest.raises(InputError, match="the two are about 3 and 2 rows"):
        compare((P_OBS, P_CF), (P_OBS[:2], P_CF[:2]))
