"""The Debian package of the agent, and the APT repository that it comes from; see docs/how-to/packages.md."""
