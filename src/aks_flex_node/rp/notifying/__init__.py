"""Webhooks: what is told of nodes, to whom, signed and until it has arrived."""
