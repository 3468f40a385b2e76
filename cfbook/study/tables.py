"""The paper's tables, in its rows and columns: as printed, and as found here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd

from cfbook import notation
from cfbook.printed_tables import published, read_tables
from cfbook.production.prose import count
from cfbook.study.learned import learned_studies
from cfbook.study.orders import STEPS, transitions
from cfbook.study.presets import preset
from cfbook.study.rules import training_reach
from cfbook.study.runs import Run
from cfbook.study.statistics import Study
from cfcore.intervals import DAGGER, Rule, interval

PaperTable = Literal["risk", "calibration", "stability"]
Tables = Mapping[str, pd.DataFrame]
"""Tables by what stands above them."""

_ALONE = {"basic": "basic", "ctc": "CTC"}
_PLACES = {"CTC": 2, "S_var": 4, "S_var_sex": 4, "S_var_age": 4, "abs_rank_change": 1}
ROWS = [("basic", 0.0), *((family, s) for family in STEPS for s in STEPS[family])]
_RIVALS = {  # by row: a statistic, of the attribute of the bias, and what it needs
    "R_orig": ("R_orig", "labels"),
    "weighted risk": ("R_w_{}", "labels"),
    "score gap": ("score_{}", "labels"),
    "R_IE": ("R_IE", "labels, generator"),
    "S_var": ("S_var", "generator"),
    "response": ("S_var_{}", "generator"),
}
_CHAINS = {"sex": ("logit", "sex"), "age": ("age",)}
_CONTROLS = [(f"control {family}", s) for family in ("sex", "age") for s in STEPS[family]]


def row_label(family: str, strength: float) -> str:
    """The name of a predictor in a table.

    Example:
        >>> row_label("basic", 0.0), row_label("logit", 0.5), row_label("control age", 0.9)
        ('basic', 'logit +0.5', 'control age 0.90')
    """
    if family in _ALONE:
        return _ALONE[family]
    return f"logit +{strength:g}" if family == "logit" else f"{family} {strength:.2f}"


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    """A table by family and strength under the names of the predictors."""
    return table.set_axis(pd.Index([row_label(*kind) for kind in table.index], name="predictor"))


def _by_kind(
    summary: pd.DataFrame, value: str, columns: Sequence[str], *, controls: bool = False
) -> pd.DataFrame:
    """A column of a summary as a table of statistics, predictors in the order of the paper."""
    table = summary.pivot(index=["family", "strength"], columns="metric", values=value)
    rows = [kind for kind in (*ROWS, *_CONTROLS * controls) if kind in table.index]
    return _labelled(table.loc[rows, list(columns)]).rename_axis(columns=None)


def means(study: Study, columns: Sequence[str], *, controls: bool = False) -> pd.DataFrame:
    """Means over the trainings, a row for each predictor, and for the controls if asked for."""
    return _by_kind(study.summary(columns), "mean", columns, controls=controls)


def intervals(study: Study, columns: Sequence[str], *, controls: bool = False) -> pd.DataFrame:
    """Means with 95 % intervals as text, in the rows and columns of :func:`means`.

    A dagger marks intervals that :data:`cfcore.intervals.NOTE` is about.
    """
    summary = study.summary(columns)
    mean, low, high = (
        [_decimals(*cell) for cell in zip(summary.metric, summary[name], strict=True)]
        for name in ("mean", "low", "high")
    )
    marks = summary.doubtful.map({True: DAGGER, False: ""})
    words = [f"{a} [{b}, {c}]{d}" for a, b, c, d in zip(mean, low, high, marks, strict=True)]
    return _by_kind(summary.assign(text=words), "text", columns, controls=controls)


def spreads(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Standard deviations between trainings, NaN of one, in the form of :func:`means`."""
    return _by_kind(study.summary(columns), "spread", columns)


