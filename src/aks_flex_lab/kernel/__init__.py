"""The kernel objects of a lab: cgroups, network namespaces, mounts, and host-wide settings.

Each module creates its objects idempotently, and finds and removes what an earlier lab left behind.
"""
