"""HTTP for the agent: TLS, proxies, redirects, errors.

On aks_flex_node.retry; below artifacts, config and identity.
"""
