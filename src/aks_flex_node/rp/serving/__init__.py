"""The service on the wire: polls, ARM's requests, bundles, health, metrics."""
