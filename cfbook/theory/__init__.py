"""Variance reduction: the estimators, simulations of them, and the same with images."""
