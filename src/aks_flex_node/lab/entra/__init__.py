"""The lab's Entra ID: it signs tokens for principals of its own, and real clients take it for the real thing."""
