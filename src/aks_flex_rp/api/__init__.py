"""HTTP API of the service: polls, ARM operations, bundles, health, metrics."""
