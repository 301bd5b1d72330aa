"""Builds and signs a release. Entry point: `scripts/release`."""
