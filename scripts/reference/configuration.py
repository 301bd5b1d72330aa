"""The page configuration.md: every setting of the agent, from its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.config.render import shown_default
from aks_flex_node.api.kubernetes_rules import RESERVED_KUBELET_OPTIONS
from aks_flex_node.api.node_changes import KUBELET
from aks_flex_node.settings.setting import DISTURBS, REACHES, SETTERS
from aks_flex_node.settings.table import ConfigKey, ConfigSection, key_tree, keys, sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.setting import Setting

HEAD = """\
# Configuration

The agent reads one configuration file, then the environment, then flags. Each of them overrides the one before:

| precedence | source | example |
|---|---|---|
| 1 (highest) | `--set KEY=VALUE`, can be repeated | `--set node.maxPods=50` |
| 2 | variables: `AKS_FLEX_NODE_` and the key, with `__` between its parts | `AKS_FLEX_NODE_NODE__MAX_PODS=50` |
| 3 | the file | `node: {maxPods: 50}` |
| 4 | the default | 110 |

- **The file** is selected by `--config`, else by `AKS_FLEX_NODE_CONFIG`. The default is
  `/etc/aks-flex-node/config.json`, `config.yaml` or `config.yml`. If more than one of these three exists, commands
  fail with `config-ambiguous`. JSON and YAML have the same keys. A bundle of the resource provider, which has all
  settings below `config`, can be used unchanged. A key without a value is ignored.
- **A configuration URL** replaces the file for `agent` and `bootstrap`: `--config-url`, `--config-url-file FILE` (`-`
  for standard input) or `AKS_FLEX_NODE_CONFIG_URL`. The configuration is fetched once and stored, mode 0600, in
  `/var/lib/aks-flex-node/current-config.json`. All commands use it if no file is selected
  and, unless a provider manages the node, no file exists at the default paths. See
  [Join a machine](../how-to/join-a-machine.md#with-a-url-from-the-resource-provider).
- **Settings of the machine** (set by `machine` in the tables) stay on a managed node: `agent` and `bootstrap` store
  those of flags and variables, and with a URL those of the file. Each newer configuration of the provider keeps them,
  except those of an Azure identity. `aks-flex-node agent --set proxy.https=…` changes one later, and `--set
  proxy.https=` removes it. An empty value is the default, or the empty text if the default is a text. The provider
  decides all other settings: the daemon restores them.
- **The environment and flags** take lists, maps and sections as JSON: `--set 'node.labels={"site": "one"}'`. A list
  or map replaces the whole list or map of a lower precedence. `--set node.labels.site=one` adds one entry to a map
  instead. An empty variable is ignored. A variable with the prefix that is not a setting is an error.
- **Secrets**: prefer files (`tokenFile`, `clientSecretFile`, `clientCertificateFile`), mode 0600. One source can set
  either a secret or its file, not both. A source of higher precedence overrides both. Secrets print as `***`
  everywhere. If other users can read the configuration file, commands print a warning. If all users can write it,
  commands fail.
- **The cluster** is set by `azure.targetCluster.resourceId`, by `azure.targetCluster.name` or by
  `azure.arc.targetCluster.name`. The last two need a resource group (default: `azure.resourceGroup`) and
  `azure.subscriptionId`. If more than one is set, they must name the same cluster.
- **The Azure identity** is one of `azure.servicePrincipal`, `azure.managedIdentity`, `azure.workloadIdentity` and
  `azure.arc`. Set only one of them, with one exception: a service principal can register the machine with Azure Arc.
  `azure.bootstrapToken` is for Kubernetes and can be combined with any of them.

| to | run |
|---|---|
| create a file with all settings and their descriptions | `aks-flex-node config init` |
| list all problems of a configuration, without changing anything | `aks-flex-node config validate` |
| show the effective settings and their origins | `aks-flex-node config show` |
| read about a setting on the machine | `aks-flex-node config explain KEY` |
| complete and check the file in your editor | `aks-flex-node config schema > schema.json` |

A join with a bootstrap token needs `node.kubelet.serverURL`, `node.kubelet.caCertData` (or `caCertFile`),
`azure.bootstrapToken.tokenFile` (or `token`) and `kubernetes.version`:

```yaml
azure:
  bootstrapToken:
    tokenFile: /etc/aks-flex-node/bootstrap-token
kubernetes:
  version: 1.36.3
node:
  kubelet:
    serverURL: https://my-cluster-dns.hcp.westeurope.azmk8s.io:443
    caCertFile: /etc/aks-flex-node/ca.crt
```
"""


def configuration_page() -> str:
    parts = [
        HEAD,
        *_words(),
        *_table(key_tree(), "## Top level", "Settings outside of any section, and the sections."),
    ]
    for section in sections():
        depth = "##" if "." not in section.path else "###"
        parts += _table(section, f"{depth} {section.path}", section.description)
    return "\n".join([*parts, *_reserved_options()]) + "\n"


def _words() -> Iterator[str]:
    yield "The tables say of each setting who may set it in a node that has a provider, what it reaches, and what a"
    yield "change disturbs. The [policy of a machine](../security.md#policy-of-a-machine) uses the same words.\n"
    for title, words in (("set by", SETTERS), ("reaches", REACHES), ("disturbs", DISTURBS)):
        yield f"| {title} | meaning |\n|---|---|"
        yield "\n".join(f"| {word} | {meaning} |" for word, meaning in words.items()) + "\n"


def _reserved_options() -> Iterator[str]:
    yield "## Options of the kubelet that a provider cannot set\n"
    yield "The file on the machine can, with `node.kubelet.extraConfig`.\n"
    yield "| options | because each |\n|---|---|"
    for reason, options in RESERVED_KUBELET_OPTIONS.items():
        yield f"| {', '.join(f'`{option}`' for option in options.split())} | {reason} |"
    own = ", ".join(f"`{key.setting.kubelet}`" for key in keys() if key.setting.kubelet)
    yield f"| {own} | is set by a setting of its own |"


def _table(section: ConfigSection, title: str, meaning: str) -> Iterator[str]:
    yield f"{title}\n\n{meaning}\n"
    yield "| key | type | default | set by | reaches | disturbs | description |\n|---|---|---|---|---|---|---|"
    for name, member in section.members.items():
        yield _row(name, member)
    yield f"\nVariables: `{section.variable}{'__' if section.path else ''}…`, for example `{_example(section)}`.\n"


def _row(name: str, member: ConfigKey | ConfigSection) -> str:
    if isinstance(member, ConfigSection):
        anchor = member.path.lower().replace(".", "")
        default = "not set" if member.optional else ""
        return f"| [`{name}`](#{anchor}) | section | {default} | | | | {member.description} |"
    default, setting = shown_default(member), member.setting
    shown = "**required**" if member.required else f"`{default}`" if default else ""
    disturbs = "" if setting.disturbs == "nothing" else setting.disturbs
    rules = f"{setting.set_by} | {setting.reaches} | {disturbs}"
    return f"| `{name}` | {member.type} | {shown} | {rules} | {member.description}{_option(setting)} |"


def _option(setting: Setting) -> str:
    """Returns what sets a setting on the command lines of a provider."""
    if not setting.api:
        return ""
    kubelet = "--kubelet-setting" if setting.api.startswith(KUBELET) else ""
    flag = setting.flag.partition(" ")[0] or kubelet
    return f" At the provider: `{flag}`." if flag else f" At the provider: `{setting.api}` in a `--file`, no option."


def _example(section: ConfigSection) -> str:
    return next(member.variable for member in section.members.values() if isinstance(member, ConfigKey))
