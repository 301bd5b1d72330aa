"""The lab: a real Kubernetes cloud and real systemd edge machines on one Linux machine.

Nothing of the product imports this package. It starts processes, creates namespaces and mounts, and removes every
one of them by its own id.
"""
