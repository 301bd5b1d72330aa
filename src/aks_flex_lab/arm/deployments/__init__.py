"""Template deployments of the lab's ARM: parses, evaluates and executes them with the caller's token."""
