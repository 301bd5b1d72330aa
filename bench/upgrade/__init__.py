"""What an upgrade costs those who use the node."""
