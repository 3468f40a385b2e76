"""Counterfactual marginalisation: how robust is a classifier to nuisance variables?"""

__version__ = "0.1.0"
