"""The node's configuration: files, environment and flags become one validated, frozen NodeConfig; or it is fetched
from a configuration URL and stored on the machine.
"""
