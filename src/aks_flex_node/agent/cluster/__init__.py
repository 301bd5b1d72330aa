"""Access to the cluster: a small API client, the Node object, readiness and diagnosis."""
