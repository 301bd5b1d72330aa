"""The baseline: the fastest possible join, done by hand with a shell script.

The agent's join is measured against it, and tests use it to get a node. It verifies nothing and cannot be repeated.
"""
