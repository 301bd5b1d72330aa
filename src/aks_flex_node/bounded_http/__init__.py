"""Limits of time and size for HTTP requests, also when a server sends its response one byte at a time."""
