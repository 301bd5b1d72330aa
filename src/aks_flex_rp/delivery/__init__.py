"""Delivery of a node's config bundle to a machine that has only a URL."""
