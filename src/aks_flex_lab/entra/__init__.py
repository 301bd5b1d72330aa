"""The lab's Entra ID: issues tokens to its own principals, as the real one does."""
