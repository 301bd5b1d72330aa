"""The soak test: random operations and faults on three machines for a limited time, then a check of the result."""
