"""A network with predefined names and responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.interfaces import ProbeFailed, ProbeFailure, ProbeResponse
from aks_flex_node.agent.preflight.network import NetworkProbe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.preflight.interfaces import ProbeRequest


class RecordedNetworkProbe(NetworkProbe):
    """A network probe with predefined names and responses; everything else does not exist."""

    def __init__(
        self,
        names: Mapping[str, tuple[str, ...]] | None = None,
        answers: Mapping[str, ProbeResponse | ProbeFailed] | None = None,
        first: Mapping[str, ProbeResponse | ProbeFailed] | None = None,  # first responses that differ from later ones
    ) -> None:
        self._names = names or {}
        self._answers = answers or {}
        self._first = dict(first or {})
        self.asked: list[ProbeRequest] = []

    def resolve(self, name: str) -> tuple[str, ...]:
        if name not in self._names:
            raise ProbeFailed(ProbeFailure.NAME, f"the name {name} cannot be resolved: the name does not exist")
        return self._names[name]

    def ask(self, request: ProbeRequest) -> ProbeResponse:
        self.asked.append(request)
        usual = self._answers.get(request.url, ProbeFailed(ProbeFailure.SILENCE, "nobody is there"))
        answer = self._first.pop(request.url, usual)
        if isinstance(answer, ProbeFailed):
            raise answer
        return answer

    def with_answers(
        self, answers: Mapping[str, ProbeResponse | ProbeFailed], *, once: bool = False
    ) -> RecordedNetworkProbe:
        """Returns the same network with other responses of some URLs, always or once."""
        if once:
            return RecordedNetworkProbe(self._names, self._answers, answers)
        return RecordedNetworkProbe(self._names, {**self._answers, **answers})
