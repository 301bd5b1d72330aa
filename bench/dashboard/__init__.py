"""The pages with a large fleet."""
