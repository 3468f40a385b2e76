# From nothing to every number of the book, each file by one command.
#
#   make reproduce                     every file below data/, part by part (PART=1 to 5 for one of them)
#   snakemake --cores 2 notebooks      the paper's experiments into runs/, and the chapters executed on them
#   snakemake --cores 2 notebooks --config preset=smoke              in a few minutes
#   snakemake --cores 2 notebooks --config generator=detailed-0      with a learned generator, trained first
#   snakemake --executor slurm --jobs 50 notebooks --config preset=paper chexpert=... mimic=... mimic_iv=... generator=...
#
# Jobs use one thread each: two single-thread processes beat two threads. What a job that failed had
# written is kept: runs/logs, *.failed.ipynb, *.failed.safetensors, and finished shards. What parts before
# made is never made again by a later one, whatever its date.

import json
from shlex import join

from cfbook.study import learned, missing_labels, observed, presets, recipes, runs

NAMES = ("chexpert", "mimic", "mimic_iv", "chexpert_masks", "mimic_masks")
FOLDERS = {name: config[name] for name in NAMES if name in config}
PRESET = config.get("preset", "book")
TRAININGS = config.get("trainings", presets.preset(PRESET).trainings)
SIZES = presets.on(PRESET, FOLDERS, trainings=int(TRAININGS))
OUT = config.get("out", "runs")
COMMON = ["--preset", PRESET, "--device", config.get("device", "cpu")]
COMMON += [word for name, path in FOLDERS.items() for word in (f"--{name.replace('_', '-')}", path)]
SETTINGS = join([*COMMON, "--trainings", str(TRAININGS), "--predictors", f"{OUT}/predictors"])
COMMON = join(COMMON)

WHO = config.get("generator", "oracle")
PREDICTORS = runs.all_recipes(SIZES)
RUNS = {run.file: run for run in (*runs.all_runs(SIZES), *runs.all_runs(SIZES, WHO), *learned.learned_runs(SIZES))}
JUDGES = {probe.file: name for name, probe in ({} if FOLDERS else recipes.probes(SIZES)).items()}
GENERATORS = {run.learned().file: run.learned() for run in RUNS.values() if run.learned()}
ORACLE = [f"{OUT}/predictions/{run.file}" for run in runs.all_runs(SIZES)] if not FOLDERS else []
LEARNED = [f"runs/predictions/{run.file}" for run in learned.learned_runs(SIZES)]
OBSERVED = [f"{OUT}/observed/{observed.observed_file(run)}" for run in runs.all_runs(SIZES) if run.is_main]
NOTEBOOKS = ("setting_1", "setting_2", "setting_3", "stability", "claims")
WEIGHTS = [ancient(f"{OUT}/predictors/{file}") for file in PREDICTORS]
WEIGHTS += [ancient(f"{OUT}/judges/{file}") for file in JUDGES]
KEPT = [f"{OUT}/generators/{recipe.file}" for recipe in GENERATORS.values() if recipe.design == "detailed"]
AUTOENCODER = f"runs/generators/{recipes.GeneratorRecipe(SIZES).file}"
PARTIAL = missing_labels.kept_recipe().file
WITHOUT = ("size", "power", "strengths", "ratios", "verdicts", "break_even", "coverage", "bounds", "widths")
ONE = "OMP_NUM_THREADS=1 "
LOG = " > {log} 2>&1"


def predictor_words(wildcards):
    recipe = PREDICTORS[f"{wildcards.name}.safetensors"]
    words = ["--hospital", recipe.hospital, "--family", recipe.family, "--seed", recipe.seed]
    return join(map(str, words + (["--strength", recipe.strength] if recipe.strength else [])))


def run_words(wildcards):
    run = RUNS[f"{wildcards.name}.safetensors"]
    words = ["--setting", run.setting, "--testset", run.testset, "--effect", run.effect]
    return join([*words, "--generator", run.generator])


def run_input(wildcards):
    run = RUNS[f"{wildcards.name}.safetensors"]
    files = [f"{OUT}/predictors/{recipe.file}" for recipe in run.recipes().values()]
    files += [f"{OUT}/generators/{run.learned().file}"] if run.learned() else []
    return [ancient(file) for file in files]


rule notebooks:
    input:
        expand("runs/notebooks/{name}.ipynb", name=NOTEBOOKS),


rule part_1:  # predictors, and the classifiers that judge generators
    input:
        expand(f"{OUT}/predictors/{{file}}", file=PREDICTORS),
        expand(f"{OUT}/judges/{{file}}", file=JUDGES),


rule part_2:  # generators
    input:
        KEPT,


