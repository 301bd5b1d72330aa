"""Compares polls of the resource provider per CPU second with GETs of a real API server."""
