"""Runs all benchmarks and writes a page from their results."""
