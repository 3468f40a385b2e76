"""The paper's experiments: sizes, recipes, runs, statistics and claims."""
