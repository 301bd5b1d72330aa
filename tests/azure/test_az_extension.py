"""Runs the target workflow of the requirements: from `az login` to a Ready node, and its removal."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import network
from aks_flex_lab.components.resource_provider import OWNER_ROLE_ID, RESOURCE_GROUP_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.container import SHARED_FOLDERS
from aks_flex_lab.node_agent import PYTHONS
from aks_flex_lab.tools import catalog
from tests.agents import exists, install_agent
from tests.azure_cli import build_extension
from tests.lab_machines import temporary_machine
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult

NAME = "after-1"
UNPACK = (
    "import base64, io, sys, zipfile as z; z.ZipFile(io.BytesIO(base64.b64decode(sys.stdin.read()))).extractall()"
)
SHELL = "export REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt AZURE_CORE_INSTANCE_DISCOVERY=false; set -e; "
SIGN_IN = f"""
az cloud register --name Lab --endpoint-resource-manager {network.MANAGEMENT_URL}
az cloud set --name Lab
az login --service-principal --username {{id}} --password {{secret}} --tenant {TENANT_ID}
"""
# As in the requirements, except for the names.
AFTER = f"""
CONFIG_URL=$(az aks flex-node create \\
    --cluster lab \\
    --resource-group lab \\
    --name {NAME} \\
    --auth-method bootstrapToken \\
    --output-config-url \\
    --query "properties.configUrl" -o tsv)

echo "$CONFIG_URL" | aks-flex-node agent --config-url-file -
"""
JOIN_MANAGED = f"""
umask 077
cat >/root/secret
az aks flex-node create --cluster lab --resource-group lab --name {NAME} \\
    --auth-method servicePrincipal --client-id {{id}} --client-secret-file /root/secret --continuous-monitoring
az aks flex-node join-command --cluster lab --resource-group lab --name {NAME} -o tsv | sh
"""
UPDATE = f"""
az aks flex-node update \\
    --cluster lab \\
    --resource-group lab \\
    --node {NAME} \\
    --labels shown=yes
"""
ON_NODE = f"--cluster lab --resource-group lab --name {NAME}"


@pytest.fixture(scope="module")
def machine(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeMachine]:
    """Yields a machine with the agent, az and its extension, for both parts of the block."""
    (tool,) = [each for each in catalog.PYTHON_TOOLS if each.python == PYTHONS[DebianRelease.BOOKWORM]]
    folder = lab.toolbox.folder(tool.name, tool.version)
    with temporary_machine(lab, NAME, lent=(folder,)) as machine:
        install_agent(machine)
        machine.run("ln", "-s", f"{SHARED_FOLDERS}/{folder.name}/az", "/usr/local/bin/az")
        install_extension(machine, tmp_path_factory.mktemp("extension"))
        yield machine


def install_extension(machine: EdgeMachine, folder: Path) -> None:
    """Installs the extension as `az extension add` does, which needs pip; the machine has no pip."""
    content = base64.b64encode(build_extension(folder).read_bytes()).decode()
    place = "/root/.azure/cliextensions/az-aks-flex-node"
    machine.run("sh", "-c", f"mkdir -p {place}; cd {place}; exec python3 -c '{UNPACK}'", input=content)


def typed(machine: EdgeMachine, text: str, stdin: str = "") -> CommandResult:
    """Runs a text in a root shell of the machine."""
    return machine.run("bash", "-c", SHELL + text, input=stdin, timeout=300)


def labels(lab: Lab) -> dict[str, str]:
    found: dict[str, str] = lab.cluster.get("node", NAME)["metadata"]["labels"]
    return found


def principal(lab: Lab, name: str) -> EntraPrincipal:
    return lab.azure.directory.service_principal(name, f"secret-of-{name}")


def test_node_is_created_updated_and_deleted_with_az_extension(lab: Lab, machine: EdgeMachine) -> None:
    operator = principal(lab, "operator-of-after")
    lab.azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, operator.object_id)
    typed(machine, SIGN_IN.format(id=operator.client_id, secret=operator.secret))

    typed(machine, AFTER)
    typed(machine, f"az aks flex-node wait {ON_NODE} --ready --timeout 120")
    assert lab.cluster.node_ready(NAME)
    shown = typed(machine, "az aks flex-node list --cluster lab --resource-group lab -o table").out
    assert f"{NAME}  True     Joined" in shown
    typed(machine, f"az aks flex-node delete {ON_NODE} --yes; aks-flex-node unbootstrap --yes")

    node = principal(lab, "identity-of-after")
    typed(machine, JOIN_MANAGED.format(id=node.client_id), stdin=node.secret)
    typed(machine, f"az aks flex-node wait {ON_NODE} --ready --timeout 120")
    typed(machine, UPDATE)
    applied = "properties.configVersion==properties.status.appliedConfigVersion"
    typed(machine, f"az aks flex-node wait {ON_NODE} --interval 1 --timeout 120 --custom '{applied}'")
    assert labels(lab)["shown"] == "yes"

    typed(machine, f"az aks flex-node delete {ON_NODE} --yes")
    until(lambda: not exists(machine, "/var/lib/aks-flex-node"), f"{NAME} leaves")
    assert lab.cluster.get("node", NAME) is None
