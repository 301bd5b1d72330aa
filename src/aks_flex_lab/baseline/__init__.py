"""The baseline: the fastest possible join, with a shell script.

Benchmarks compare the agent's join with it, and tests use it to create a node. It verifies nothing and cannot be
repeated.
"""
