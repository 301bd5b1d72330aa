"""Writes the figures of the tests in virtual machines as tables."""
