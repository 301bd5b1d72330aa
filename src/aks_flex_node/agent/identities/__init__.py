"""Who this node is to Azure, who its operator is, and how either signs in."""
