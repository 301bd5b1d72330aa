"""azure-core's retry policy with a limit on Retry-After. Imported together with azure-core, when a call is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.pipeline.policies import RetryPolicy

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineResponse

MAX_RETRY_AFTER_SECONDS = 15.0  # longest Retry-After that is waited for


class BoundedRetryPolicy(RetryPolicy[Any, Any]):
    """Fails instead of waiting for a long Retry-After, so that the caller can report it. The library would wait for
    up to an hour and then report a timeout.
    """

    def is_retry(self, settings: dict[str, Any], response: PipelineResponse[Any, Any]) -> bool:
        return (self.get_retry_after(response) or 0.0) <= MAX_RETRY_AFTER_SECONDS and bool(
            super().is_retry(settings, response)
        )
