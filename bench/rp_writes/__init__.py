"""Compares durable PUTs of the resource provider over HTTP with writes of the database drivers."""
