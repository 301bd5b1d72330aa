"""Persistent storage: SQLite on one machine, PostgreSQL for several replicas."""
