"""A configuration URL becomes the configuration of this machine."""
