"""How long a managed node takes to recover from faults."""
