"""Delivery of a node's configuration bundle to a machine that has only a URL."""
