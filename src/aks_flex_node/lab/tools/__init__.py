"""The real programs the lab runs: pinned, fetched or built, checked, and kept in the cache.

catalog     the one list: every tool with its version, its publisher's files and its recipe
recipes     what such an entry is made of
debian      the tools that come as packages of the machine
packages    the tools that come as Python packages
releases    the publisher's files: whether they can be reached, downloads, checksums
pins        hashes of release files that are known beforehand
golang      builds from Go modules, and the Go that does them
shelves     where finished tools stand in the cache; nothing half-made is ever seen there
install     cache, else release, else build
toolbox     the door that the rest of the lab uses
archives    tarballs that come out the same every time
artifacts   the tree that the artifact mirror serves
progress    how the makers say how far they are
fakes       stand-ins for the web and for Go, for tests
"""

from aks_flex_node.lab.tools.toolbox import Toolbox, ToolState

__all__ = ["ToolState", "Toolbox"]
