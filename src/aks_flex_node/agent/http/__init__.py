"""HTTP for the agent: TLS, proxies, redirects, errors.

Uses aks_flex_node.retry. Used by artifacts, config and identity.
"""
