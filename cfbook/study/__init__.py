"""The paper's experiments, and all that a chapter needs of them: ``from cfbook import study``.

Modules are imported when a name is first used.
"""

from importlib import import_module

_OFFERED = {
    "cfbook.figures.ladders": "style",
    "cfbook.notation": "tex",
    "cfbook.printed_tables": "METRICS",
    "cfbook.production.answers": "check_answer",
    "cfbook.production.prose": "count keep",
    "cfbook.production.show": "show",
    "cfbook.study.claims": "BIASED EVERYONE NETWORKS VERDICTS by_training columns estimate"
    " partial_correlation pearson read_design verdicts worse_pairs",
    "cfbook.study.cohorts": "SHARED held_out parts phantom_cohort",
    "cfbook.study.designs": "INGREDIENTS",
    "cfbook.study.faithful": "PANEL TARGETS",
    "cfbook.study.learned": "LEAK NOISE RESULTS SOUNDNESS SUPPORT hidden_study"
    " learned_claims learned_studies",
    "cfbook.study.missing_labels": "ABLATION ACTIONS CURVE EXAMPLES HIDDEN IMPUTED SHOWN"
    " STAGES changes imputation in_words label_free_table trial_patients TRUST",
    "cfbook.study.observed": "joined read_observed",
    "cfbook.study.orders": "LADDERS STEPS correct_transitions steps transitions trend",
    "cfbook.study.partial": "PartialRecipe",
    "cfbook.study.presets": "on preset",
    "cfbook.study.recipes": "DetailedRecipe GeneratorRecipe PredictorRecipe probes",
    "cfbook.study.runs": "BETAS PredictorId Run SETTINGS STRENGTHS all_runs predictions",
    "cfbook.study.settings": "show_choices show_metrics show_pairs show_rivals show_shared",
    "cfbook.study.statistics": "effective_number inverse_weights mean_score responses"
    " stratified_auc study_predictions worst_gap worst_worlds",
    "cfbook.study.studies": "study_run",
    "cfbook.study.tables": "ROWS averaged bounded caption counted in_print intervals"
    " learned_of means row_label side_by_side",
    "cfbook.study.without_counterfactuals.bank": "read_example",
    "cfbook.study.without_counterfactuals.refuted": "REFUTED",
}
_HOMES = {name: module for module, names in _OFFERED.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
