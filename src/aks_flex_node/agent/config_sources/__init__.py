"""Config sources: where the configuration of a node comes from while the daemon runs.

The resource provider, the flex node pool of an AKS cluster, or the local configuration, behind one interface.
"""
