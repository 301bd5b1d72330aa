"""AKS Flex Node: any Linux machine as a worker node of an AKS cluster."""

__version__ = "0.1.0"
