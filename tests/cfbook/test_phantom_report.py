"""The phantom audited by a plan: each generator leads to the conclusion that it should."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from cfbook.paths import ROOT
from cfbook.production.phantom_report import _verdicts_of, export_phantom
from cfcore.report.conclusions import RULES
from cfscm import audit
from cfscm.auditing import readers

KEYS = ["generator", "predictor", "nuisance"]
SAID = {"depends": "depends", "none": "no dependence", "warning": "warning"}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    found = pd.read_csv(ROOT / "data/results/phantom_report.csv").set_index(KEYS)
    return found[found.seed == 0]


def test_the_true_generator_finds_the_bias_and_nothing_where_there_is_none(
    table: pd.DataFrame,
) -> None:
    found = table.loc["truth"]

    assert found.verdict["sex-biased", "sex"] == "depends"
    assert found.verdict["unbiased", "sex"] == "none"
    assert found.changed["unbiased", "sex"] == "well"


def test_the_learned_generator_leads_to_the_verdicts_of_the_truth(table: pd.DataFrame) -> None:
    found, truth = table.loc["learned"], table.loc["truth"]

    assert found.verdict.to_dict() == truth.verdict.to_dict()
    assert found.low["unbiased", "age"] > RULES["tolerance"]
    # It finds the dependence on age, and makes it smaller than it is.
    assert found.high["unbiased", "age"] < truth.low["unbiased", "age"]


def test_nothing_is_concluded_from_a_generator_that_changes_nothing(table: pd.DataFrame) -> None:
    assert (table.loc["identity"].verdict == "nothing").all()
    assert table.loc["identity"].high.max() < 1e-6


def test_other_predictors_patients_and_readers_lead_to_the_same_verdicts_but_one(
    table: pd.DataFrame,
) -> None:
    both = pd.read_csv(ROOT / "data/results/phantom_report.csv").set_index(KEYS)
    again = both[both.seed == 1]

    assert len(again) == len(table) == 12
    other = again.verdict[again.verdict != table.verdict.loc[again.index]]
    assert other.to_dict() == {("learned", "unbiased", "sex"): "undecided"}
    assert (again.estimate != table.estimate).any()


def test_the_page_shows_this_table_and_these_rules(table: pd.DataFrame) -> None:
    page = (ROOT / "book/report.md").read_text()

    for who, nuisance in table.loc["truth"].index:
        cells = []
        for generator in ("truth", "learned", "identity"):
            verdict, size = table.loc[(generator, who, nuisance), ["verdict", "estimate"]]
            two = f"{size:.{1 - int(np.floor(np.log10(max(size, 1e-9))))}f}"
            cells.append(f"{SAID[verdict]}: {two}" if verdict in SAID else "nothing")
        assert f"| {who}, {nuisance} | {' | '.join(cells)} |" in page
    for name, number in RULES.items():
        assert f"| `{name}` | {number} |" in page


def test_the_report_is_the_one_of_the_table(table: pd.DataFrame) -> None:
    path = ROOT / "book/_static/phantom_report.html"
    text = path.read_text()

    assert path.stat().st_size < 300_000
    assert "learned.safetensors" in text
    for because in table.loc["learned"].because.unique():
        assert because in text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict]]:
    """A fifth of the patients, and readers that learn for a moment."""
    folder = tmp_path_factory.mktemp("phantom")
    plan = export_phantom(folder, rows=800) | {"pictures": "none", "replicates": 100}
    plan["nuisances"] = {"sex": "all", "age": [30, 80]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_STEPS", 60)
        yield folder, plan


def concluded(small: tuple[Path, dict], generator: str) -> tuple[dict, pd.DataFrame]:
    folder, plan = small
    path = folder / f"{generator}.yml"
    where = f"cfbook.production.phantom_report:{generator}"
    path.write_text(yaml.safe_dump(plan | {"generator": where}))
    findings = audit(path, folder / generator, say=lambda line: None)
    return findings, _verdicts_of(generator, findings).set_index(KEYS[1:])


def test_a_small_audit_with_the_truth_finds_the_bias(small: tuple[Path, dict]) -> None:
    findings, found = concluded(small, "oracle")

    # Each row has the noise of its own patient: nothing changed is nothing changed.
    assert findings["generator"]["composition"]["mae_null"] < 1e-6
    assert found.verdict["sex-biased", "sex"] == "depends"
    assert found.verdict["unbiased", "sex"] != "depends"
    assert found.low["sex-biased", "sex"] > 5 * found.high["unbiased", "sex"]


def test_a_small_audit_without_a_change_concludes_nothing(small: tuple[Path, dict]) -> None:
    _, found = concluded(small, "identity")

    assert (found.verdict == "nothing").all()
    assert found.estimate.max() < 1e-6
