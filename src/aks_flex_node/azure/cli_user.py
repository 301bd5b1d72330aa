"""The user login ran the command, also with sudo, and the credential of their `az login`."""

from __future__ import annotations

import json
import os
import pwd
import tempfile
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.azure import error_messages
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.host import processes
from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure.core.credentials import AccessToken

    from aks_flex_node.azure.credentials import TokenAuthority

CLI_SECONDS = 60.0
# Variables that users set for az in their shell. `sudo -E` passes them on.
PASSED_VARIABLES = ("AZURE_CONFIG_DIR", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


@frozen
class CliUser:
    name: str
    home: str
    is_other: bool  # not the user of this process
    shell: Mapping[str, str]  # the relevant variables of their environment

    @classmethod
    def at(cls, environment: Mapping[str, str]) -> CliUser:
        """Returns the user login ran the command with this environment."""
        own = pwd.getpwuid(os.geteuid())
        sudo = environment.get("SUDO_USER", "") if own.pw_uid == 0 else ""
        try:
            found = pwd.getpwnam(sudo) if sudo else own
        except KeyError:  # the user directory may be unavailable
            found = own
        home = found.pw_dir if sudo else environment.get("HOME") or found.pw_dir
        paths = (environment.get("PATH", ""), processes.ENVIRONMENT["PATH"], f"{home}/.local/bin", f"{home}/bin")
        path = ":".join(each for each in paths if each)
        shell = {name: environment[name] for name in PASSED_VARIABLES if environment.get(name)}
        return cls(found.pw_name, home, found.pw_uid != own.pw_uid, {**shell, "PATH": path})

    def command(self, *argv: str) -> tuple[str, ...]:
        """Returns a command that runs as this user. As root, az would create root-owned files in the user's home."""
        if not self.is_other:
            return argv
        # The user's PATH applies only after runuser, so that root runs only system programs.
        theirs = f"PATH={self.shell.get('PATH', '')}"
        return ("runuser", "-u", self.name, "--", "env", f"--chdir={self.home}", theirs, *argv)

    def environment(self) -> dict[str, str]:
        shell = {name: value for name, value in self.shell.items() if name != "PATH" or not self.is_other}
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, **shell}


class CliCredential:
    """The credential of the user login is signed in with `az login`."""

    def __init__(self, user: CliUser, authority: TokenAuthority, tenant: str = "", private_ca: bytes = b"") -> None:
        self._user = user
        self._authority = authority
        self._tenant = tenant
        self._private_ca = private_ca  # CA certificates (PEM) that az does not trust by default

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        from azure.core.credentials import AccessToken  # noqa: PLC0415

        result = self._run_az(scopes[0])
        if result.code != 0:
            raise explain_cli_error(self._user, result)
        return AccessToken(*parse_token(result.out))

    def _run_az(self, scope: str) -> CommandResult:
        tenant = ("--tenant", self._tenant) if self._tenant else ()
        argv = ("az", "account", "get-access-token", "--scope", scope, "--output", "json", *tenant)
        variables = {"AZURE_CORE_COLLECT_TELEMETRY": "false", "AZURE_CORE_NO_COLOR": "true"}
        if self._authority.is_private:
            variables["AZURE_CORE_INSTANCE_DISCOVERY"] = "false"
        if self._authority.proxy:
            variables["HTTPS_PROXY"] = self._authority.proxy
        with _readable_ca_file(self._private_ca) as bundle:
            trust = {"REQUESTS_CA_BUNDLE": bundle} if bundle else {}
            env = {**trust, **self._user.environment(), **variables}
            return processes.run(self._user.command(*argv), seconds=CLI_SECONDS, env=env)


@contextmanager
def _readable_ca_file(content: bytes) -> Iterator[str]:
    """Yields the path of a CA file, or an empty string. It is not secret, and az may run as another user."""
    if not content:
        yield ""
        return
    with tempfile.NamedTemporaryFile(prefix="aks-flex-node-", suffix=".pem") as file:
        file.write(content)
        file.flush()
        Path(file.name).chmod(0o644)
        yield file.name


def parse_token(text: str) -> tuple[str, int]:
    """Parses the token and its expiry from the output of az."""
    try:
        document = json.loads(text)
        token = str(document["accessToken"])
        # Older versions print only a local time.
        end = document.get("expires_on") or datetime.fromisoformat(str(document["expiresOn"])).timestamp()
        return token, int(end)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _failed("its output is not a token", "Run `az account get-access-token` to check it.") from None


def explain_cli_error(user: CliUser, result: CommandResult) -> AzureCallError:
    """Returns the error for a failed az command."""
    output = result.err.strip()
    if result.code == MISSING_PROGRAM:
        return AzureCallError(
            "azure-cli-not-found",
            "The configuration has no Azure identity for this, and the Azure CLI (`az`) is not installed.",
            "Install the Azure CLI and run `az login`, or configure an identity, such as `azure.servicePrincipal`.",
            retryable=False,
        )
    login = f"`az login` as {user.name}"
    if "az login" in output or "AADSTS" in output:
        failure = error_messages.parse_sign_in_error(output) if "AADSTS" in output else None
        cause = f" ({failure.message})" if failure else ""
        return AzureCallError(
            "azure-cli-not-signed-in",
            f"{user.name} is not signed in to Azure{cause}.",
            f"Run {login}, then run the same command again. Or set `azure.servicePrincipal`.",
            retryable=False,
            status=401,
            code=failure.code if failure else "",
        )
    lines = [line for line in output.splitlines() if line.strip()]
    return _failed(
        lines[-1].removeprefix("ERROR: ").strip(" .")[:300] if lines else "no error message", f"Run {login}."
    )


def _failed(reason: str, hint: str) -> AzureCallError:
    return AzureCallError("azure-cli-failed", f"The Azure CLI returned no token: {reason}.", hint, retryable=True)
