r"""What changes on another processor: predictors trained again, and what is published of them.

Trainings are repeated to the bit on one kind of processor only. Elsewhere rounding differs from the
first step on, and in the end the weights do. The question is whether this matters more than another
seed would.

**Design**, fixed before any result. The unbiased predictor and those with the strongest bias by sex
and by age are trained again in hospital C, with all five seeds, and marginalised with true
counterfactuals over the balanced test set. Published are means over the five trainings, so each
metric of each predictor gives one number now and one as it was committed. Their difference is
counted in standard errors of the committed mean, s / sqrt(5) with the standard deviation s of the
committed trainings. If a processor is no more than another seed, differences have a standard
deviation of sqrt(2) of these, and about one in six is beyond two (which a t distribution with few
degrees of freedom makes more).

    python benchmarks/another_processor.py --out data/benchmarks/another_processor.csv

takes a quarter of an hour on one core, and is of use on another kind of processor than that which
made the committed weights.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from cfbook.study.cohorts import held_out, phantom_cohort
from cfbook.study.learned import write_table
from cfbook.study.presets import preset
from cfbook.study.runs import Run, predictions
from cfbook.study.statistics import study_predictions
from cfchest.graph import paper_grid
from cfcore.marginalise import marginalise

KINDS = (("basic", 0.0), ("sex", 0.95), ("age", 0.95))
METRICS = (
    "R_orig", "R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC", "ECE_orig",
    "ECE_marg", "S_var", "S_flip", "D_obs", "S_rank", "AUC", "gap_sex", "score_sex", "score_age",
)  # fmt: skip


def trained_again(run: Run, folder: Path) -> pd.DataFrame:
    """Metrics of the predictors, trained into a folder, a row for each training."""
    made = {m: r for m, r in run.recipes().items() if (m.family, m.strength) in KINDS}
    readers = {
        member.name: recipe.obtain(committed=folder, cache=folder)
        for member, recipe in tqdm(made.items(), desc="trainings")
    }
    data = held_out("C", run.preset, run.testset)
    said = marginalise(phantom_cohort("C", run.preset).oracle, readers, data, paper_grid())
    found = {member: said[member.name] for member in made}
    return study_predictions(found, replicates=2, rank_replicates=2).frame()


def committed(run: Run) -> pd.DataFrame:
    """The same of the predictions that come with the project."""
    found = {m: p for m, p in predictions(run).items() if (m.family, m.strength) in KINDS}
    return study_predictions(found, replicates=2, rank_replicates=2).frame()


def compared(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """Means over trainings before and now, and their difference in standard errors."""
    by, rows = ["family", "strength"], []
    for kind, own in before.groupby(by, sort=False)[list(METRICS)]:
        other = now.groupby(by).get_group(kind)[list(METRICS)]
        error = own.std(ddof=1) / len(own) ** 0.5
        moved = (other.mean() - own.mean()) / error
        parts = {"committed": own.mean(), "error": error, "again": other.mean(), "moved": moved}
        rows.append(pd.DataFrame(parts).rename_axis("metric").reset_index().assign(
            family=kind[0], strength=kind[1], trainings=len(own)
        ))  # fmt: skip
    return pd.concat(rows)


def main() -> None:
    """Train again and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/another_processor"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    run = Run(preset("book"), "C->C", "balanced")
    table = compared(committed(run), trained_again(run, asked.folder))
    write_table(table, asked.out)
    far = table.moved.abs()
    print(f"{len(table)} numbers: root mean square {far.pow(2).mean() ** 0.5:.2f} standard errors,")
    print(f"largest {far.max():.1f}, beyond two {(far > 2).sum()}")


if __name__ == "__main__":
    main()
