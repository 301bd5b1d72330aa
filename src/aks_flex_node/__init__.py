"""AKS Flex Node: joins Linux machines to an AKS cluster as worker nodes."""

__version__ = "0.1.0"
