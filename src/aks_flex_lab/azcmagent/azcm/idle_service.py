"""A service that does nothing, in place of guest configuration and extensions."""

from __future__ import annotations

import signal


def main() -> None:
    signal.pause()
