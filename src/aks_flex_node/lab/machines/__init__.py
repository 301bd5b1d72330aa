"""Edge machines: real systemd hosts, made in seconds from a base system that is built once."""
