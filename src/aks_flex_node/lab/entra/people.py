"""Where people sign in by a browser: the authorize endpoint and the page behind it, and signing out."""

from __future__ import annotations

import hmac
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.responses import RedirectResponse
from starlette.routing import Route

from aks_flex_node.lab.entra import answers, pages
from aks_flex_node.lab.entra.answers import Refusal
from aks_flex_node.lab.entra.codes import SignedIn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_node.lab.entra.codes import Codes
    from aks_flex_node.lab.entra.directory import Principal
    from aks_flex_node.lab.entra.tokens import Mint

MODES = ("query", "form_post")
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Question:
    """What an application asks, when it is one of ours and its answer may be sent where it says."""

    client: Principal
    redirect: str
    words: Mapping[str, str]

    @property
    def mode(self) -> str:
        asked = self.words.get("response_mode", "query")
        return asked if asked in MODES else "query"

    def answer(self, told: Mapping[str, str]) -> Response:
        state = {"state": self.words["state"]} if "state" in self.words else {}
        fields = {**told, **state}
        if self.mode == "form_post":
            return pages.form_post(self.redirect, fields)
        joint = "&" if "?" in self.redirect else "?"
        return RedirectResponse(f"{self.redirect}{joint}{urlencode(fields)}", 303, pages.SAFE)

    def refuse(self, refusal: Refusal, **names: str) -> Response:
        return self.answer({"error": refusal.error, "error_description": refusal.words(**names)})


class People:
    def __init__(self, mint: Mint, codes: Codes) -> None:
        self._mint = mint
        self._codes = codes

    def routes(self) -> list[Route]:
        return [
            Route("/{tenant}/oauth2/v2.0/authorize", self.authorize, methods=["GET", "POST"]),
            Route("/{tenant}/oauth2/v2.0/logout", self.sign_out),
        ]

    async def authorize(self, request: Request) -> Response:
        question = self._question(request)
        if isinstance(question, str):
            return pages.refused(question)
        if refused := _refused(question):
            return refused
        if request.method == "GET":
            return pages.sign_in(question.client.name, question.words.get("login_hint", ""))
        return self._answered(question, dict(parse_qsl((await request.body()).decode(errors="replace"))))

    async def sign_out(self, request: Request) -> Response:
        """Nobody stays signed in here, so all there is to do is to lead them back, if that is to one of ours."""
        asked = request.query_params.get("post_logout_redirect_uri", "")
        ours = any(asked in each.redirect_uris for each in self._mint.directory.all())
        return RedirectResponse(asked, 303, pages.SAFE) if asked and ours else pages.signed_out()

    def _question(self, request: Request) -> Question | str:
        """What is wrong here is shown on the page: an answer must not be sent to where just anybody says."""
        tenant, words = request.path_params["tenant"], dict(request.query_params)
        client, redirect = words.get("client_id", ""), words.get("redirect_uri", "")
        if not self._mint.directory.has_tenant(tenant):
            return answers.NO_TENANT.words(tenant=tenant)
        if not client:
            return answers.NOT_ASKED.words(name="client_id")
        found = self._mint.directory.find(client, "servicePrincipal")
        if found is None or not found.client_id:
            return answers.NO_CLIENT.words(client=client)
        if not found.enabled:
            return answers.DISABLED.words(client=client)
        if redirect not in found.redirect_uris:
            return answers.WRONG_REDIRECT.words(redirect=redirect, client=client)
        return Question(found, redirect, words)

    def _answered(self, question: Question, form: Mapping[str, str]) -> Response:
        user = form.get("username", "")
        if form.get("answer") == "cancel":
            return question.refuse(answers.DECLINED)
        found = _known(self._mint.directory.find(user, "user"), form.get("password", ""))
        if isinstance(found, Refusal):
            return pages.sign_in(question.client.name, user, found.words(user=user))
        return question.answer(self._signed_in(question, found))

    def _signed_in(self, question: Question, user: Principal) -> dict[str, str]:
        words = question.words
        kept = SignedIn(
            user.object_id,
            question.client.client_id,
            question.redirect,
            words["scope"],
            words.get("nonce", ""),
            words.get("code_challenge", ""),
        )
        info = {"client_info": self._mint.client_info(user)} if words.get("client_info") == "1" else {}
        return {"code": self._codes.issue(kept), **info, "session_state": str(uuid.uuid4())}


def _refused(question: Question) -> Response | None:
    """What is wrong here, the application is told."""
    words = question.words
    asked, mode = words.get("response_type", ""), words.get("response_mode", "query")
    if asked != "code":
        return question.refuse(answers.NO_RESPONSE_TYPE, asked=asked)
    if mode not in MODES:
        return question.refuse(answers.NO_RESPONSE_MODE, asked=mode)
    if "openid" not in words.get("scope", "").split():
        return question.refuse(answers.NOT_ASKED, name="scope")
    if "code_challenge" in words and not _is_challenge(words):
        return question.refuse(answers.NO_CHALLENGE_METHOD)
    return question.refuse(answers.NOBODY_SIGNED_IN) if words.get("prompt") == "none" else None


def _is_challenge(words: Mapping[str, str]) -> bool:
    return words.get("code_challenge_method") == "S256" and bool(CHALLENGE.fullmatch(words["code_challenge"]))


def _known(user: Principal | None, password: str) -> Principal | Refusal:
    if user is None:
        return answers.NO_USER
    if not hmac.compare_digest(password.encode(), user.secret.encode()):
        return answers.WRONG_PASSWORD
    return user if user.enabled else answers.USER_DISABLED
