"""Measures the interruption of pods by an upgrade."""
