"""The lab's VPN gateway: a real OpenVPN server, configured as the gateway in the lab's ARM describes."""
