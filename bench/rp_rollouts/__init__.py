"""Measures roll-outs of a large pool at a real provider with simulated nodes."""
