"""Measures roll-outs on real machines of a lab."""
