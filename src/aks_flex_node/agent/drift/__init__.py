"""Drift: how the machine differs from its configuration, and who else changes it."""
