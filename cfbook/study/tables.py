"""The paper's tables, in its rows and columns: as printed, and as found here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Literal

import pandas as pd

from cfbook.study.claims import PAPER, STEPS, transitions
from cfbook.study.learned import RESULTS, learned_studies
from cfbook.study.runs import Run
from cfbook.study.statistics import Study
from cfcore.generator import Effect
from cfcore.intervals import DAGGER

WIDTH = 64
WHICH = {"_marg": "marginalised", "_orig": "original"}
SHORT = {f"R_CVaR_{level}": f"CVaR{level[1:]}" for level in ("0.50", "0.25", "0.10")}
SHORT |= {"abs_rank_change": "|dr|", "total effect": "total"}
SHORT |= {"uniform q": "uniform", "empirical q": "empir."}

Kind = Literal["risk", "calibration", "stability"]

COLUMNS: dict[Kind, list[str]] = {
    "risk": ["R_orig", "R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC"],
    "calibration": ["Brier_marg", "ECE_marg", "MCE_marg", "Brier_orig", "ECE_orig", "MCE_orig"],
    "stability": ["S_var", "S_flip", "D_obs", "S_rank", "tau_b", "abs_rank_change"],
}
FLOOR = ("null_flip", "null_abs")
ROWS = [("basic", 0.0), *((family, s) for family in STEPS for s in STEPS[family])]
CONTROLS = [(f"control {family}", s) for family in ("sex", "age") for s in STEPS[family]]


def label(family: str, strength: float) -> str:
    """The name of a predictor in a table.

    Example:
        >>> label("basic", 0.0), label("logit", 0.5), label("sex", 0.95), label("control age", 0.9)
        ('basic', 'logit +0.5', 'sex 0.95', 'control age 0.90')
    """
    if family == "basic":
        return family
    return f"logit +{strength:g}" if family == "logit" else f"{family} {strength:.2f}"


def published(setting: str, kind: Kind) -> pd.DataFrame:
    """A table as the paper prints it.

    A cell of the main text counts before its repetition in the appendix, which differs in a row.

    Args:
        setting: The name of the setting.
        kind: Which table.

    Returns:
        A row for each predictor, and the row ``CTC`` where there is one.
    """
    frame = pd.read_csv(Path(PAPER) / f"{kind}.csv").query("setting == @setting")
    names = [
        "CTC" if family == "ctc" else label(family, float(strength))
        for family, strength in zip(frame.family, frame.strength, strict=True)
    ]
    cells = frame[COLUMNS[kind]].set_axis(pd.Index(names, name="predictor"))
    main = (frame["where"] == "main").to_numpy()
    table = cells[~main].copy()
    table.update(cells[main])  # the cells that the main text has
    return table


def means(study: Study, columns: Sequence[str], *, controls: bool = False) -> pd.DataFrame:
    """Means over the trainings, a row for each predictor.

    Args:
        study: The study.
        columns: The statistics, such as ``COLUMNS["risk"]``.
        controls: Whether to add the controls of the biased predictors.
    """
    rows = [kind for kind in (*ROWS, *CONTROLS * controls) if kind in kinds(study)]
    values = [[study.column(name, *kind)[:, 0].mean() for name in columns] for kind in rows]
    return labelled_rows(values, rows, columns)


def spreads(study: Study, columns: Sequence[str], *, controls: bool = False) -> pd.DataFrame:
    """Standard deviations between the trainings, NaN of one, in the rows and columns of `means`."""
    rows = [kind for kind in (*ROWS, *CONTROLS * controls) if kind in kinds(study)]
    values = [
        [pd.Series(study.column(name, *kind)[:, 0]).std() for name in columns] for kind in rows
    ]
    return labelled_rows(values, rows, columns)


def intervals(
    study: Study, columns: Sequence[str], *, controls: bool = False, digits: int = 3
) -> pd.DataFrame:
    """Means with 95 % intervals as text, in the rows and columns of :func:`means`.

    A dagger marks intervals that :data:`cfcore.intervals.NOTE` is about.
    """
    summary = study.summary().set_index(["family", "strength", "metric"])
    rows = [kind for kind in (*ROWS, *CONTROLS * controls) if kind in kinds(study)]
    values = []
    for kind in rows:
        cells = [summary.loc[(*kind, name)] for name in columns]
        values.append(
            [
                f"{c['mean']:.{digits}f} [{c['low']:.{digits}f}, {c['high']:.{digits}f}]"
                f"{DAGGER if c['doubtful'] else ''}"
                for c in cells
            ]
        )
    return labelled_rows(values, rows, columns)


def with_counts(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """A table with a last row of correct transition counts, averaged over the trainings."""
    families = [family for family in STEPS if (family, STEPS[family][0]) in kinds(study)]
    counted = [
        float("nan") if name in FLOOR else transitions(study, name, families)[:, 0].mean()
        for name in table.columns
    ]
    return pd.concat([table, pd.DataFrame([counted], ["CTC"], table.columns)]).rename_axis(
        "predictor"
    )


def counted(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Means over the trainings, with a last row of correct transition counts."""
    return with_counts(study, means(study, columns))