rule part_3:  # what predictors say in all worlds, and of further patients
    input:
        ORACLE,
        OBSERVED,
        LEARNED,
        f"{OUT}/results/learned_estimates.csv",
        f"{OUT}/results/label_free.csv",


rule part_4:  # missing labels
    input:
        f"{OUT}/results/missing_curve.csv",
        f"{OUT}/results/missing_trust.csv",
        f"{OUT}/results/missing_regularised.csv",
        f"{OUT}/results/missing_imputed.csv",
        f"{OUT}/results/missing_examples.safetensors",


rule part_5:  # how sound generators are, and what is known without any
    input:
        expand(f"{OUT}/results/{{name}}.csv", name=["soundness", "support", "leak", "panel_fresh", "refuted_fresh"]),
        expand(f"{OUT}/results/without_{{name}}.csv", name=WITHOUT),
        f"{OUT}/results/coverage.csv",
        f"{OUT}/results/phantom_report.csv",


rule predictor:
    output:
        f"{OUT}/predictors/{{name}}.safetensors",
    log:
        "runs/logs/predictor-{name}.log",
    benchmark:
        "runs/benchmarks/predictor-{name}.tsv"
    params:
        words=predictor_words,
    shell:
        ONE + f"cfcore predictor {COMMON} {{params.words}} --out {OUT}/predictors" + LOG


rule judge:
    output:
        f"{OUT}/judges/{{name}}.safetensors",
    log:
        "runs/logs/judge-{name}.log",
    benchmark:
        "runs/benchmarks/judge-{name}.tsv"
    params:
        variable=lambda wildcards: JUDGES[f"{wildcards.name}.safetensors"],
    shell:
        ONE + f"cfcore judge {COMMON} --variable {{params.variable}} --out {OUT}/judges" + LOG


rule generator:
    output:
        f"{OUT}/generators/{{name}}.safetensors",
    log:
        "runs/logs/generator-{name}.log",
    benchmark:
        "runs/benchmarks/generator-{name}.tsv"
    params:
        design=lambda wildcards: GENERATORS[f"{wildcards.name}.safetensors"].design,
        seed=lambda wildcards: GENERATORS[f"{wildcards.name}.safetensors"].seed,
    shell:
        ONE + f"cfcore train {COMMON} --design {{params.design}} --seed {{params.seed}} --out {OUT}/generators" + LOG


rule predictions:
    input:
        run_input,
    output:
        f"{OUT}/predictions/{{name}}.safetensors",
    log:
        "runs/logs/predictions-{name}.log",
    benchmark:
        "runs/benchmarks/predictions-{name}.tsv"
    params:
        words=run_words,
    shell:
        ONE + f"cfcore setting {SETTINGS} {{params.words}} --out {OUT}/predictions" + LOG


if OUT != "runs":

    rule autoencoder:  # for comparison, not kept in data/
        output:
            AUTOENCODER,
        log:
            "runs/logs/autoencoder.log",
        benchmark:
            "runs/benchmarks/autoencoder.tsv"
        shell:
            ONE + f"cfcore train {COMMON} --design learned --out runs/generators" + LOG

    rule learned_predictions:
        input:
            run_input,
        output:
            "runs/predictions/{name}.safetensors",
        log:
            "runs/logs/learned_predictions-{name}.log",
        benchmark:
            "runs/benchmarks/learned_predictions-{name}.tsv"
        params:
            words=run_words,
        shell:
            ONE + f"cfcore setting {SETTINGS} {{params.words}} --out runs/predictions" + LOG


rule observed:
    input:
        WEIGHTS,
    output:
        OBSERVED,
    log:
        "runs/logs/observed.log",
    benchmark:
        "runs/benchmarks/observed.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --observed --out {OUT}/observed" + LOG


rule estimates:
    input:
        [ancient(file) for file in LEARNED],
    output:
        f"{OUT}/results/learned_estimates.csv",
    log:
        "runs/logs/estimates.log",
    benchmark:
        "runs/benchmarks/estimates.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --estimates --predictions runs/predictions --out {OUT}/results" + LOG


rule label_free:
    input:
        WEIGHTS,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/label_free.csv",
    log:
        "runs/logs/label_free.log",
    benchmark:
        "runs/benchmarks/label_free.tsv"
    shell:
        ONE + f"cfcore missing {COMMON} --part label-free --out {OUT}/results" + LOG


rule missing_curve:
    output:
        f"{OUT}/results/missing_curve.csv",
    log:
        "runs/logs/missing_curve.log",
    benchmark:
        "runs/benchmarks/missing_curve.tsv"
    shell:
        ONE + f"cfcore missing --preset curve --part curve --seeds 0 1 2 --out {OUT}/results" + LOG


