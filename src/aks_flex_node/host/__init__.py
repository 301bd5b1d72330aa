"""The machine: what can be asked of it, what can be done to it, and the hosts that carry it out."""
