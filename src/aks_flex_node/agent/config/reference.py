"""Writes docs/reference/configuration.md from the models: `python -m aks_flex_node.agent.config.reference [FILE]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.keys import ConfigKey, ConfigSection, key_tree, sections
from aks_flex_node.agent.config.render import mask_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """\
# Configuration

<!-- Made from src/aks_flex_node/agent/config/models.py by `python -m aks_flex_node.agent.config.reference`. -->

The agent reads one file, then the environment, then flags. Each is stronger than the one before:

| strength | where | example |
|---|---|---|
| 1, strongest | `--set KEY=VALUE`, as often as you like | `--set node.maxPods=50` |
| 2 | variables: `AKS_FLEX_NODE_` and the key, `__` between its parts | `AKS_FLEX_NODE_NODE__MAX_PODS=50` |
| 3 | the file | `node: {maxPods: 50}` |
| 4 | the default | 110 |

- **The file** is the one that `--config` names, else the one that `AKS_FLEX_NODE_CONFIG` names, else
  `/etc/aks-flex-node/config.json`, `config.yaml` or `config.yml`. Two of those three at once are an error
  (`config-ambiguous`): nobody could tell which is in effect. JSON and YAML hold the same keys; a bundle of the
  resource provider, which has everything below `config`, is read as it is. A key without a value counts as left out.
- **A URL** takes the place of the file for `agent` and `bootstrap`: `--config-url`, `--config-url-file FILE` (`-` for
  standard input) or `AKS_FLEX_NODE_CONFIG_URL`. What it delivers is fetched once and kept, mode 0600, in
  `/var/lib/aks-flex-node/current-config.json`. Every command uses that where no file is named and none is in the
  usual place. See [Join a machine](../how-to/join-a-machine.md#with-a-url-from-the-resource-provider).
- **The environment and flags** give lists, maps and sections as JSON: `--set 'node.labels={"site": "one"}'`. A list
  or map replaces a weaker one as a whole. `--set node.labels.site=one` adds one entry to it instead. A variable that
  is empty counts as left out. A variable with the prefix that is no setting is an error.
- **Secrets** are best given by file: `tokenFile`, `clientSecretFile`, `clientCertificateFile`, mode 0600. Of a secret
  and its file only one may be given in one place; a stronger place replaces either. Secrets print as `***`
  everywhere. A configuration that others can read is a warning that says what to type; one that everybody can write
  is an error.
- **The cluster** is named by `azure.targetCluster.resourceId`, by `azure.targetCluster.name` or by
  `azure.arc.targetCluster.name`; the last two with a resource group (`azure.resourceGroup` when left out) and
  `azure.subscriptionId`. If more than one is given, they must say the same.
- **Signing in to Azure** is by `azure.servicePrincipal`, `azure.managedIdentity`, `azure.workloadIdentity` or
  `azure.arc`. Only one of them is given, but for Arc, which may be registered with the service principal.
  `azure.bootstrapToken` is for Kubernetes, and may stand beside any of them.

| to | type |
|---|---|
| start a file, with every setting and its meaning | `aks-flex-node config init` |
| see all that is wrong with it, without changing anything | `aks-flex-node config validate` |
| see what is in effect, and where each value came from | `aks-flex-node config show` |
| let your editor complete and check it | `aks-flex-node config schema > schema.json` |

A join by bootstrap token needs `node.kubelet.serverURL`, `node.kubelet.caCertData` (or `caCertFile`),
`azure.bootstrapToken.tokenFile` (or `token`) and `kubernetes.version`:

```yaml
azure:
  bootstrapToken:
    tokenFile: /etc/aks-flex-node/bootstrap-token
kubernetes:
  version: 1.34.4
node:
  kubelet:
    serverURL: https://my-cluster-dns.hcp.westeurope.azmk8s.io:443
    caCertFile: /etc/aks-flex-node/ca.crt
```
"""


def reference() -> str:
    parts = [HEAD, *_table(key_tree(), "## The top", "Settings outside of any section, and the sections.")]
    for section in sections():
        depth = "##" if "." not in section.path else "###"
        parts += _table(section, f"{depth} {section.path}", section.description)
    return "\n".join(parts) + "\n"


def _table(section: ConfigSection, title: str, meaning: str) -> Iterator[str]:
    yield f"{title}\n\n{meaning}\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    for name, member in section.members.items():
        yield _row(name, member)
    yield f"\nVariables: `{section.variable}{'__' if section.path else ''}…`, for example `{_example(section)}`.\n"


def _row(name: str, member: ConfigKey | ConfigSection) -> str:
    if isinstance(member, ConfigSection):
        anchor = member.path.lower().replace(".", "")
        return f"| [`{name}`](#{anchor}) | section | {'left out' if member.optional else ''} | {member.description} |"
    older = f" Also: `{'`, `'.join(member.aliases)}`." if member.aliases else ""
    return f"| `{name}` | {member.type} | {_default(member)} | {member.description}{older} |"


def _default(key: ConfigKey) -> str:
    if key.required:
        return "**needed**"
    if key.default is None or key.default in ((), {}):
        return ""
    return f"`{key.default}`" if isinstance(key.default, str) else f"`{json.dumps(mask_secrets(key.default))}`"


def _example(section: ConfigSection) -> str:
    return next(member.variable for member in section.members.values() if isinstance(member, ConfigKey))


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/configuration.md")
    target.write_text(reference())


if __name__ == "__main__":
    main()
