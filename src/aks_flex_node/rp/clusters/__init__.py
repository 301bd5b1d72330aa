"""The service's side towards Kubernetes: connections, facts, roles, tokens, and the approval of certificates."""
