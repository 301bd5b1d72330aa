"""Compares durable writes of the store with those of the database drivers: `python -m bench.rp_store`."""
