"""The container images that the lab builds, and the registry that serves them: no public registry is reachable."""
