"""Chest radiographs: the graph, the phantom whose truth is known, real data sets, cohorts."""
