"""What is particular to the survey: a module for every notebook, under the notebook's name.

It has what the notebook computes and the pictures that it alone needs. Beside them are the survey's
claims, items and published numbers, its testbed, and what runs notebooks and writes the report.
Core and extensions import nothing from here.

>>> from ddlnb.survey.fig2_taxonomy import taxonomy
>>> [aspect.name for aspect in taxonomy()]
['synchronisation', 'compression', 'scheduling', 'architecture', 'protocol', 'topology']
"""

from __future__ import annotations

import sys

from ddlnb.registry import loader

if "ipykernel" in sys.modules:  # sentences in tables are read to their end
    import pandas as pd

    pd.set_option("display.max_colwidth", None)

__getattr__ = loader(
    __name__,
    catalogue="notebooks",
    CLAIMS="claims",
    evaluate_claims="claims",
    forecast_errors="calibration",
    index="runner",
    quotes="published",
)
