"""Resource provider: serves flexNodeConfig as an ARM resource, issues config URLs and single-use bootstrap tokens."""
