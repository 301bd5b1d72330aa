"""azure-core's retry policy with a bound on Retry-After. Imported together with azure-core, when a call is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.pipeline.policies import RetryPolicy

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineResponse

MAX_RETRY_AFTER_SECONDS = 15.0  # seconds that a call waits in silence because Azure asks for it


class BoundedRetryPolicy(RetryPolicy[Any, Any]):
    """The library would sleep for as long as an answer says, an hour if need be, and then call it a timeout. Whoever
    is put off for longer is told so, and may do something else meanwhile."""

    def is_retry(self, settings: dict[str, Any], response: PipelineResponse[Any, Any]) -> bool:
        return (self.get_retry_after(response) or 0.0) <= MAX_RETRY_AFTER_SECONDS and bool(
            super().is_retry(settings, response)
        )
