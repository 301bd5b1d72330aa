"""Fetching and unpacking against `curl --parallel` and `tar`, in one run: `python -m bench.artifacts`."""
