"""Where the service keeps what it must not forget: SQLite on one machine, PostgreSQL for many replicas."""
