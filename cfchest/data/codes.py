"""What the cells of the published tables mean: sex, age, race and uncertain labels."""

import re

import numpy as np
import pandas as pd

from cfchest.data.dataset import RACES, RANGES
from cfchest.data.ledger import Ledger
from cfchest.data.loading import LoadOptions, Policy
from cfchest.data.sheet import Sheet

LABEL = "Pleural Effusion"
"""The finding, as the CheXpert labeller calls it."""
_OTHER, _UNSTATED, _UNKNOWN = -1, -2, -3
"""Race cells that name another group, no group, or nothing we know."""
_EFFECTS = {"zero": ("set to 0", 0.0), "one": ("set to 1", 1.0)}
_EFFECTS |= {"missing": ("set missing", np.nan), "drop": ("dropped", np.nan)}
_OTHER_WORDS = re.compile(
    r"\b(other|native|hawaiian|pacific islander|american indian|alaska|hispanic|latino|"
    r"portuguese|south american|multiple|multi race|middle eastern)\b",
    re.IGNORECASE,
)
_UNSTATED_WORDS = re.compile(r"\b(unknown|unable to obtain|refused|declined)\b", re.IGNORECASE)


def sexes(sheet: Sheet, column: str, ledger: Ledger, *, unit: str = "image") -> pd.Series:
    """Sex as 0 male, 1 female; anything but Male, Female, M, F is set missing and counted."""
    text = sheet.frame[column]
    codes = text.map({"Male": 0.0, "Female": 1.0, "M": 0.0, "F": 1.0}).astype("float64")
    ledger.mark("set missing", "sex not stated", sheet, codes.isna(), column, unit=unit)
    return codes


def years_of(text: pd.Series) -> pd.Series:
    """Ages such as 058Y, 011M and 013D as text in years; all else stays as it is.

    Example:
        >>> years_of(pd.Series(["58", "058Y", "006M", "old"])).tolist()
        ['58', '58', '0.5', 'old']
    """
    parts = text.str.extract(r"^\s*(\d+)([YMWD])\s*$")
    per_year = parts[1].map({"Y": 1, "M": 12, "W": 52.18, "D": 365.25}).astype("float64")
    years = (parts[0].astype("float64") / per_year).map("{:.4g}".format)
    return text.where(parts[1].isna(), years)


def ages(sheet: Sheet, column: str, ledger: Ledger, years: pd.Series | None = None) -> pd.Series:
    """Age in years; blank, 0 (which stands for unknown) and impossible ages are set missing.

    The age of each record is that in the column, or that in ``years``; messages quote the column.
    """
    years = sheet.numbers(column) if years is None else years
    low, high = RANGES["age"]
    impossible = (years < low) | (years > high)
    ledger.mark("set missing", "age not stated", sheet, years.isna(), column)
    ledger.mark("set missing", "age of 0", sheet, years == 0, column)
    ledger.mark("set missing", f"age outside {low} to {high}", sheet, impossible, column)
    return years.mask((years == 0) | impossible)


def labels(
    sheet: Sheet,
    column: str,
    ledger: Ledger,
    options: LoadOptions,
    *,
    default: Policy = "zero",
    unit: str = "image",
) -> tuple[Sheet, pd.Series]:
    """A label of the CheXpert labeller, in which -1 is uncertain and blank is not mentioned.

    The literature mostly reads a finding that the report does not mention as absent, and
    differs on uncertain ones; both are options, and both are counted.

    Args:
        sheet: The table.
        column: The finding.
        ledger: Where every label that was not plainly 0 or 1 is counted.
        options: What -1 and an empty cell become.
        default: What they become if the options do not say.
        unit: What a record is: an image, or a study.

    Returns:
        The sheet without the records to be dropped, and their labels: 0, 1 or NaN.
    """
    values = sheet.numbers(column)
    sheet.refuse(values.notna() & ~values.isin((-1, 0, 1)), column, "1, 0, -1 or blank")
    keep = pd.Series(True, index=values.index)
    policies = {
        "uncertain": (values == -1, options.uncertain or default),
        "blank": (values.isna(), options.blank or default),
    }
    for reason, (chosen, policy) in policies.items():
        effect, value = _EFFECTS[policy]
        ledger.mark(effect, f"{column} {reason}", sheet, chosen, column, unit=unit)
        values = values.mask(chosen, value)
        keep &= ~chosen | (policy != "drop")
    return sheet.filtered(keep), values[keep]


