"""The programs that the lab runs: pinned, downloaded or built, verified, and cached.

catalog       all tools with their versions, release files and recipes
recipes       the data types of a catalog entry
debian_tools  tools that come as Debian packages of the host
python_tools  tools that come as Python packages
releases      downloads of release files, with pinned checksums
go_builder    builds from Go modules
cross_build   builds for another architecture
tool_store    the directories of finished tools in the cache
installer     installation from the cache, a release or a build
toolbox       the interface that the rest of the lab uses
artifacts     the tree of release files that the mirror serves
"""

from aks_flex_lab.tools.toolbox import Toolbox

__all__ = ["Toolbox"]
