"""AKS flex node pools: pools, bootstrap data and Machines in the wire format of AKS, with its behaviour."""
