"""Fitting the step to published runs, and how far off it is on runs that were left out."""
