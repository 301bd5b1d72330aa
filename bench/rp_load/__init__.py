"""Shared by the benchmarks of the resource provider: a fast client, the service process, and many nodes."""
