"""The components of a node: one module or package each, listed in order in `catalog`."""
