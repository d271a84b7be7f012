"""Tables of tidy rows: units in the headers, and an index of what varies."""

import pandas as pd

from ddlnb.results.rows import throughput_table


def test_a_table_has_units_and_only_the_columns_that_the_rows_have():
    rows = pd.DataFrame(
        {
            "model": "small-conv",
            "engine": ["torch", "horovod"],
            "method": "MG-WFBP",
            "gpus": 2,
            "throughput_samples_per_s": [100.04, 90.0],
            "exposed_communication_seconds": [0.00123, 0.002],
        }
    )
    table = throughput_table(rows)
    assert table.index.names == ["engine", "gpus", "method"]
    assert list(table.columns) == ["throughput (samples/s)", "exposed communication (ms)"]
    assert table.loc[("torch", 2, "MG-WFBP")].tolist() == [100.0, 1.23]
