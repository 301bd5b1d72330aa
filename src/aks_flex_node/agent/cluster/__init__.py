"""The cluster as the agent sees it: a few questions to the API server, with the node's own certificate."""
