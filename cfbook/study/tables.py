"""The paper's tables, in its rows and columns: as printed, and as found here."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import Literal

import pandas as pd

from cfbook.printed_tables import METRICS, published, read_tables
from cfbook.study.claims import STEPS, transitions
from cfbook.study.learned import learned_studies
from cfbook.study.runs import Run
from cfbook.study.statistics import Study
from cfcore.intervals import DAGGER

WIDTH = 64
_WHICH = {"marg": "marginalised", "orig": "original"}
_SHORT = {f"R_CVaR_{level}": f"CVaR{level[1:]}" for level in ("0.50", "0.25", "0.10")}
_SHORT |= {"abs_rank_change": "|dr|", "total effect": "total", "uniform q": "uniform"}
_SHORT["empirical q"] = "empir."

_PaperTable = Literal["risk", "calibration", "stability"]
Tables = Mapping[str, pd.DataFrame]
"""Tables by what stands above them."""

_ALONE = {"basic": "basic", "ctc": "CTC"}
_FLOOR = ("null_flip", "null_abs")
ROWS = [("basic", 0.0), *((family, s) for family in STEPS for s in STEPS[family])]
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


def intervals(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Means with 95 % intervals as text, in the rows and columns of :func:`means`.

    A dagger marks intervals that :data:`cfcore.intervals.NOTE` is about.
    """
    summary = study.summary(columns)
    numbers = summary[["mean", "low", "high"]].itertuples(index=False)
    words = pd.Series(["{:.3f} [{:.3f}, {:.3f}]".format(*three) for three in numbers])
    marks = summary.doubtful.map({True: DAGGER, False: ""})
    return _by_kind(summary.assign(text=words + marks), "text", columns)


