"""The agent: joins this machine to the cluster as a worker node and keeps the node configured."""