def learned_means(
    setting: str,
    testset: str | None,
    columns: Sequence[str],
    *,
    effect: Effect = "direct",
    q: str = "uniform",
    counts: bool = False,
    folder: Path = RESULTS,
) -> pd.DataFrame:
    """Statistics with learned generators: means over trainings and generators.

    Args:
        setting: The name of the setting.
        testset: The test set; by default that of the setting.
        columns: The statistics.
        effect: ``"direct"`` or ``"total"``.
        q: ``"uniform"`` or ``"empirical"``.
        counts: Whether to add a row of correct transition counts.
        folder: Where the table of estimates is.

    Returns:
        A row for each predictor, in the order of the paper; no rows if nothing was found.
    """
    found = learned_studies(setting, testset, effect=effect, q=q, folder=folder)
    if not found:
        return pd.DataFrame(columns=list(columns))
    if counts:
        return averaged(found, lambda study: counted(study, columns))
    return averaged(found, lambda study: means(study, columns))


def averaged(found: Mapping[str, Study], table: Callable[[Study], pd.DataFrame]) -> pd.DataFrame:
    """A table of each generator's study, averaged over the generators."""
    own = [table(study) for study in found.values()]
    return sum(own[1:], start=own[0]) / len(own)


def title(found: Mapping[str, Study]) -> str:
    """What stands above every number that rests on learned generators."""
    names = ", ".join(found)
    return f"learned, not faithful to each image; {'mean of ' if len(found) > 1 else ''}{names}"


def learned_text(
    table: Callable[[Study], pd.DataFrame],
    setting: str,
    testset: str | None = None,
    *,
    digits: int = 3,
) -> str:
    """A table as learned generators find it, under a line that says so.

    Args:
        table: What makes the table of one study.
        setting: The name of the setting.
        testset: The test set; by default that of the setting.
        digits: Decimals to show.

    Returns:
        The text, averaged over the generators.
    """
    found = learned_studies(setting, testset)
    return f"{title(found)}\n{text(averaged(found, table), digits)}"


def caption(studies: Mapping[Run, Study]) -> str:
    """What a table is made of: preset, generator, trainings, and the patients of each test set.

    Args:
        studies: The studies in the table, by the runs that they are of.

    Returns:
        A line or two of text, to print above the table.
    """
    run, study = next(iter(studies.items()))
    seeds = ", ".join(str(seed) for seed in study.seeds)
    sets = dict.fromkeys(f"{r.setting} {r.testset} N~=~{s.patients}" for r, s in studies.items())
    effects = " and ".join(dict.fromkeys(r.effect for r in studies))
    line = (
        f"preset {run.preset.name}; counterfactuals: {run.generator}, {effects} effect, "
        f"K~=~{study.worlds}; seeds of the trainings {seeds}; {'; '.join(sets)}"
    )
    if len(study.seeds) == 1:
        line += "; one training: intervals are over patients, how trainings vary is unknown"
    return fill(line, WIDTH, break_on_hyphens=False).replace("~", " ")


def text(table: pd.DataFrame, digits: int = 3) -> str:
    """A table as narrow text: short names of columns, as many decimals as asked for.

    Example:
        >>> print(text(pd.DataFrame({"R_CVaR_0.50": [0.25], "abs_rank_change": [1.5]}, ["basic"])))
              CVaR.50 |dr|
        basic   0.250  1.5
        >>> print(text(pd.DataFrame({"ECE_marg": [0.1], "ECE_orig": [0.2]}, ["basic"]), 1))
              marginalised original
                       ECE      ECE
        basic          0.1      0.2
    """
    decimals = [1 if "abs_rank_change" in names(column) else digits for column in table]
    styles = [f"{{:.{places}f}}".format for places in decimals]
    short = table.rename(columns=SHORT)
    if all(str(column).endswith(tuple(WHICH)) for column in table):
        pairs = [(WHICH[column[-5:]], column[:-5]) for column in table]
        short = table.set_axis(pd.MultiIndex.from_tuples(pairs), axis=1)
    return short.to_string(formatters=styles, na_rep="-", index_names=False)


