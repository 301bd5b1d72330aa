"""Measures the phases of the baseline join on new machines: `python -m bench.baseline`."""
