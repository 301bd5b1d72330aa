"""The agent in the lab's machines: brought in as a package would bring it, and told of the lab's cluster."""

from aks_flex_node.lab.agents.configurations import configuration, give, merged
from aks_flex_node.lab.agents.parcels import install

__all__ = ["configuration", "give", "install", "merged"]
