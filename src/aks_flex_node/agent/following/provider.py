"""Speaking to the resource provider as this node: polls that may be held, and a few actions."""

from __future__ import annotations

import json
import logging
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.causes import causes, explain
from aks_flex_node.agent.artifacts.connections import make_pool, tls_context
from aks_flex_node.agent.following.tokens import SignInError
from aks_flex_node.agent.following.verdicts import Standing, Verdict, as_object, judge, refusal
from aks_flex_node.agent.identities.clouds import ways_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.following.endpoints import Endpoint
    from aks_flex_node.agent.following.tokens import Tokens

LARGEST = 1 << 20
PIECE = 1 << 16
GRACE = 20.0  # seconds that an answer may come later than it should
CONNECT = 10.0  # seconds, to each address that the provider has


class Unanswered(Exception):  # noqa: N818 - it is a state, and not always an error
    """There is no answer of the provider; the verdict says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass
class Provider:
    endpoint: Endpoint
    config: NodeConfig = field(repr=False)
    tokens: Tokens
    grace: float = GRACE
    _pool: PoolManager | None = None

    def poll(self, version: str, wait: int) -> Verdict:
        """Ask whether there is anything newer than a version; the provider may take some time to say no."""
        headers = {"If-None-Match": f'"{version}"'} if version else {}
        if wait and version:
            headers["Prefer"] = f"wait={wait}"
        try:
            return judge(*self._ask("GET", "", headers, None, wait + self.grace))
        except Unanswered as without:
            return without.verdict

    def act(self, action: str, body: Any = None) -> dict[str, Any]:
        """Do one of the actions that a node may; Unanswered when the provider does not, or says no."""
        status, headers, content = self._ask("POST", action, {}, body if body is not None else {}, self.grace)
        told = as_object(content)
        if status == 200 and told and not refusal(content)[0]:
            return told
        verdict = judge(status, headers, content)
        raise Unanswered(verdict if not verdict.good else Verdict(Standing.NOT_THE_PROVIDER, "An odd answer."))

    def close(self) -> None:
        if self._pool:
            self._pool.clear()

    def _ask(
        self, method: str, action: str, headers: dict[str, str], body: Any, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        status, answered, content = self._send(method, action, headers, body, seconds)
        if status == 401:
            # It may have ended early: by a clock that was set, or because somebody revoked it.
            self.tokens.forget()
            status, answered, content = self._send(method, action, headers, body, seconds)
        return status, answered, content

    def _send(
        self, method: str, action: str, headers: dict[str, str], body: Any, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        from urllib3 import Timeout  # noqa: PLC0415 - slow to import
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        sent = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Authorization": f"Bearer {self._token()}",
            "User-Agent": "aks-flex-node",
            **headers,
        }
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        limit = Timeout(connect=min(CONNECT, seconds), read=seconds)
        url = self.endpoint.url(action)
        try:
            answer = self._way().request(
                method,
                url,
                body=data,
                headers=sent,
                timeout=limit,
                preload_content=False,
                redirect=False,
                retries=False,
            )
            try:
                return answer.status, answer.headers, _content(answer, seconds)  # in any letters, so no dict
            finally:
                answer.release_conn()
        except (HTTPError, OSError) as error:
            raise Unanswered(self._unreachable(error, seconds)) from None

    def _token(self) -> str:
        try:
            return self.tokens.value()
        except SignInError as error:
            raise Unanswered(Verdict(Standing.SIGN_IN_FAILED, str(error))) from None

    def _way(self) -> PoolManager:
        if self._pool is None:
            logging.getLogger("urllib3").setLevel(logging.ERROR)
            sources = ways_out(self.config)
            self._pool = make_pool(sources, sources.proxy_for(self.endpoint.origin), self._trust())
        return self._pool

    def _trust(self) -> ssl.SSLContext:
        if self.endpoint.trust is None:
            return tls_context(None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.endpoint.trust.decode("ascii"))
        return context

    def _unreachable(self, error: Any, seconds: float) -> Verdict:
        proxy = ways_out(self.config).proxy_for(self.endpoint.origin)
        cause = explain(error, self.endpoint.origin, proxy, seconds).cause
        wrong = any(isinstance(each, ssl.SSLCertVerificationError) for each in causes(error))
        self.close()
        return Verdict(Standing.UNTRUSTED if wrong else Standing.UNREACHABLE, f"No answer: {cause}.")


def _content(answer: BaseHTTPResponse, seconds: float) -> bytes:
    """The body, within a bound of size and one of time, however slowly it drips."""
    end, content = time.monotonic() + seconds, b""
    while piece := answer.read1(PIECE, decode_content=False):
        content += piece
        if len(content) > LARGEST or time.monotonic() > end:
            answer.close()
            raise Unanswered(Verdict(Standing.NOT_THE_PROVIDER, "The answer does not come to an end."))
    return content
