"""Measures the dashboard with a large fleet."""
