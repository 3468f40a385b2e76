"""One symbol and one name for each thing, in tables, figures and on the page *Notation*."""

import re
from html import escape
from typing import NamedTuple


class _Symbol(NamedTuple):
    """A quantity: its letter, what stands below and above it, and its name in words."""

    letter: str
    below: str
    name: str
    above: str = ""

    def html(self) -> str:
        """The symbol for a table."""
        letter = f"<i>{self.letter}</i>" if len(self.letter.strip("|")) < 3 else self.letter
        below = f"<sub>{escape(self.below)}</sub>" if self.below else ""
        return letter + below + (f"<sup>{escape(self.above)}</sup>" if self.above else "")

    def tex(self) -> str:
        """The symbol for a formula or a figure, without the dollars around it."""
        letter = _GREEK.get(self.letter, self.letter)
        letter = rf"\mathrm{{{letter}}}" if letter.isalpha() and len(letter) > 1 else letter
        below = rf"_{{\mathrm{{{self.below.replace(' ', '~')}}}}}" if self.below else ""
        return letter + below + (rf"^{{\mathrm{{{self.above}}}}}" if self.above else "")


_GREEK = {"τ": r"\tau", "|Δr|": r"|\Delta r|", "p̄": r"\bar p"}

SYMBOLS = {
    "R_orig": _Symbol("R", "orig", "observed risk"),
    "R_w_sex": _Symbol("R", "w", "observed risk weighted by sex within a label", "sex"),
    "R_w_age": _Symbol("R", "w", "observed risk weighted by age group within a label", "age"),
    "R_CM": _Symbol("R", "CM", "risk of the marginalised prediction"),
    "R_IE": _Symbol("R", "IE", "expected risk"),
    "R_CVaR_0.50": _Symbol("R", "CVaR .50", "tail risk, worst half of the worlds"),
    "R_CVaR_0.25": _Symbol("R", "CVaR .25", "tail risk, worst quarter of the worlds"),
    "R_CVaR_0.10": _Symbol("R", "CVaR .10", "tail risk, worst tenth of the worlds"),
    "R_WC": _Symbol("R", "WC", "risk in the worst world"),
    "Brier_orig": _Symbol("Brier", "orig", "Brier score of the observed score"),
    "Brier_marg": _Symbol("Brier", "marg", "Brier score of the marginalised prediction"),
    "ECE_orig": _Symbol("ECE", "orig", "calibration error of the observed score"),
    "ECE_marg": _Symbol("ECE", "marg", "calibration error of the marginalised prediction"),
    "MCE_orig": _Symbol("MCE", "orig", "largest calibration error of the observed score"),
    "MCE_marg": _Symbol("MCE", "marg", "largest calibration error of the marginalised prediction"),
    "ECE_q": _Symbol("ECE", "q", "calibration error over all patients and worlds"),
    "S_var": _Symbol("S", "var", "score variance over the worlds"),
    "S_var_sex": _Symbol("S", "var", "score variance over the worlds due to sex", "sex"),
    "S_var_age": _Symbol("S", "var", "score variance over the worlds due to age", "age"),
    "S_flip": _Symbol("S", "flip", "flip rate"),
    "D_obs": _Symbol("D", "obs", "disagreement"),
    "D_abs": _Symbol("D", "abs", "mean absolute change of the score"),
    "S_rank": _Symbol("S", "rank", "rank stability"),
    "tau_b": _Symbol("τ", "b", "Kendall's rank correlation"),
    "abs_rank_change": _Symbol("|Δr|", "", "places moved in the queue"),
    "null_flip": _Symbol("S", "flip", "flip rate of the null intervention", "null"),
    "null_abs": _Symbol("D", "abs", "change of the score by the null intervention", "null"),
    "p_bar": _Symbol("p̄", "", "marginalised prediction"),
}
"""Symbols by the names that the code has for them."""

_WORDS = {"basic": "unbiased", "CTC": "correct transitions"}
_PHRASES = {
    r"logit (\+[\d.]+)": r"offset \1",
    r"((?:control )?)(sex|age) (0?\.\d+)": r"\1\2 bias \3",
    r"(.*)\b([CM])-(?:>|&gt;)([CM])\b(.*)": r"\1\2→\3\4",
}


def words(label: str) -> str:
    """The name of a predictor or setting as readers meet it; any other label as it is.

    Example:
        >>> [words(label) for label in ("basic", "logit +1", "control sex 0.95", "C->M", "AUC")]
        ['unbiased', 'offset +1', 'control sex bias 0.95', 'C→M', 'AUC']
    """
    for pattern, phrase in _PHRASES.items():
        if re.fullmatch(pattern, label):
            return re.sub(pattern, phrase, label)
    return _WORDS.get(label, label)


def html(label: str) -> str:
    """A label of a table: a symbol where there is one, else words, which must be escaped already.

    Example:
        >>> html("S_var_sex"), html("ECE_marg"), html("basic")
        ('<i>S</i><sub>var</sub><sup>sex</sup>', 'ECE<sub>marg</sub>', 'unbiased')
    """
    return SYMBOLS[label].html() if label in SYMBOLS else words(label)


def tex(label: str) -> str:
    r"""A label of a figure: a symbol where there is one, else words.

    Example:
        >>> tex("tau_b"), tex("ECE_marg"), tex("sex 0.95")
        ('$\\tau_{\\mathrm{b}}$', '$\\mathrm{ECE}_{\\mathrm{marg}}$', 'sex bias 0.95')
    """
    return f"${SYMBOLS[label].tex()}$" if label in SYMBOLS else words(label)
