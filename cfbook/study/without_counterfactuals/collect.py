"""The tables of these studies: ``python -m cfbook.study.without_counterfactuals.collect OUT``.

The bank is filled first, below ``runs/``; all tables together take somewhat over an hour of one
core.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from cfbook.study.learned import write_table
from cfbook.study.presets import preset
from cfbook.study.without_counterfactuals import coverage, size, strengths
from cfbook.study.without_counterfactuals.bank import (
    GENERATORS,
    Bank,
    fill_bank,
    fill_observed,
    keep_example,
    read_bank,
)

_SIZE, _POWER = "without_size.csv", "without_power.csv"
_STRENGTHS_TABLE, _RATIOS = "without_strengths.csv", "without_ratios.csv"
_VERDICTS_TABLE, _BREAK_EVEN = "without_verdicts.csv", "without_break_even.csv"
_INTERVALS, _BOUNDS, _WIDTHS = "without_coverage.csv", "without_bounds.csv", "without_widths.csv"

_Tables = Mapping[str, pd.DataFrame]


def _size_tables(bank: Bank, sets: int = 200) -> _Tables:
    """How often the oracle is refuted."""
    rows = [one for number in range(sets) for one in size.set_answers(bank, number, ["oracle"])]
    return {_SIZE: size.shares(pd.DataFrame(rows))}


def _power_tables(bank: Bank, sets: int = 60) -> _Tables:
    """How often the other generators are."""
    found = [size.set_answers(bank, number, GENERATORS[1:]) for number in range(sets)]
    return {_POWER: size.shares(pd.DataFrame([one for answers in found for one in answers]))}


def _strength_tables(bank: Bank) -> _Tables:
    """The contest of the estimators, cell by cell, and what became of the expectations."""
    cells, ratios = [], []
    for cell in product(strengths.SHORTCUTS, strengths.SIZES):
        made, effective = strengths.simulate_cell(bank, *cell)
        cells.append(strengths.cell_table(bank, *cell, made, effective))
        ratios.append(strengths.ratio_table(bank, *cell, made))
    table, pairs = pd.concat(cells), pd.concat(ratios)
    found = {_STRENGTHS_TABLE: table, _RATIOS: pairs, _VERDICTS_TABLE: strengths.judge(pairs)}
    return found | {_BREAK_EVEN: strengths.break_even_table(bank, table)}


def _coverage_tables(bank: Bank, sets: int = 100) -> _Tables:
    """Whether intervals hold the truth."""
    rows = [one for number in range(sets) for one in coverage.interval_rows(bank, number)]
    return {_INTERVALS: coverage.covered_shares(pd.DataFrame(rows))}


def _bound_tables(bank: Bank, sets: int = 40) -> _Tables:
    """Whether bounds do."""
    each = product(range(sets), coverage.TRIED)
    rows = [one for number, name in each for one in coverage.bound_rows(bank, number, name)]
    return {_BOUNDS: coverage.covered_shares(pd.DataFrame(rows))}


def _width_tables(bank: Bank) -> _Tables:
    """What the width of the kernel costs."""
    return {_WIDTHS: coverage.width_table(bank)}


_TABLES: Mapping[str, Callable[[Bank], _Tables]] = {
    "size": _size_tables, "power": _power_tables, "strengths": _strength_tables,
    "coverage": _coverage_tables, "bounds": _bound_tables, "widths": _width_tables,
}  # fmt: skip


def _main(out: Path, *names: str) -> None:
    """Fill the bank if need be, and write the tables that are named, by default all."""
    torch.set_num_threads(1)
    fill_bank(preset("book"))
    bank = read_bank(fill_observed(preset("book")))
    keep_example(bank, out)
    for name in names or _TABLES:
        for file, table in _TABLES[name](bank).items():
            write_table(table, out / file)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
