"""HTTP API of the service: polls, ARM operations, config bundles, health, metrics."""
