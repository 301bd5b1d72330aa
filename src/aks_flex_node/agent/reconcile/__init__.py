"""The engine: resources, observed state, plans, the ledger of what is owned, node state and lock."""
