"""Flex node pools of AKS: IDs and documents of Azure's API, bootstrap data, and the node's Machine."""
