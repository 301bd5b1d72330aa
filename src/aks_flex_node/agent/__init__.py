"""The agent: turns this machine into a worker node and keeps it one."""
