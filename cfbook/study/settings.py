"""What the chapters on the three settings show alike: the table to read, and others folded."""

from collections.abc import Mapping

import pandas as pd

from cfbook.printed_tables import METRICS
from cfbook.production.prose import count
from cfbook.production.show import show
from cfbook.study.runs import Run
from cfbook.study.statistics import Study
from cfbook.study.tables import (
    PaperTable,
    averaged,
    beside,
    bounded,
    counted,
    in_print,
    intervals,
    learned_of,
    learned_print,
    learned_variants,
    means,
    number_learned,
    paired,
    rivals,
    side_by_side,
    spreads,
)
from cfcore.intervals import DAGGER, NOTE

_READ = {
    "risk": ["R_orig", "R_IE", "R_CVaR_0.10", "R_WC"],
    "calibration": ["ECE_orig", "ECE_marg"],
    "stability": ["S_var", "S_flip", "D_obs", "S_rank"],
}
_WORDS = {"R_w": "weighted risk", "score": "score gap"}
_ABOUT = (
    "Steps towards more bias at which a statistic rises, of six by sex, offsets among them, and of "
    "three by age, mean over trainings; their sum with its 95 % interval. weighted risk: the "
    "observed risk, each patient weighted by one over the frequency of their sex, or age group, "
    "among patients with their label; score gap: between the sexes, or old and young, within a "
    "label; response: `S_var` of the attribute. These three are of the attribute of the bias."
)
_WHO = "whose counterfactuals are not faithful to each image"


def _show(table: pd.DataFrame, caption: str, note: str = "", *, fold: bool = False) -> None:
    """A table with the correct transitions in bold, and below it what its daggers mean."""
    marked = table.apply(lambda column: column.str.endswith(DAGGER)).any(axis=None)
    bold = [name for name in table.index if name == "CTC"]
    table = table.rename_axis(index=None) if table.columns.nlevels > 1 else table
    show(table, caption, bold=bold, note=f"{note} {NOTE}.".strip() if marked else note, fold=fold)


def show_metrics(run: Run, study: Study, kind: PaperTable, caption: str, note: str = "") -> None:
    """The two main columns of a table of the paper beside ours with intervals, and some others.

    Folded are all others, the spread between trainings, and what learned generators find.
    """
    main, every = _READ[kind], METRICS[kind]
    others = [column for column in every if column not in main[:2]]
    _show(beside(run, study, kind, main, having=main[:2]), caption, note)
    rest, name = beside(run, study, kind, others, having=others), kind.capitalize()
    _show(rest, f"{name}: the other columns of the paper's table, with intervals.", fold=True)
    trainings = f"the {count(len(study.seeds))} trainings"
    sizes = f"{name}: standard deviation between {trainings} of each predictor."
    show(spreads(study, every), sizes, digits=2, fold=True)
    if found := learned_of(run, study):
        table = learned_print(found, every)
        _show(table, f"{name}: the same with {number_learned(found)}, {_WHO}.", fold=True)


def show_pairs(run: Run, study: Study, caption: str) -> pd.DataFrame:
    """Each biased predictor beside its control; returns the numbers."""
    main, others = ["R_IE", "S_var_sex", "S_var_age"], ["R_orig", "R_WC", "AUC"]
    _show(paired(bounded(study, main, having=main[:1], controls=True)), caption)
    rest = paired(bounded(study, others, having=others, controls=True))
    _show(rest, "Bias and size: observed and worst risk, and the AUC.", fold=True)
    if found := learned_of(run, study):
        table = averaged(found, lambda one: means(one, main, controls=True))
        who = f"{number_learned(found)}, {_WHO}"
        _show(paired(in_print(table)), f"Bias and size: the same with {who}.", fold=True)
    return paired(means(study, [*main, *others], controls=True))


def show_shared(run: Run, study: Study, caption: str) -> None:
    """Risks and variance on a test set that shares a shortcut, as the oracle and others find."""
    main, own = ["R_orig", "R_IE", "R_CM", "R_WC", "S_var"], run.testset.replace("shares-", "R_w_")
    shown = ["R_orig", own, *main[1:]]
    _show(bounded(study, shown, having=shown[:3]), caption, f"N = {study.patients:,}.")
    if found := learned_of(run, study):
        where, who = f"Test set that {run.testset.replace('-', ' ')}", number_learned(found)
        _show(learned_print(found, main), f"{where}: the same with {who}, {_WHO}.", fold=True)


def show_rivals(study: Study, shared: Mapping[str, Study], caption: str) -> None:
    """Steps that rise with and without counterfactuals; folded, what the latter say.

    Args:
        shared: Studies of test sets that share a shortcut, by the name of the test set.
    """
    found = {"test set of the setting": rivals({"sex": study, "age": study})}
    if shared:
        own = {name.removeprefix("shares-"): one for name, one in shared.items()}
        found["test sets with the shortcut"] = rivals(own)
    needs = next(iter(found.values()))["needs"]
    table = pd.concat({k: one.drop(columns="needs") for k, one in found.items()}, axis=1)
    table.insert(0, ("", "needs"), needs)
    _show(table, caption, _ABOUT)
    columns = {f"{one}_{a}": (word, a) for one, word in _WORDS.items() for a in ("sex", "age")}
    values = intervals(study, list(columns))
    heads = pd.MultiIndex.from_tuples(columns.values())
    _show(
        values.set_axis(heads, axis=1), "What needs no generator, with 95 % intervals.", fold=True
    )


def show_choices(run: Run, studies: Mapping[str, Study], caption: str) -> pd.DataFrame:
    """Statistics under several choices, of which the first is that of a run; returns them."""
    main, others = ["R_IE", "S_var"], ["R_WC", "ECE_marg", "S_flip"]
    found = {name: counted(study, [*main, *others]) for name, study in studies.items()}
    text = side_by_side({name: in_print(table) for name, table in found.items()})
    _show(text[main], caption)
    _show(text[others], "Other metrics under the same choices.", fold=True)
    first = next(iter(studies.values()))
    for title, table in learned_variants(run, first, [*main, *others]).items():
        _show(table, title, fold=True)
    return side_by_side(found)
