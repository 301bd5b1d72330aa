"""The way to a cluster's private network: a point-to-site VPN gateway in Azure, and a real OpenVPN client here."""
