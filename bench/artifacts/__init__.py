"""Compares downloads and unpacking with `curl --parallel` and `tar`, in one run: `python -m bench.artifacts`."""
