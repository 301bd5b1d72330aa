"""The update job: applies the next configuration, checks the node's health, and rolls back on failure."""
