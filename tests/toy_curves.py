"""Curves of training runs with losses as a test wants them."""

import pandas as pd

from ddlnb.training.method import training_method


def runs_of(method: str, losses: dict[int, list[float]], **more) -> pd.DataFrame:
    """Curves with these losses by seed, at steps 0, 10, 20, ..."""
    rows = [
        {
            "task": "quadratic",
            "method": str(training_method(method)),
            "workers": 8,
            "seed": seed,
            "step": 10 * number,
            "test_loss": loss,
            "diverged": False,
            "consensus_distance": 0.0,
            "bytes_sent": 140.0 * number,  # one round of 80 bytes among eight
            "averaging_bytes_sent": 0.0,
            "bytes_received": 140.0 * number,
            "averaging_bytes_received": 0.0,
            "averaging_seconds": 0.0,
        }
        | more
        for seed, values in losses.items()
        for number, loss in enumerate(values)
    ]
    return pd.DataFrame(rows)
