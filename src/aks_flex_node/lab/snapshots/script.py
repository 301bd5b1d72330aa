"""The modules of `inside` as one script, since a machine has nothing of ours installed."""

from __future__ import annotations

from importlib import resources

from aks_flex_node.lab.snapshots import inside

PACKAGE = inside.__name__
PARTS = (
    "rows",
    "ignored",
    "asking",
    "files",
    "kernel",
    "services",
    "network",
    "firewall",
    "collector",
)  # imports point left

# Makes modules of the sources in memory. Nothing is written in the machine, no compiled file either: a snapshot must
# not change what it looks at.
LOADER = """\
import sys, types
sys.dont_write_bytecode = True
package = sys.modules[{package!r}] = types.ModuleType({package!r})
package.__path__ = []
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def text() -> str:
    """A program for `python3 -` that prints what it finds as JSON."""
    return LOADER.format(package=PACKAGE, sources=sources())


def sources() -> dict[str, str]:
    here = resources.files(inside)
    return {f"{PACKAGE}.{part}": (here / f"{part}.py").read_text(encoding="utf-8") for part in PARTS}
