"""Point-to-site VPN to the private network of a cluster: the VPN gateway in Azure and the OpenVPN client on this
machine.
"""
