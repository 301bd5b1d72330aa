"""The file that `config init` prints: every setting with its meaning, commented out but for what must be filled in.

It is made from the models, so it cannot know less than they do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.keys import Key, Section, keys, tree
from aks_flex_node.agent.config.showing import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What a join by bootstrap token needs, and what to put there.
PLACEHOLDERS: dict[str, str] = {
    "azure.bootstrapToken.tokenFile": "/etc/aks-flex-node/bootstrap-token",
    "node.kubelet.serverURL": "<https://the-api-server:443>",
    "node.kubelet.caCertData": "<the CA certificate in base64>",
    "kubernetes.version": "<the version of the cluster, like 1.34.4>",
}
HEAD = """\
# The configuration of AKS Flex Node. Put it at /etc/aks-flex-node/config.yaml, mode 0600.
#
# Fill in what stands in <angle brackets>. Everything else is commented out and shows its default, if it has one:
# to change a setting, remove the # before it and before the sections that it is in.
#
#   aks-flex-node config validate     says all that is wrong with it
#   aks-flex-node config show         says what is in effect, and where it came from
"""


def starter(values: Mapping[str, str] | None = None) -> str:
    """The text of the file; `values`, by dotted path, take the place of placeholders and of defaults."""
    given = {**PLACEHOLDERS, **(values or {})}
    return HEAD + "".join(f"{line}\n" for line in _lines(tree(), given, 0))


def _lines(section: Section, given: Mapping[str, str], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, member in section.members.items():
        if not depth:
            yield ""
        yield f"{indent}# {member.meaning}"
        if isinstance(member, Key):
            yield _setting(name, member, given, indent)
        else:
            is_open = any(key.path in given for key in keys(member))
            yield f"{'' if is_open else '#'}{indent}{name}:"
            yield from _lines(member, given, depth + 1)


def _setting(name: str, key: Key, given: Mapping[str, str], indent: str) -> str:
    if key.path in given:
        return f"{indent}{name}: {_text(given[key.path])}"
    default = "" if key.default is None else f" {_text(masked(key.default))}"
    return f"#{indent}{name}:{default}"


def _text(value: object) -> str:
    """JSON is YAML, and needs no import."""
    return json.dumps(value, ensure_ascii=False)