def counted(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Means over the trainings, with a last row of correct transition counts."""
    table = means(study, columns)
    chains = [family for family in STEPS if (family, STEPS[family][0]) in study.kinds]
    table.loc["CTC"] = [transitions(study, c, chains)[:, 0].mean() for c in columns]
    return table


def rivals(studies: Mapping[str, Study]) -> pd.DataFrame:
    """Correct transitions with and without counterfactuals, as text, with an interval of their sum.

    A row for each statistic, and what it needs; a column for each attribute, ``"sex"`` and
    ``"age"``, whose steps are counted in the study given for it. Offsets are by sex. ``weighted
    risk``, ``score gap`` and ``response`` are of the attribute itself.
    """
    rows = {}
    for name, (statistic, needed) in _RIVALS.items():
        own = {
            attribute: transitions(s, statistic.format(attribute), _CHAINS[attribute])
            for attribute, s in studies.items()
        }
        total = sum(own.values())
        trained, kind = total[:, 0], Rule(0, sum(map(len, STEPS.values())))
        left_out = (trained.sum() - trained) / max(1, len(trained) - 1)
        low, high = interval(total.mean(axis=0), rule=kind, reach=training_reach(left_out))
        rows[name] = {"needs": needed}
        rows[name] |= {attribute: f"{n[:, 0].mean():.2f}" for attribute, n in own.items()}
        rows[name]["both"] = f"{trained.mean():.2f} [{low:.1f}, {high:.1f}]"
    return pd.DataFrame.from_dict(rows, orient="index")


def _decimals(metric: str, value: float) -> str:
    """A value of a metric with as many decimals as the paper prints."""
    return "–" if pd.isna(value) else f"{value:,.{_PLACES.get(metric, 3)}f}"


def in_print(table: pd.DataFrame) -> pd.DataFrame:
    """A table as text, with as many decimals as the paper prints.

    Example:
        >>> found = pd.DataFrame({"S_var": [0.01, 8], "R_IE": [0.5, None]}, ["basic", "CTC"])
        >>> in_print(found).to_numpy().tolist()
        [['0.0100', '0.500'], ['8.00', '–']]
    """
    cells = {
        metric: [
            _decimals("CTC" if row == "CTC" else metric, v) for row, v in table[metric].items()
        ]
        for metric in table
    }
    return pd.DataFrame(cells, table.index)


def bounded(
    study: Study, columns: Sequence[str], *, having: Sequence[str], controls: bool = False
) -> pd.DataFrame:
    """A table as text, some columns having intervals: with the controls, or else with counts."""
    table = in_print(means(study, columns, controls=True) if controls else counted(study, columns))
    table.update(intervals(study, having, controls=controls))
    return table


def averaged(found: Mapping[str, Study], table: Callable[[Study], pd.DataFrame]) -> pd.DataFrame:
    """A table of each generator's study, averaged over the generators; empty if there are none."""
    own = [table(study) for study in found.values()]
    return sum(own[1:], start=own[0]) / len(own) if own else pd.DataFrame()


def number_learned(found: Mapping[str, Study]) -> str:
    """How many learned generators some studies are of, in the words of a caption."""
    number = count(len(found))
    return "one learned generator" if len(found) == 1 else f"{number} learned generators (mean)"


def learned_print(found: Mapping[str, Study], columns: Sequence[str]) -> pd.DataFrame:
    """Means over learned generators, with counts of correct transitions, as text."""
    return in_print(averaged(found, lambda one: counted(one, columns)))


def learned_of(run: Run, study: Study, **choice: str) -> dict[str, Study]:
    """What learned generators find where an oracle's run does, of the same trainings.

    There are none of another generator, and of another preset than the book's. A choice is one of
    :func:`~cfbook.study.learned.learned_studies`: ``effect`` or ``q``.
    """
    book = preset("book")
    if run.generator != "oracle" or replace(run.preset, trainings=book.trainings) != book:
        return {}
    found = learned_studies(run.setting, run.testset, **choice)
    return {name: one.only(study.seeds) for name, one in found.items()}


def caption(studies: Mapping[Run, Study]) -> str:
    """What a table is made of: preset, generator, trainings, and the patients of each test set.

    The studies in the table are given by the runs that they are of.
    """
    run, study = next(iter(studies.items()))
    seeds = ", ".join(map(str, study.seeds))
    where = {r: f"{notation.words(r.setting)} {r.testset}" for r in studies}
    sets = [f"{where[r]} N = {s.patients:,}" for r, s in studies.items()]
    effects = " and ".join(dict.fromkeys(r.effect for r in studies))
    line = (
        f"preset {run.preset.name}; counterfactuals: {run.generator}, {effects} effect, "
        f"K = {study.worlds}; seeds of the trainings {seeds}; {'; '.join(dict.fromkeys(sets))}"
    )
    if len(study.seeds) == 1:
        line += "; one training: intervals are over patients, how trainings vary is unknown"
    return line


def beside(
    run: Run, study: Study, kind: PaperTable, columns: Sequence[str], *, having: Sequence[str]
) -> pd.DataFrame:
    """Columns of a table of the paper beside ours, which have intervals and others beside them."""
    size = read_tables()[kind].groupby("setting").n_test.first()[run.setting]
    ours = bounded(study, columns, having=having)
    paper = in_print(_labelled(published(run.setting, kind)[list(having)]))
    both = {f"paper, N = {size:,.0f}": paper, f"here, N = {study.patients:,}": ours}
    return pd.concat(both, axis=1).reindex(ours.index).fillna("–")


def paired(both: pd.DataFrame) -> pd.DataFrame:
    """Each biased predictor beside its control, which was trained on as many images."""
    biased = [row_label(*kind) for kind in ROWS if f"control {row_label(*kind)}" in both.index]
    control = both.loc[[f"control {name}" for name in biased]].set_axis(biased)
    return side_by_side({"biased": both.loc[biased], "control": control})


def side_by_side(tables: Tables) -> pd.DataFrame:
    """Tables of the same rows and columns as one, in which equal columns are neighbours."""
    columns = next(iter(tables.values())).columns
    return pd.concat(tables, axis=1).swaplevel(axis=1)[list(columns)]


def learned_variants(run: Run, study: Study, columns: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Statistics under other choices as learned generators find them, by captions, as text.

    Not every choice was computed with all generators and all trainings. So each has a table of its
    own, in which it stands beside uniform q with the same ones.
    """
    choices = {"empirical q": {"q": "empirical"}, "total effect": {"effect": "total"}}
    every, tables = learned_of(run, study), {}
    for name, choice in choices.items():
        if found := learned_of(run, study, **choice):
            same = {key: every[key].only(one.seeds) for key, one in found.items()}
            both = {"uniform q": same, name: found}
            own = {key: learned_print(some, columns) for key, some in both.items()}
            seeds = ", ".join(map(str, next(iter(same.values())).seeds))
            title = f"{name.capitalize()} beside uniform q with {number_learned(same)}"
            tables[f"{title}; seeds of the predictors: {seeds}."] = side_by_side(own)
    return tables
