"""TLS of the service: its own authority for one machine, or files that somebody else keeps."""