rule missing_trust:
    output:
        f"{OUT}/results/missing_trust.csv",
    log:
        "runs/logs/missing_trust.log",
    benchmark:
        "runs/benchmarks/missing_trust.tsv"
    shell:
        ONE + f"cfcore missing --preset curve --part trust --seeds 0 1 2 --out {OUT}/results" + LOG


rule missing_regularised:
    output:
        f"{OUT}/results/missing_regularised.csv",
    log:
        "runs/logs/missing_regularised.log",
    benchmark:
        "runs/benchmarks/missing_regularised.tsv"
    shell:
        ONE + f"cfcore missing --preset curve --part stages --seeds 0 1 2 --out {OUT}/results" + LOG


rule missing_model:
    output:
        f"{OUT}/results/missing_imputed.csv",
        f"{OUT}/results/missing_metrics.csv",
        f"{OUT}/generators/{PARTIAL}",
    log:
        "runs/logs/missing_model.log",
    benchmark:
        "runs/benchmarks/missing_model.tsv"
    shell:
        ONE + f"cfcore missing --preset curve --part model --generators {OUT}/generators --out {OUT}/results" + LOG


rule missing_examples:
    input:
        ancient(f"{OUT}/generators/{PARTIAL}"),
    output:
        f"{OUT}/results/missing_examples.safetensors",
    log:
        "runs/logs/missing_examples.log",
    benchmark:
        "runs/benchmarks/missing_examples.tsv"
    shell:
        ONE + f"cfcore missing --preset curve --part figure --generators {OUT}/generators --out {OUT}/results" + LOG


rule soundness:
    input:
        WEIGHTS,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/soundness.csv",
        f"{OUT}/results/generator_noise.csv",
    log:
        "runs/logs/soundness.log",
    benchmark:
        "runs/benchmarks/soundness.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --out {OUT}/results" + LOG


rule support:
    input:
        WEIGHTS,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/support.csv",
    log:
        "runs/logs/support.log",
    benchmark:
        "runs/benchmarks/support.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --support --out {OUT}/results" + LOG


rule leak:
    input:
        WEIGHTS,
        AUTOENCODER,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/leak.csv",
    log:
        "runs/logs/leak.log",
    benchmark:
        "runs/benchmarks/leak.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --leak --out {OUT}/results" + LOG


rule panel:
    input:
        WEIGHTS,
        AUTOENCODER,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/panel_fresh.csv",
        f"{OUT}/results/targets_fresh.csv",
    log:
        "runs/logs/panel.log",
    benchmark:
        "runs/benchmarks/panel.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --fresh 918273 --out {OUT}/results" + LOG


rule refuted:
    input:
        WEIGHTS,
        AUTOENCODER,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/refuted_fresh.csv",
    log:
        "runs/logs/refuted.log",
    benchmark:
        "runs/benchmarks/refuted.tsv"
    shell:
        ONE + f"cfcore results {COMMON} --refuted 918281 --out {OUT}/results" + LOG


rule without:
    input:
        WEIGHTS,
        [ancient(file) for file in KEPT],
    output:
        expand(f"{OUT}/results/without_{{name}}.csv", name=WITHOUT),
        expand(f"{OUT}/results/without_{{name}}.safetensors", name=["oracle", "learned", "observed"]),
    log:
        "runs/logs/without.log",
    benchmark:
        "runs/benchmarks/without.tsv"
    shell:
        ONE + f"python -m cfbook.study.without_counterfactuals.collect {OUT}/results" + LOG


rule coverage:
    output:
        f"{OUT}/results/coverage.csv",
    log:
        "runs/logs/coverage.log",
    benchmark:
        "runs/benchmarks/coverage.tsv"
    shell:
        ONE + f"python benchmarks/coverage.py --out {OUT}/results/coverage.csv" + LOG


rule report:
    input:
        WEIGHTS,
        [ancient(file) for file in KEPT],
    output:
        f"{OUT}/results/phantom_report.csv",
    log:
        "runs/logs/report.log",
    benchmark:
        "runs/benchmarks/report.tsv"
    shell:
        ONE + f"python -m cfbook.production.phantom_report book/_static/phantom_report.html {OUT}/results/phantom_report.csv" + LOG


rule notebook:
    input:
        "notebooks/{name}.md",
        expand("runs/predictions/{file}", file=[run.file for run in runs.all_runs(SIZES, WHO)]),
    output:
        "runs/notebooks/{name}.ipynb",
    log:
        "runs/logs/notebook-{name}.log",
    params:
        words=join(
            ["-p", "preset", PRESET, "-p", "data", json.dumps(FOLDERS)]
            + ["-p", "trainings", str(TRAININGS), "-p", "generator", WHO]
        ),
    shell:
        ONE + "cfcore run {input[0]} {output} {params.words} -p folder $PWD/runs/predictions" + LOG
