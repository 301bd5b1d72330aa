"""How fast the agent makes a node, beside the floor: `python -m bench.join`."""
