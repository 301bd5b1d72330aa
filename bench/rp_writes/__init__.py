"""Durable writes over HTTP: PUTs of the whole resource provider, beside the bare drivers."""
