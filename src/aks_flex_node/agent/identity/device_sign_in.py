"""Device code sign-in of the operator: offered at a terminal if no service principal is configured and no user is
signed in to the Azure CLI. The tokens stay in the memory of this process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.azure.arm import AzureCallError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from azure.core.credentials import AccessToken, TokenCredential

    from aks_flex_node.azure.credentials import TokenAuthority

OFFERED_FOR = frozenset(("azure-cli-not-found", "azure-cli-not-signed-in"))


class DeviceCodePrompt(Protocol):
    """The operator at the terminal."""

    def offer(self, reason: str) -> bool:
        """Asks whether to sign in with a device code. `reason` is why another sign-in failed."""
        ...

    def show(self, url: str, code: str, expires: datetime) -> None:
        """Shows the page to open and the code to enter there."""
        ...


class DeviceSignIn:
    """The sign-in of one operator. All credentials of this process share it, so that the operator signs in once."""

    def __init__(self, prompt: DeviceCodePrompt) -> None:
        self.prompt = prompt
        self.is_signed_in = False
        self._credential: TokenCredential | None = None
        self._files = contextlib.ExitStack()  # the CA file, which the credential needs as long as it exists

    def get_token(
        self,
        scope: str,
        tenant: str,
        open_authority: Callable[[contextlib.ExitStack], TokenAuthority],
    ) -> AccessToken:
        if self._credential is None:
            from azure.identity import DeviceCodeCredential

            options = open_authority(self._files).options() | ({"tenant_id": tenant} if tenant else {})
            self._credential = DeviceCodeCredential(prompt_callback=self.prompt.show, **options)
        token = self._credential.get_token(scope)
        self.is_signed_in = True
        return token


class DeviceCodeFallback:
    """Uses another credential, or offers a device code sign-in if no user is signed in."""

    def __init__(
        self,
        first: TokenCredential,
        device: DeviceSignIn,
        tenant: str,
        open_authority: Callable[[contextlib.ExitStack], TokenAuthority],
    ) -> None:
        self._first, self._device = first, device
        self._tenant, self._open_authority = tenant, open_authority

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        if not self._device.is_signed_in:
            try:
                return self._first.get_token(*scopes)
            except AzureCallError as error:
                if error.name not in OFFERED_FOR or not self._device.prompt.offer(error.message):
                    raise
        return self._device.get_token(scopes[0], self._tenant, self._open_authority)
