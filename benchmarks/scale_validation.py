"""How far off forecasts of large-scale training are on runs that were left out.

python -m benchmarks.scale_validation            fit, leave out, print the scores (a minute)
python -m benchmarks.scale_validation --write    keep the fit, the rows and the scores
python -m benchmarks.scale_validation --kept     print the kept scores
"""

from __future__ import annotations

import argparse

import pandas as pd

from ddlnb.files import write_atomically
from ddlnb.parallelism.forecast.fit.fit import fit
from ddlnb.parallelism.forecast.fit.observations import observed
from ddlnb.parallelism.forecast.fit.other_frameworks import with_frameworks
from ddlnb.parallelism.forecast.fit.validation import cross_validate, scores
from ddlnb.parallelism.forecast.parameters import KEPT, written
from ddlnb.paths import DATA

ROWS = DATA / "forecasts" / "scale_cross_validation.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the fit and the rows")
    parser.add_argument("--kept", action="store_true", help="print the scores of the kept rows")
    chosen = parser.parse_args()
    rows = pd.read_csv(ROWS).to_dict("records") if chosen.kept else cross_validate()
    if chosen.write:
        write_atomically(KEPT, written(with_frameworks(fit(observed()))))
        write_atomically(ROWS, pd.DataFrame(rows).to_csv(index=False, float_format="%.5g"))
    with pd.option_context("display.width", 160, "display.float_format", "{:.3f}".format):
        print(pd.DataFrame(scores(rows)).to_string(index=False))


if __name__ == "__main__":
    main()
