"""Measures polls of the resource provider with a hundred to a hundred thousand nodes."""
