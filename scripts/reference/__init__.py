"""Writes the reference pages that are derived from the code. None of them is tracked."""
