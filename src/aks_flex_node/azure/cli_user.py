"""The person who typed the command, also behind sudo, and the credential of their `az login`."""

from __future__ import annotations

import json
import os
import pwd
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.azure import error_messages
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.host import processes
from aks_flex_node.host.host import MISSING_PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure.core.credentials import AccessToken

    from aks_flex_node.azure.credentials import TokenAuthority
    from aks_flex_node.host.host import CommandResult

CLI_SECONDS = 60.0
# What a person may have set for az in their shell; sudo lets it through when it is told to (`sudo -E`).
PASSED_VARIABLES = ("AZURE_CONFIG_DIR", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


@dataclass(frozen=True)
class CliUser:
    name: str
    home: str
    is_other: bool  # than the user that this process runs as
    shell: Mapping[str, str]  # what matters of their environment

    @classmethod
    def at(cls, environment: Mapping[str, str]) -> CliUser:
        """Who typed the command that has this environment."""
        own = pwd.getpwuid(os.geteuid())
        sudo = environment.get("SUDO_USER", "") if own.pw_uid == 0 else ""
        try:
            found = pwd.getpwnam(sudo) if sudo else own
        except KeyError:  # of a directory that is away just now
            found = own
        home = found.pw_dir if sudo else environment.get("HOME") or found.pw_dir
        paths = (environment.get("PATH", ""), processes.ENVIRONMENT["PATH"], f"{home}/.local/bin", f"{home}/bin")
        path = ":".join(each for each in paths if each)
        shell = {name: environment[name] for name in PASSED_VARIABLES if environment.get(name)}
        return cls(found.pw_name, home, found.pw_uid != own.pw_uid, {**shell, "PATH": path})

    def command(self, *argv: str) -> tuple[str, ...]:
        """A command as this person: as root it would leave files of root's in their home."""
        if not self.is_other:
            return argv
        # Their own places of programs count once it is them: what root runs until then is the system's.
        theirs = f"PATH={self.shell.get('PATH', '')}"
        return ("runuser", "-u", self.name, "--", "env", f"--chdir={self.home}", theirs, *argv)

    def environment(self) -> dict[str, str]:
        shell = {name: value for name, value in self.shell.items() if name != "PATH" or not self.is_other}
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, **shell}


class CliCredential:
    """Whoever is signed in with `az login`."""

    def __init__(self, person: CliUser, authority: TokenAuthority, tenant: str = "", private_ca: bytes = b"") -> None:
        self._person = person
        self._authority = authority
        self._tenant = tenant
        self._private_ca = private_ca  # certificates (PEM) that az would not believe by itself

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        from azure.core.credentials import AccessToken  # noqa: PLC0415

        answer = self._ask(scopes[0])
        if answer.code != 0:
            raise explain_cli_error(self._person, answer)
        return AccessToken(*parse_token(answer.out))

    def _ask(self, scope: str) -> CommandResult:
        tenant = ("--tenant", self._tenant) if self._tenant else ()
        argv = ("az", "account", "get-access-token", "--scope", scope, "--output", "json", *tenant)
        variables = {"AZURE_CORE_COLLECT_TELEMETRY": "false", "AZURE_CORE_NO_COLOR": "true"}
        if self._authority.is_private:
            variables["AZURE_CORE_INSTANCE_DISCOVERY"] = "false"
        if self._authority.proxy:
            variables["HTTPS_PROXY"] = self._authority.proxy
        with _readable_ca_file(self._private_ca) as bundle:
            trust = {"REQUESTS_CA_BUNDLE": bundle} if bundle else {}
            env = {**trust, **self._person.environment(), **variables}
            return processes.run(self._person.command(*argv), seconds=CLI_SECONDS, env=env)


@contextmanager
def _readable_ca_file(content: bytes) -> Iterator[str]:
    """A file of certificates, if there are any. They are no secret, and az may run as somebody else."""
    if not content:
        yield ""
        return
    with tempfile.NamedTemporaryFile(prefix="aks-flex-node-", suffix=".pem") as file:
        file.write(content)
        file.flush()
        Path(file.name).chmod(0o644)
        yield file.name


def parse_token(text: str) -> tuple[str, int]:
    """A token and its end, of what az printed."""
    try:
        document = json.loads(text)
        token = str(document["accessToken"])
        # Older ones tell the end as a time of day at this place only.
        end = document.get("expires_on") or datetime.fromisoformat(str(document["expiresOn"])).timestamp()
        return token, int(end)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _failed("it printed something that is no token", "Try `az account get-access-token` by hand.") from None


def explain_cli_error(person: CliUser, answer: CommandResult) -> AzureCallError:
    """Why az gave no token."""
    output = answer.err.strip()
    if answer.code == MISSING_PROGRAM:
        return AzureCallError(
            "azure-cli-not-found",
            "The configuration names no service principal for this, and the Azure CLI (`az`) is not installed here.",
            "Install it and type `az login`, or set azure.servicePrincipal.",
            retryable=False,
        )
    who = f"`az login` as {person.name}"
    if "az login" in output or "AADSTS" in output:
        refusal = error_messages.parse_sign_in_error(output) if "AADSTS" in output else None
        cause = f" ({refusal.message})" if refusal else ""
        return AzureCallError(
            "azure-cli-not-signed-in",
            f"{person.name} is not signed in to Azure{cause}.",
            f"Type {who}; then the same command again. Or set azure.servicePrincipal.",
            retryable=False,
            status=401,
            code=refusal.code if refusal else "",
        )
    lines = [line for line in output.splitlines() if line.strip()]
    return _failed(
        lines[-1].removeprefix("ERROR: ").strip(" .")[:300] if lines else "it gave no reason", f"Try {who}."
    )


def _failed(reason: str, hint: str) -> AzureCallError:
    return AzureCallError("azure-cli-failed", f"The Azure CLI gave us no token: {reason}.", hint, retryable=True)
