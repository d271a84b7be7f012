"""Faults of many kinds, injected at random moments of real sweeps, and what became of each.

python -m tests.faults --count 500 --seed 1 --out build/faults/faults.csv
"""
