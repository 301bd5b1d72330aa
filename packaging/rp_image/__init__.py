"""Builds the OCI image of the resource provider from Debian and Python packages, without root."""
