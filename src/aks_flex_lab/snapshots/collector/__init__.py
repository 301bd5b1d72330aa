"""Runs inside a machine and prints its state as one JSON document.

These modules are piped as one script to `python3 -` in the machine (see `snapshots.model`). They use the standard
library only, run on Python 3.9, import only one another, and write nothing. `probe` may start processes.
"""
