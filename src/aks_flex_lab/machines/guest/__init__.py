"""What the lab installs in virtual machines: the server of the command channel. It needs only Python's library."""
