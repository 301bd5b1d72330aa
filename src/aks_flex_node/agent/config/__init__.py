"""The configuration of a node: merges file, environment and flags into one validated, frozen NodeConfig, or fetches
it from a configuration URL, and stores it on the machine.
"""
