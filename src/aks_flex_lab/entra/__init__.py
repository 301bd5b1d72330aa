"""The lab's Entra ID: issues tokens to the principals of the lab's tenant."""
