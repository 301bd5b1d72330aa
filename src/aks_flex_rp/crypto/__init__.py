"""Encryption at rest and TLS certificates of the service."""
