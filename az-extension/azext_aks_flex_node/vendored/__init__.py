"""Modules of aks_flex_node without dependencies: links in the repository, copies in the wheel."""
