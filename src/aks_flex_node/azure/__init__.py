"""Azure: credentials, and a thin client for Azure Resource Manager."""
