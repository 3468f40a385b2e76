import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cfchest.graph import CHEST
from cfchest.offsets import LogitOffset
from cfchest.phantom import Cohort, Phantom
from cfcore.checks import InputError
from cfcore.metrics import auc
from cfcore.predictor import Predictor
from cfscm import weights
from cfscm.networks import ImageNetwork, PredictorConfig, build, load, save
from cfscm.training import TrainingConfig, _augment, _Epoch, outputs, train
from cfscm.weights import read_manifest

SMALL = PredictorConfig("effusion", width=8)
SHORT = TrainingConfig(epochs=3, batch=32)


def small(seed: int = 0) -> ImageNetwork:
    return build(SMALL, graph=CHEST, seed=seed)


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return Phantom(32).sample(640, hospital="C", seed=21)


@pytest.fixture(scope="module")
def x(cohort: Cohort) -> Tensor:
    return cohort.images[:]


def run(
    x: Tensor, y: Tensor, *, config: PredictorConfig = SMALL, training: TrainingConfig = SHORT
) -> tuple[ImageNetwork, list[_Epoch]]:
    reader = build(config, graph=CHEST, seed=5)
    validation = (x[512:], y[512:])
    history = list(train(reader, x[:512], y[:512], validation=validation, seed=5, config=training))
    return reader, history


@pytest.fixture(scope="module")
def trained(x: Tensor, cohort: Cohort) -> tuple[ImageNetwork, list[_Epoch]]:
    return run(x, cohort.pa["effusion"], training=TrainingConfig(epochs=6, batch=32))


# Networks


@pytest.mark.parametrize(
    ("variable", "shape"), [("effusion", (3,)), ("sex", (3,)), ("race", (3, 3)), ("age", (3,))]
)
def test_the_kind_of_the_variable_decides_the_head(variable: str, shape: tuple) -> None:
    reader = build(PredictorConfig(variable, width=4), graph=CHEST, seed=0).eval()

    assert isinstance(reader, Predictor)
    assert reader(torch.rand(3, 1, 64, 64), {}).shape == shape


def test_a_continuous_reader_answers_in_units() -> None:
    reader = build(PredictorConfig("age", width=4), graph=CHEST, seed=0).eval()
    nn.init.zeros_(reader.network[-1].weight)
    nn.init.constant_(reader.network[-1].bias, 0.5)

    assert reader(torch.rand(2, 1, 64, 64)).tolist() == [55.0, 55.0]


def test_the_published_densenet_is_built_without_torchvision() -> None:
    reader = build(PredictorConfig("effusion", "densenet121", 64), graph=CHEST, seed=0).eval()
    with torch.inference_mode():
        logit = reader(torch.rand(1, 1, 64, 64), {})

    assert logit.shape == (1,)
    assert 6.9e6 < sum(p.numel() for p in reader.parameters()) < 7.1e6
    assert "torchvision" not in sys.modules


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (small(seed).state_dict() for seed in (1, 1, 2))

    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("wrong", [{"architecture": "resnet"}, {"width": 0}])
def test_unknown_predictors_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PredictorConfig("effusion", **wrong)
    with pytest.raises(InputError, match="weight"):
        build(PredictorConfig("weight"), graph=CHEST, seed=0)


# Logit offsets


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_auc_within_a_sex_does_not_depend_on_beta(
    beta: float, trained: tuple[ImageNetwork, list[_Epoch]], x: Tensor, cohort: Cohort
) -> None:
    reader = trained[0].double()  # in float32 a sum may tie two logits
    y, sex = cohort.pa["effusion"], cohort.pa["sex"]
    basic = outputs(reader, x.double(), cohort.pa)
    biased = outputs(LogitOffset(reader, beta), x.double(), cohort.pa)
    reader.float()

    for code in (0, 1):
        group = sex == code
        assert auc(biased[group], y[group]) == auc(basic[group], y[group])
    assert auc(biased, y) != auc(basic, y)


def test_the_offset_reads_the_intervened_sex(x: Tensor, cohort: Cohort) -> None:
    reader = small().eval()
    g = LogitOffset(reader, beta=2.0)
    men, women = (Phantom(32).act(cohort.pa, {"sex": sex}) for sex in (0, 1))
    with torch.inference_mode():
        basic, as_men, as_women = reader(x), g(x, men), g(x, women)

    assert isinstance(g, Predictor)
    assert torch.equal(as_men, basic)
    assert torch.equal(as_women, basic + 2.0)


# Training


def test_training_reads_effusion(trained: tuple[ImageNetwork, list[_Epoch]]) -> None:
    history = trained[1]

    assert [e.epoch for e in history] == list(range(1, len(history) + 1))
    assert history[-1].train_loss < history[0].train_loss - 0.1
    assert max(e.val_score for e in history) > 0.75


