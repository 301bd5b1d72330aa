"""Calls ARM with the agent's Azure client, with the identity given on standard input. See `providers.InAzure`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import ArmClient, AzureCallError

if TYPE_CHECKING:
    from collections.abc import Callable

API_VERSION = "2026-05-01-preview"


def main() -> None:
    told = json.load(sys.stdin)
    authority = credentials.TokenAuthority(told["authority"], told["ca"])
    credential = credentials.service_principal(told["tenant"], told["client"], told["secret"], authority)
    arm = ArmClient(credential, told["management"], ca_file=told["ca"])
    json.dump([call(arm, *each) for each in told["calls"]], sys.stdout)


def call(arm: ArmClient, method: str, path: str, body: Any) -> dict[str, Any]:
    doing: dict[str, Callable[[], Any]] = {
        "GET": lambda: arm.get(path, API_VERSION),
        "PUT": lambda: arm.put(path, API_VERSION, body),
        "POST": lambda: arm.post(path, API_VERSION, body),
        "DELETE": lambda: arm.delete(path, API_VERSION),
    }
    try:
        return {"answer": doing[method]()}
    except AzureCallError as error:
        return {"status": error.status, "code": error.code}


main()
