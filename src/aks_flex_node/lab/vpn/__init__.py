"""The lab's VPN gateway: a real OpenVPN server, which is as the gateway in the lab's ARM says."""
