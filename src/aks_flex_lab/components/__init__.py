"""The cloud side of a lab: long-running programs, each in the cloud's network namespace and a cgroup of its own."""
