"""Durable writes through the store, beside those of the bare drivers: `python -m bench.rp_store`."""
