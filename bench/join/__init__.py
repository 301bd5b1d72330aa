"""How fast the agent makes a node, beside the baseline: `python -m bench.join`."""
