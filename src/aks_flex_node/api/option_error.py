"""The error of an option that both command lines have."""

from __future__ import annotations


class OptionError(ValueError):
    """An option with an invalid value: its name, value, reason and hint. Each front end formats its own message."""

    def __init__(self, option: str, value: str, reason: str, hint: str) -> None:
        super().__init__(f"{option}: {value!r} {reason}")
        self.option = option
        self.value = value
        self.reason = reason
        self.hint = hint
