"""Azure Arc: registers this machine as an Azure resource with a managed identity."""
