"""The lab: a real Kubernetes cloud and real systemd edge machines, on one Linux machine.

Nothing of the product imports this package. It may start processes, make namespaces and mount things, and it
takes every one of them away again by its own id.
"""
