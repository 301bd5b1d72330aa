"""The cluster network, an optional part of the lab: network plugin, kube-proxy and CoreDNS on every node.

images     images of the three, built from the lab's tools
manifests  the objects of the cluster
installer  installs all in a running lab
"""
