"""Clusters of unlike GPUs: how to share the batch and the layers, and what each way yields."""