def names(column: str | tuple[str, ...]) -> tuple[str, ...]:
    """The name of a column on each level of the columns."""
    return column if isinstance(column, tuple) else (column,)


def beside(run: Run, study: Study, kind: Kind, *, digits: int = 3) -> str:
    """The paper's table, ours with its spread, and that of learned generators, as text.

    Beside every stability with a learned generator stands its floor: what the null intervention
    alone flips (``null_flip``) and moves (``null_abs``). With the oracle it is 0.

    Args:
        run: What the study is of.
        study: The study of the setting's test set.
        kind: Which table.
        digits: Decimals to show.
    """
    setting, ours = run.setting, counted(study, COLUMNS[kind])
    sizes = pd.read_csv(Path(PAPER) / f"{kind}.csv").groupby("setting").n_test.first()
    parts = {
        f"printed in the paper, N = {sizes[setting]}": published(setting, kind),
        f"found here, mean over {len(study.seeds)} trainings\n{caption({run: study})}": ours,
        "standard deviation between trainings": spreads(study, COLUMNS[kind]),
    }
    floor = FLOOR if kind == "stability" else ()
    learned = learned_means(setting, None, [*COLUMNS[kind], *floor], counts=True)
    if len(learned):
        parts[title(learned_studies(setting))] = learned
    return "\n\n".join(f"{title}\n{text(part, digits)}" for title, part in parts.items())


def pairs(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Each biased predictor beside its control, which was trained on as many images."""
    both = means(study, columns, controls=True)
    biased = [label(*kind) for kind in ROWS if f"control {label(*kind)}" in both.index]
    control = both.loc[[f"control {name}" for name in biased]].set_axis(biased)
    frame = pd.concat({"biased": both.loc[biased], "control": control}, axis=1)
    return frame.swaplevel(axis=1)[list(columns)]


def variants(studies: Mapping[str, Study], columns: Sequence[str]) -> pd.DataFrame:
    """The same statistics under several choices, side by side, with transition counts."""
    tables = {name: counted(s, columns) for name, s in studies.items()}
    return pd.concat(tables, axis=1).swaplevel(axis=1)[list(columns)]


def learned_variants(setting: str, columns: Sequence[str]) -> str:
    """The statistics of :func:`variants` as learned generators find them, as text.

    Not every choice was computed with all generators and all trainings. So each has a table of its
    own, in which it stands beside uniform q with the same ones.
    """
    choices = {"empirical q": {"q": "empirical"}, "total effect": {"effect": "total"}}
    every, tables = learned_studies(setting), []
    for name, choice in choices.items():
        if found := learned_studies(setting, **choice):
            same = {key: trained(every[key], study.seeds) for key, study in found.items()}
            both = {"uniform q": same, name: found}
            means = {key: averaged(own, lambda s: counted(s, columns)) for key, own in both.items()}
            table = pd.concat(means, axis=1).swaplevel(axis=1)[list(columns)]
            seeds = ", ".join(map(str, next(iter(same.values())).seeds))
            tables.append(f"{title(same)}; trainings: {seeds}\n{text(table)}")
    return "\n\n".join(tables)


def trained(study: Study, seeds: Sequence[int]) -> Study:
    """The predictors of some trainings only."""
    rows = [i for i, member in enumerate(study.members) if member.seed in seeds]
    values = {name: value[rows] for name, value in study.values.items()}
    return replace(study, members=tuple(study.members[i] for i in rows), values=values)


def kinds(study: Study) -> set[tuple[str, float]]:
    """The predictors of a study, whatever their training."""
    return {(member.family, member.strength) for member in study.members}


def labelled_rows(
    values: Sequence[Sequence[object]], rows: Sequence[tuple[str, float]], columns: Sequence[str]
) -> pd.DataFrame:
    """Cells with the names of predictors and statistics."""
    names = pd.Index([label(*kind) for kind in rows], name="predictor")
    return pd.DataFrame(values, index=names, columns=list(columns))
