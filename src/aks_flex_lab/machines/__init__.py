"""Edge machines: systemd hosts in containers, created from a base system that is built once."""
