"""Metrics run where their tensors are, and never ask the device for a value."""

from collections.abc import Callable

import pytest
import torch
from accelerator import NAME, Accelerator
from torch import Tensor

from cfbook.cli import _own_device
from cfbook.study.statistics import stratified_auc, worst_gap
from cfbook.theory import estimators
from cfcore import metrics as m
from cfcore.metrics.loss import squared_error
from cfcore.metrics.summary import Options, Scores, summarise

N, K = 50, 6


def example() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    logit = 3 * torch.randn(N, K, generator=rng)
    draw = torch.rand(N, generator=rng)
    return {
        "p": logit.sigmoid(),
        "logit": logit,
        "obs": logit[:, 0].sigmoid().round(decimals=1),
        "q": torch.rand(K, generator=rng, dtype=torch.float64).softmax(dim=0),
        "y": (draw < 0.4).long(),
        "group": (draw * 30).long() % 3,
    }


METRICS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "marginal_prediction": lambda d: m.marginal_prediction(d["p"], d["q"]),
    "monte_carlo_prediction": lambda d: m.monte_carlo_prediction(d["p"]),
    "rounded": lambda d: m.rounded(d["obs"]),
    "original_risk": lambda d: m.original_risk(d["obs"], d["y"]),
    "marginal_risk": lambda d: m.marginal_risk(d["p"], d["q"], d["y"]),
    "expected_risk": lambda d: m.expected_risk(d["p"], d["q"]),
    "tail_risk": lambda d: m.tail_risk(d["p"], d["q"], 0.3),
    "worst_case_risk": lambda d: m.worst_case_risk(d["p"], d["q"]),
    "cross_entropy": lambda d: m.cross_entropy(d["obs"], d["y"]),
    "cross_entropy_from_logits": lambda d: m.cross_entropy_from_logits(d["logit"], d["y"][:, None]),
    "marginal_risk from logits": lambda d: m.marginal_risk(
        d["logit"], d["q"], d["y"], m.cross_entropy_from_logits
    ),
    "squared_error": lambda d: squared_error(d["obs"], d["y"]),
    "brier_score": lambda d: m.brier_score(d["obs"], d["y"]),
    "expected_calibration_error": lambda d: m.expected_calibration_error(d["obs"], d["y"]),
    "maximum_calibration_error": lambda d: m.maximum_calibration_error(d["obs"], d["y"]),
    "stability_variance": lambda d: m.stability_variance(d["p"], d["q"]),
    "attribute_variance": lambda d: m.attribute_variance(d["p"], d["q"], d["q"] > 0.2),
    "flip_rate": lambda d: m.flip_rate(d["obs"], d["p"], d["q"]),
    "disagreement_rate": lambda d: m.disagreement_rate(d["obs"], d["p"][:, 1]),
    "mean_absolute_difference": lambda d: m.mean_absolute_difference(d["obs"], d["p"][:, 1]),
    "rank_stability": lambda d: m.rank_stability(d["obs"], d["p"][:, 1]),
    "kendall": lambda d: m.kendall(d["obs"], d["p"][:, 1]),
    "mean_absolute_rank_change": lambda d: m.mean_absolute_rank_change(d["obs"], d["p"][:, 1]),
    "auc": lambda d: m.auc(d["obs"], d["y"]),
    "average_precision": lambda d: m.average_precision(d["obs"], d["y"]),
    "stratified_auc": lambda d: stratified_auc(d["obs"], d["y"], d["group"], 3),
    "worst_gap": lambda d: worst_gap(stratified_auc(d["obs"], d["y"], d["group"], 3)),
    "observational_mean": lambda d: estimators.observational_mean(d["obs"], d["group"] == 1),
    "counterfactual_mean": lambda d: estimators.counterfactual_mean(d["obs"]),
    "counterfactual_variance": lambda d: estimators.counterfactual_variance(d["p"]),
    "variance_bound": lambda d: estimators.variance_bound(d["obs"].var(), 0.1, N),
    "tolerable_generator_noise": lambda d: estimators.tolerable_generator_noise(
        d["obs"].var(), 9, N
    ),
    "summarise": lambda d: summarise(Scores(d["obs"], d["p"], d["q"], d["y"])),
}


def tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return list(result.values()) if isinstance(result, dict) else list(result)


def test_every_metric_is_tried_on_a_device() -> None:
    assert set(METRICS) >= set(m.__all__)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_run_on_the_meta_device(name: str) -> None:
    here = tensors(METRICS[name](example()))
    data = {key: value.to("meta") for key, value in example().items()}

    elsewhere = tensors(METRICS[name](data))

    assert all(tensor.is_meta for tensor in elsewhere)
    assert [tensor.shape for tensor in elsewhere] == [tensor.shape for tensor in here]
    assert [tensor.dtype for tensor in elsewhere] == [tensor.dtype for tensor in here]


@pytest.mark.parametrize("name", METRICS)
def test_metrics_never_wait_for_an_accelerator(name: str) -> None:
    expected = tensors(METRICS[name](example()))

    with Accelerator() as log:
        data = {key: value.to(NAME) for key, value in example().items()}
        log.clear()
        results = tensors(METRICS[name](data))
        assert log.quiet, log
        assert all(tensor.device.type == NAME for tensor in results)
        results = [tensor.cpu() for tensor in results]

    torch.testing.assert_close(results, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("key", ["p", "logit"])
def test_the_whole_report_never_waits_for_an_accelerator(key: str) -> None:
    options = Options(alphas=(0.3, 0.0))

    def report(data: dict[str, Tensor]) -> dict[str, Tensor]:
        given = data[key][:, 0], data[key], data["q"], data["y"]
        return summarise(Scores(*given, key == "logit", draws=True), options)

    expected = report(example())
    with Accelerator() as log:
        data = {name: value.to(NAME) for name, value in example().items()}
        log.clear()
        results = report(data)
        assert log.quiet, log
        results = {name: value.cpu() for name, value in results.items()}

    torch.testing.assert_close(results, expected, rtol=1e-12, atol=1e-12)


def test_the_accelerator_sees_what_would_make_a_host_wait() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    waits = {
        "item": lambda x: x.sum().item(),
        "nonzero": lambda x: x.nonzero(),
        "mask": lambda x: x[x > 1],
        "assignment by a mask": lambda x: x.clone().__setitem__(x > 1, x[:2]),
        "if": lambda x: bool(x.sum() > 1),
        "unique": lambda x: x.unique(),
        "repeat": lambda x: torch.repeat_interleave(x.long()),
    }
    for name, wait in waits.items():
        with Accelerator() as log:
            data = x.to(NAME)
            log.clear()
            wait(data)
            assert log.waits, name


def test_the_accelerator_refuses_mixed_devices_and_counts_copies() -> None:
    with Accelerator() as log:
        data = torch.ones(3).to(NAME)
        with pytest.raises(RuntimeError, match="mixes"):
            data + torch.ones(3)
        data.cpu()
        torch.zeros(3).copy_(data)
        assert (log.to_device, log.to_host, log.waits) == (1, 2, [])


def test_under_torchrun_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert [_own_device(name) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]
