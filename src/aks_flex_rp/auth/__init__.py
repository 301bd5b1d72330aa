"""Authentication of callers, roles, and rate limits."""
