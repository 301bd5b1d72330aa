"""The lab: a real Kubernetes cloud and real systemd edge machines on one Linux machine.

The product does not import this package. The lab starts processes, creates namespaces and mounts, and removes each
of them by its ID.
"""
