"""Compares the agent's join with the baseline: `python -m bench.join`."""
