"""Builds the lab's container images and serves them from a registry, because no public registry is reachable."""
