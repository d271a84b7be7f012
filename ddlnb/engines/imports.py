"""What ranks that train import: those of one machine can import it once for all."""

from __future__ import annotations

TRAINING = ("torch._dynamo",)  # which torch imports with the first optimizer
MEASURING = ("ddlnb.engines.worker", "ddlnb.engines.probes", *TRAINING)
