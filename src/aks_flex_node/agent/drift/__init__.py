"""Drift: detects differences of the machine from its configuration, and watches files for changes."""
