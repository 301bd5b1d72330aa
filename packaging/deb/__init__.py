"""Builds the Debian package of the agent and its APT repository."""