def counted(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Means over the trainings, with a last row of correct transition counts."""
    table, none = means(study, columns), float("nan")
    chains = [family for family in STEPS if (family, STEPS[family][0]) in study.kinds]
    counts = (none if c in _FLOOR else transitions(study, c, chains)[:, 0].mean() for c in columns)
    table.loc["CTC"] = list(counts)
    return table


def averaged(found: Mapping[str, Study], table: Callable[[Study], pd.DataFrame]) -> pd.DataFrame:
    """A table of each generator's study, averaged over the generators; empty if there are none."""
    own = [table(study) for study in found.values()]
    return sum(own[1:], start=own[0]) / len(own) if own else pd.DataFrame()


def _learned_by(found: Mapping[str, Study]) -> str:
    """What stands above every number that rests on learned generators."""
    names = ", ".join(found)
    return f"learned, not faithful to each image; {'mean of ' if len(found) > 1 else ''}{names}"


def learned_tables(
    table: Callable[[Study], pd.DataFrame], setting: str, testset: str | None = None
) -> dict[str, pd.DataFrame]:
    """A table as learned generators find it, averaged over them, under a line that says so."""
    found = learned_studies(setting, testset)
    return {_learned_by(found): averaged(found, table)} if found else {}


def caption(studies: Mapping[Run, Study]) -> str:
    """What a table is made of: preset, generator, trainings, and the patients of each test set.

    The studies in the table are given by the runs that they are of.
    """
    run, study = next(iter(studies.items()))
    seeds = ", ".join(map(str, study.seeds))
    equals = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    sets = [f"{r.setting} {r.testset} N{equals}{s.patients}" for r, s in studies.items()]
    effects = " and ".join(dict.fromkeys(r.effect for r in studies))
    line = (
        f"preset {run.preset.name}; counterfactuals: {run.generator}, {effects} effect, "
        f"K{equals}{study.worlds}; seeds of the trainings {seeds}; {'; '.join(dict.fromkeys(sets))}"
    )
    if len(study.seeds) == 1:
        line += "; one training: intervals are over patients, how trainings vary is unknown"
    return fill(line, WIDTH, break_on_hyphens=False).replace(equals, " = ")


def text(table: pd.DataFrame | Tables, digits: int = 3) -> str:
    """A table as narrow text: short names of columns, as many decimals as asked for.

    Several tables stand one below the other, each under its title.

    Example:
        >>> print(text(pd.DataFrame({"R_CVaR_0.50": [0.25], "abs_rank_change": [1.5]}, ["basic"])))
              CVaR.50 |dr|
        basic   0.250  1.5
        >>> errors = pd.DataFrame({"ECE_marg": [0.1], "ECE_orig": [0.2]}, ["basic"])
        >>> print(text({"errors": errors}, 1))
        errors
              marginalised original
                       ECE      ECE
        basic          0.1      0.2
    """
    if isinstance(table, Mapping):
        return "\n\n".join(f"{title}\n{text(part, digits)}" for title, part in table.items())
    coarse = ["abs_rank_change" in column for column in table]
    styles = [f"{{:.{1 if one else digits}f}}".format for one in coarse]
    return _short(table).to_string(formatters=styles, na_rep="-", index_names=False)


def _short(table: pd.DataFrame) -> pd.DataFrame:
    """Short names of columns; those of original and marginalised ones in two lines."""
    parts = [str(column).rpartition("_") for column in table]
    if all(which in _WHICH for *_, which in parts):
        pairs = [(_WHICH[which], name) for name, _, which in parts]
        return table.set_axis(pd.MultiIndex.from_tuples(pairs), axis=1)
    return table.rename(columns=_SHORT)


def beside(run: Run, study: Study, kind: _PaperTable) -> dict[str, pd.DataFrame]:
    """The paper's table, ours with its spread, and that of learned generators, by their titles.

    Beside every stability with a learned generator stands its floor: what the null intervention
    alone flips (``null_flip``) and moves (``null_abs``). With the oracle it is 0.
    """
    columns, printed = METRICS[kind], published(run.setting, kind)
    size = read_tables()[kind].groupby("setting").n_test.first()[run.setting]
    ours = f"found here, mean over {len(study.seeds)} trainings\n{caption({run: study})}"
    every = [*columns, *(_FLOOR if kind == "stability" else ())]
    spread = _by_kind(study.summary(columns), "spread", columns)  # NaN of one training
    return {
        f"printed in the paper, N = {size:.0f}": _labelled(printed),
        ours: counted(study, columns),
        "standard deviation between trainings": spread,
    } | learned_tables(lambda one: counted(one, every), run.setting)


def pairs(study: Study, columns: Sequence[str]) -> pd.DataFrame:
    """Each biased predictor beside its control, which was trained on as many images."""
    both = means(study, columns, controls=True)
    biased = [row_label(*kind) for kind in ROWS if f"control {row_label(*kind)}" in both.index]
    control = both.loc[[f"control {name}" for name in biased]].set_axis(biased)
    return side_by_side({"biased": both.loc[biased], "control": control})


def side_by_side(tables: Tables) -> pd.DataFrame:
    """Tables of the same rows and columns as one, in which equal columns are neighbours."""
    columns = next(iter(tables.values())).columns
    return pd.concat(tables, axis=1).swaplevel(axis=1)[list(columns)]


def variants(studies: Mapping[str, Study], columns: Sequence[str]) -> pd.DataFrame:
    """The same statistics under several choices, side by side, with transition counts."""
    return side_by_side({name: counted(study, columns) for name, study in studies.items()})


def learned_variants(setting: str, columns: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The statistics of :func:`variants` as learned generators find them, by titles.

    Not every choice was computed with all generators and all trainings. So each has a table of its
    own, in which it stands beside uniform q with the same ones.
    """
    choices = {"empirical q": {"q": "empirical"}, "total effect": {"effect": "total"}}
    every, tables = learned_studies(setting), {}
    for name, choice in choices.items():
        if found := learned_studies(setting, **choice):
            same = {key: every[key].only(study.seeds) for key, study in found.items()}
            both = {"uniform q": same, name: found}
            own = {key: averaged(some, lambda s: counted(s, columns)) for key, some in both.items()}
            seeds = ", ".join(map(str, next(iter(same.values())).seeds))
            tables[f"{_learned_by(same)}; trainings: {seeds}"] = side_by_side(own)
    return tables
