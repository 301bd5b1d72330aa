"""The pages: the fleet, a node, a new node, the audit. Rendered here; scripts only make them live."""
