"""How far off forecasts of large-scale training are on runs that were left out.

python -m benchmarks.scale_validation            fit, leave out, print the scores (a minute)
python -m benchmarks.scale_validation --write    keep the fit, the rows and the scores
python -m benchmarks.scale_validation --kept     print the kept scores
"""

from __future__ import annotations

import argparse

import pandas as pd

from ddlnb.files import DATA, write_atomically
from ddlnb.parallelism.forecast.fit import fit, observed, with_frameworks
from ddlnb.parallelism.forecast.frameworks import SAVED, fit_text
from ddlnb.parallelism.forecast.validation import (
    cross_validate,
    scores,
    unseen_rows,
    unseen_scores,
    with_unseen,
)

ROWS = DATA / "forecasts" / "scale_cross_validation.csv"
UNSEEN = DATA / "forecasts" / "scale_unseen.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the fit and the rows")
    parser.add_argument("--kept", action="store_true", help="print the scores of the kept rows")
    chosen = parser.parse_args()
    if chosen.kept:
        rows, unseen = (pd.read_csv(path).to_dict("records") for path in (ROWS, UNSEEN))
    else:
        fitted = with_unseen(with_frameworks(fit(observed())))
        rows, unseen = cross_validate(), unseen_rows(fitted)
        if chosen.write:
            write_atomically(SAVED, fit_text(fitted))
            for path, found in ((ROWS, rows), (UNSEEN, unseen)):
                text = pd.DataFrame(found).to_csv(index=False, float_format="%.5g")
                write_atomically(path, text)
    with pd.option_context("display.width", 160, "display.float_format", "{:.3f}".format):
        print(pd.DataFrame(scores(rows)).to_string(index=False))
        print("\nPapers, frameworks and sizes that were left out\n")
        print(pd.DataFrame(unseen_scores(unseen)).to_string(index=False))


if __name__ == "__main__":
    main()
