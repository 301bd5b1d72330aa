"""The door to Azure: who we are there, and a thin client for its resource manager."""