def test_training_again_gives_the_same_bits(x: Tensor, cohort: Cohort) -> None:
    (one, history), (same, again) = (run(x, cohort.pa["effusion"]) for _ in range(2))

    assert history == again
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])


@pytest.mark.parametrize("variable", ["race", "age"])
def test_other_variables_train_too(variable: str, x: Tensor, cohort: Cohort) -> None:
    _, history = run(x, cohort.pa[variable], config=PredictorConfig(variable, width=8))

    assert history[-1].train_loss < history[0].train_loss


def test_images_may_be_rendered_when_asked_for(x: Tensor, cohort: Cohort) -> None:
    y = cohort.pa["effusion"][:96]
    lazy, eager = cohort.take(slice(96)).images, x[:96]
    histories = []
    for images in (lazy, eager):
        reader = small()
        histories.append(
            list(train(reader, images, y, validation=(images, y), seed=0, config=SHORT))
        )

    assert histories[0] == histories[1]


def test_early_stopping_restores_the_best_weights(x: Tensor, cohort: Cohort) -> None:
    y = cohort.pa["effusion"]
    wild = TrainingConfig(epochs=30, batch=32, learning_rate=0.3, patience=2)
    reader, history = run(x, y, training=wild)
    best = min(history, key=lambda e: e.val_loss)
    out = outputs(reader, x[512:])
    loss = nn.functional.binary_cross_entropy_with_logits(out, y[512:])

    assert len(history) < 30
    assert [e.best for e in history[-2:]] == [False, False]
    assert best.best and loss.item() == pytest.approx(best.val_loss, rel=1e-6)
    assert not reader.training


def test_best_weights_are_restored_when_the_caller_stops(x: Tensor, cohort: Cohort) -> None:
    y = cohort.pa["effusion"]
    reader = small()
    epochs = train(reader, x[:512], y[:512], validation=(x[512:], y[512:]), seed=0, config=SHORT)
    first = next(epochs)
    epochs.close()
    loss = nn.functional.binary_cross_entropy_with_logits(outputs(reader, x[512:]), y[512:])

    assert loss.item() == pytest.approx(first.val_loss, rel=1e-6)


def test_a_progress_bar_changes_nothing(
    x: Tensor, cohort: Cohort, capsys: pytest.CaptureFixture
) -> None:
    y = cohort.pa["effusion"][:64]
    histories = [
        list(
            train(
                small(),
                x[:64],
                y,
                validation=(x[:64], y),
                seed=0,
                config=SHORT,
                progress=progress,
            )
        )
        for progress in (False, True)
    ]

    assert histories[0] == histories[1]
    assert "epoch 3" in capsys.readouterr().err


def test_augmentation_is_seeded_and_can_be_switched_off(x: Tensor) -> None:
    off = TrainingConfig(noise=0, brightness=0, shift=0)
    one, same = (_augment(x[:8], SHORT, torch.Generator().manual_seed(1)) for _ in range(2))

    assert torch.equal(one, same) and one.shape == x[:8].shape
    assert torch.equal(_augment(x[:8], off, torch.Generator()), x[:8])


def test_a_loss_that_is_not_finite_names_the_step(x: Tensor, cohort: Cohort) -> None:
    broken = x.clone()
    broken[:512] = torch.nan
    with pytest.raises(FloatingPointError, match="'effusion' of the loss is nan at step 1 of 48"):
        run(broken, cohort.pa["effusion"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.full((640,), torch.nan), "row 0"),
        (torch.full((640,), 2.0), "effusion takes one of"),
        (torch.zeros(640, 1), "as many values of effusion"),
    ],
)
def test_bad_targets_are_refused(x: Tensor, target: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(x, target)
    with pytest.raises(ValueError, match="512 images need as many values of effusion"):
        next(train(small(), x[:512], target[:9], validation=(x, target), seed=0))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="batch must be positive, not 0"):
        TrainingConfig(batch=0)
    with pytest.raises(TypeError, match="learning"):
        TrainingConfig(learning=1)


# Weights on disk


def test_weights_return_from_disk(
    trained: tuple[ImageNetwork, list[_Epoch]], x: Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "weights" / "effusion.safetensors"
    save(trained[0], path, seed=5, notes={"epochs": 6})
    reader, manifest = load(path, graph=CHEST), read_manifest(path)

    assert torch.equal(outputs(reader, x), outputs(trained[0], x))
    assert not reader.training
    assert reader.variable == CHEST["effusion"]
    assert manifest["config"] == {"variable": "effusion", "architecture": "small", "width": 8}
    assert manifest["seed"] == 5 and manifest["notes"] == {"epochs": 6}
    assert manifest["versions"]["torch"] == torch.__version__
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "effusion.json",
        "effusion.safetensors",
    ]


