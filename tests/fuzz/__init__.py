"""Fuzzing: odd bytes through every reader. ``python -m tests.fuzz`` tries many."""
