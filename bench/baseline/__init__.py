"""The baseline of a join, phase by phase, on fresh machines: `python -m bench.baseline`."""
