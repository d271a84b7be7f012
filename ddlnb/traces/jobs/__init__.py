"""Traces of whole jobs: every operation of every rank, replayed, and its stragglers explained."""
