"""Polls of the resource provider while its store grows from a hundred nodes to a hundred thousand."""
