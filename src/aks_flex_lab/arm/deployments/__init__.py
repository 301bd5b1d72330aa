"""Template deployments in the lab's ARM: parsed, evaluated, and executed with the caller's token."""
