"""Azure identities of the node and of its operator: which one applies, sign-in, and the kubelet's token cache."""
