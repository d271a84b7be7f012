"""Time lost on large clusters: failures, checkpoints, restarts, stragglers, and what is left."""
