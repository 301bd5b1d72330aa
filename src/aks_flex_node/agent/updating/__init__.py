"""A node takes a new configuration on, proves that it works with it, and goes back by itself when it does not."""