def test_weights_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(small(), path, seed=0)
    manifest = read_manifest(path)
    save(small(1), path, seed=1)
    path.with_suffix(".json").write_text(json.dumps(manifest))

    with pytest.raises(ValueError, match="manifest"):
        load(path, graph=CHEST)


def test_an_interrupted_save_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    save(small(), path, seed=0)
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        save(small(1), path, seed=1)

    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_have_one_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="safetensors"):
        save(small(), tmp_path / "a.pt", seed=0)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.safetensors", graph=CHEST)


# What a training refuses, and what it survives


@pytest.mark.parametrize(
    ("variable", "values", "message"),
    [
        ("effusion", [0.0, 0.5, 1.0], r"row 1: effusion takes one of"),
        ("race", [0.0, 1.7, 2.0], r"row 1: race takes one of"),
        ("age", [30.0, 50.0, 91.0], r"row 2: age lies in"),
    ],
)
def test_an_impossible_target_is_refused_with_its_row(
    variable: str, values: list[float], message: str
) -> None:
    reader, x = (
        build(PredictorConfig(variable, width=4), graph=CHEST, seed=0),
        torch.rand(3, 1, 16, 16),
    )
    y = torch.tensor(values)
    with pytest.raises(ValueError, match=message):
        next(train(reader, x, y, validation=(x, y), seed=0, config=SHORT))


def test_whole_numbers_and_booleans_are_targets_too() -> None:
    x = torch.rand(6, 1, 16, 16)
    for y in (torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([True, False] * 3)):
        epoch = next(train(small(), x, y, validation=(x, y), seed=0, config=SHORT))
        assert epoch.train_loss > 0


def test_a_last_batch_of_one_image_is_no_obstacle() -> None:
    x, y = torch.rand(33, 1, 16, 16), torch.arange(33) % 2.0
    epoch = next(train(small(), x, y, validation=(x, y), seed=0, config=SHORT))

    assert epoch.train_loss > 0
    with pytest.raises(ValueError, match="two images or more"):
        next(train(small(), x[:1], y[:1], validation=(x, y), seed=0, config=SHORT))


def test_a_validation_loss_that_is_no_number_stops_the_training() -> None:
    x, y = torch.rand(8, 1, 16, 16), torch.arange(8) % 2.0
    broken = x.clone()
    broken[3] = torch.nan
    with pytest.raises(FloatingPointError, match="validation loss is nan at epoch 1"):
        list(train(small(), x, y, validation=(broken, y), seed=0, config=SHORT))


def test_offsets_of_a_plain_function_have_outputs() -> None:
    offset = LogitOffset(lambda x, pa: x.mean(dim=(1, 2, 3)), beta=2.0)
    pa = {"sex": torch.tensor([0.0, 1.0])}

    assert outputs(offset, torch.zeros(2, 1, 8, 8), pa).tolist() == [0, 2]


def test_the_manifest_is_json_even_when_a_score_is_undefined(tmp_path: Path) -> None:
    notes = {"history": [{"val_score": float("nan"), "best": True}]}
    save(small(), tmp_path / "a.safetensors", seed=0, notes=notes)

    text = (tmp_path / "a.json").read_text()

    assert "NaN" not in text
    assert json.loads(text)["notes"]["history"][0] == {"val_score": None, "best": True}
    assert "commit" in json.loads(text)


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": float("nan")}, {"noise": -1}, {"shift": -1}, {"epochs": 1.5}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingConfig(**wrong)


def test_large_weights_are_kept_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PART", 10_000)
    reader = small(3)
    path = tmp_path / "w.safetensors"
    save(reader, path, seed=3)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert len(files) > 3 and max(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000

    again = load(path, graph=CHEST)

    for ours, theirs in zip(reader.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    (tmp_path / "w.safetensors.1").write_bytes(b"other")
    with pytest.raises(InputError, match="manifest"):
        load(path, graph=CHEST)


def test_eight_bits_are_the_network_from_then_on(tmp_path: Path) -> None:
    network = build(PredictorConfig("sex", width=8), graph=CHEST, seed=0).eval()
    x = torch.rand(4, 1, 32, 32)
    with torch.inference_mode():
        whole = network(x)
        for eight in (False, True):
            save(network, tmp_path / f"{eight}.safetensors", seed=0, eight=eight)
        rounded, again = network(x), load(tmp_path / "True.safetensors", graph=CHEST)(x)
    assert torch.equal(rounded, again) and not torch.equal(rounded, whole)
    assert (rounded - whole).abs().max() < 0.05
    large, small = ((tmp_path / f"{eight}.safetensors").stat().st_size for eight in (False, True))
    assert small < 0.45 * large
