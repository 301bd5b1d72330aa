"""Kubernetes clusters: connections, facts, informers, CSR approval, bootstrap tokens, access, taints."""
