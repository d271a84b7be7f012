"""Traces that others recorded, read as ours: of one GPU, of an engine, of a whole job."""
