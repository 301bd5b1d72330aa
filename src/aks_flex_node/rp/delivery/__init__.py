"""How a node's configuration gets to a machine that has nothing but a URL."""
