"""Polls of the resource provider for a second of processor time, beside GETs of a real API server."""
