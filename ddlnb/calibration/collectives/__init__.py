"""Forecasts of measured collectives: NCCL's own cost model, fitted to rows of few nodes."""
