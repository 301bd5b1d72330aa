"""The kernel objects a lab is made of: control groups, network namespaces, mounts and sysctls.

Each module can make its object twice without harm, and can find and remove what an earlier lab left behind.
"""
