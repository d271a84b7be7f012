"""Batches and layers shared among real ranks that are slowed on purpose."""
