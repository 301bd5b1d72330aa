"""ARM conventions shared by all packages: resource ids and error responses."""
