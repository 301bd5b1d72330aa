"""The components of the lab's cloud: programs in the cloud's network namespace, each in its own cgroup."""
