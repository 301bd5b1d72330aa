"""Compares nodes of an AKS flex node pool with nodes of the self-hosted provider: `python -m bench.aks_pool`."""