def views(sheet: Sheet, column: str, ledger: Ledger) -> pd.Series:
    """AP or PA; any other view is set missing and counted."""
    known = sheet.frame[column].isin(("AP", "PA"))
    ledger.mark("set missing", "view neither AP nor PA", sheet, ~known, column)
    return sheet.frame[column].where(known)


def _race_code(text: str | float, *, upper: bool = False) -> int:
    """The code of one cell: 0 white, 1 asian, 2 black, _OTHER, _UNSTATED or _UNKNOWN.

    Words are matched whole and as they are spelt in the source, in capitals if ``upper``:
    "Caucasian" contains "asian". A cell that names two of the groups names another one.

    Example:
        >>> [_race_code(text) for text in ("White, non-Hispanic", "Asian", "White or Caucasian")]
        [0, 1, 0]
        >>> _race_code("BLACK/CAPE VERDEAN", upper=True), _race_code("Caucasian")
        (2, -3)
    """
    if pd.isna(text):
        return _UNSTATED
    words = [name.upper() if upper else name.capitalize() for name in RACES]
    found = [code for code, word in enumerate(words) if re.search(rf"\b{word}\b", text)]
    if found:
        return found[0] if len(found) == 1 else _OTHER
    if _UNSTATED_WORDS.search(text):
        return _UNSTATED
    return _OTHER if _OTHER_WORDS.search(text) else _UNKNOWN


def races(
    sheet: Sheet, column: str, key: str, patients: pd.Series, ledger: Ledger, *, upper: bool = False
) -> pd.Series:
    """One race for each patient, from a table with one or more records for each.

    A record that states no race says nothing; the others must agree, else the patient's race
    is set missing. Groups other than white, asian and black are missing as well. All of this
    is counted in patients, and cells that are not recognised are quoted.

    Args:
        sheet: The table.
        column: The column of races.
        key: The column of patients.
        patients: The patients whose race is asked for; they may repeat.
        ledger: Where it is counted.
        upper: Whether the source writes in capitals.

    Returns:
        Codes 0, 1, 2 or NaN, indexed like ``patients``.
    """
    sheet = sheet.filtered(sheet.frame[key].isin(patients))
    text, owner = sheet.frame[column], sheet.frame[key]
    codes = text.map({value: _race_code(value, upper=upper) for value in text.unique()})
    strange, stated = codes == _UNKNOWN, codes.isin((_OTHER, 0, 1, 2))
    groups = codes[stated].groupby(owner)
    code = groups.first().where(groups.nunique() == 1)
    first = ~owner.duplicated()
    first_stated = stated & ~owner.where(stated).duplicated()
    for reason, chosen, unit in (
        ("race not recognised", strange, "record"),
        ("race not stated", first & ~owner.isin(code.index) & ~strange, "patient"),
        ("race of another group", first_stated & (owner.map(code) == _OTHER), "patient"),
        ("race differs between records", first_stated & owner.map(code).isna(), "patient"),
    ):
        ledger.mark("set missing", reason, sheet, chosen, column, unit=unit)
    unlisted = pd.Index(patients.unique()).difference(owner)
    absent = [f"{name} is not in {sheet.path.name}" for name in unlisted]
    ledger.add("set missing", "race: no record", absent, unit="patient")
    return patients.map(code.where(code >= 0)).astype("float64")
