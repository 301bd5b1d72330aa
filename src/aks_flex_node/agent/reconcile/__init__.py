"""The reconcile engine: resources, observed state, plans, ledger, node state and lock."""
