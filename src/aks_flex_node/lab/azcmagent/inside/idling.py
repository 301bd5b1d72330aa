"""What stands for guest configuration and for extensions: services that are there, and do nothing."""

from __future__ import annotations

import signal


def main() -> None:
    signal.pause()
