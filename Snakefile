# From data to figures: train every predictor, marginalise every setting, execute every notebook.
#
#   snakemake --cores 2 --rerun-incomplete                      the `book` preset, on this machine
#   snakemake --cores 2 --config preset=smoke                   in a few minutes
#   snakemake --cores 2 --config generator=detailed-0           with a learned generator, trained first
#   snakemake --executor slurm --jobs 50 --config preset=paper chexpert=... mimic=... mimic_iv=... generator=...
#
# Jobs use one thread each: two single-thread processes beat two threads. What a job that failed had
# written is kept: runs/logs, *.failed.ipynb, *.failed.safetensors, and finished shards.

import json
from shlex import join

from cfbook.study import presets, runs

NAMES = ("chexpert", "mimic", "mimic_iv", "chexpert_masks", "mimic_masks")
FOLDERS = {name: config[name] for name in NAMES if name in config}
PRESET = config.get("preset", "book")
TRAININGS = int(config.get("trainings", 3))
SIZES = presets.on(PRESET, FOLDERS, trainings=TRAININGS)
COMMON = ["--preset", PRESET, "--device", config.get("device", "cpu")]
COMMON += [word for name, path in FOLDERS.items() for word in (f"--{name.replace('_', '-')}", path)]
GENERATOR = ["--generator", config["generator"]] if "generator" in config else []

WHO = config.get("generator", "oracle")
RECIPES = runs.all_recipes(SIZES)
RUNS = {run.file: run for run in runs.all_runs(SIZES, WHO)}
LEARNED = next(iter(RUNS.values())).learned()
NOTEBOOKS = ("setting_1", "setting_2", "setting_3", "stability", "claims")


def recipe_words(wildcards):
    recipe = RECIPES[f"{wildcards.name}.safetensors"]
    words = ["--hospital", recipe.hospital, "--family", recipe.family, "--seed", recipe.seed]
    words += ["--strength", recipe.strength] if recipe.strength else []
    words += ["--images", recipe.images] if recipe.images else []
    return join(map(str, COMMON + words))


def run_words(wildcards):
    run = RUNS[f"{wildcards.name}.safetensors"]
    words = ["--setting", run.setting, "--testset", run.testset, "--effect", run.effect]
    return join(map(str, [*COMMON, *GENERATOR, *words, "--trainings", TRAININGS]))


rule all:
    input:
        expand("runs/notebooks/{name}.ipynb", name=NOTEBOOKS),


rule predictor:
    output:
        "runs/predictors/{name}.safetensors",
    log:
        "runs/logs/{name}.log",
    params:
        words=recipe_words,
    threads: 1
    shell:
        "OMP_NUM_THREADS={threads} cfcore predictor {params.words} --out runs/predictors > {log} 2>&1"


if LEARNED is not None:

    rule generator:
        output:
            f"runs/generators/{LEARNED.file}",
        log:
            f"runs/logs/{LEARNED.file}.log",
        params:
            words=join(map(str, [*COMMON, "--design", LEARNED.design, "--seed", LEARNED.seed])),
        threads: 1
        shell:
            "OMP_NUM_THREADS={threads} cfcore train {params.words} --out runs/generators > {log} 2>&1"


rule predictions:
    input:
        lambda wildcards: [
            f"runs/predictors/{recipe.file}"
            for recipe in RUNS[f"{wildcards.name}.safetensors"].recipes().values()
        ],
        [] if LEARNED is None else f"runs/generators/{LEARNED.file}",
    output:
        "runs/predictions/{name}.safetensors",
    log:
        "runs/logs/{name}.log",
    params:
        words=run_words,
    threads: 1
    shell:
        "OMP_NUM_THREADS={threads} cfcore setting {params.words} --predictors runs/predictors"
        " --out runs/predictions > {log} 2>&1"


rule notebook:
    input:
        "notebooks/{name}.md",
        expand("runs/predictions/{file}", file=RUNS),
    output:
        "runs/notebooks/{name}.ipynb",
    log:
        "runs/logs/{name}.log",
    params:
        words=join(
            ["-p", "preset", PRESET, "-p", "data", json.dumps(FOLDERS)]
            + ["-p", "trainings", str(TRAININGS), "-p", "generator", WHO]
        ),
    threads: 1
    shell:
        "OMP_NUM_THREADS={threads} cfcore run {input[0]} {output} {params.words}"
        " -p folder $PWD/runs/predictions > {log} 2>&1"
