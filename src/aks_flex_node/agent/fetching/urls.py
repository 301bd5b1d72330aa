"""The configuration URL that a person gave: as a word, in a file, on standard input, or in the environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.sources import CONFIG_VARIABLE, URL_VARIABLE
from aks_flex_node.api import config_urls
from aks_flex_node.errors import WordsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from aks_flex_node.api.config_urls import ConfigUrl

STANDARD_INPUT = "-"


def given_url(
    url: str | None,
    file: str | None,
    config: Path | None,
    env: Mapping[str, str],
    stdin: TextIO | None = None,
    *,
    plain: bool = False,
) -> ConfigUrl | None:
    """None when a file is meant instead. What the command says is stronger than the environment."""
    said = {"--config": config, "--config-url": url, "--config-url-file": file}
    _one_of([name for name, value in said.items() if value is not None])
    if file is not None:
        return config_urls.parse(_read(file, stdin or sys.stdin), plain=plain)
    if url is not None:
        return config_urls.parse(url, plain=plain)
    if config is not None or not env.get(URL_VARIABLE):
        return None
    _one_of([name for name in (CONFIG_VARIABLE, URL_VARIABLE) if env.get(name)])
    return config_urls.parse(env[URL_VARIABLE], plain=plain)


def _one_of(names: list[str]) -> None:
    if len(names) > 1:
        raise WordsError(
            "config-given-twice",
            f"The configuration is given by {' and by '.join(names)}, and only one can be meant.",
            "Leave all but one of them out.",
        )


def _read(file: str, stdin: TextIO) -> str:
    try:
        if file == STANDARD_INPUT:
            return stdin.read(config_urls.LONGEST + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(config_urls.LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise WordsError(
            "config-url-unreadable",
            f"The configuration URL cannot be read from {file}: {reason}.",
            "Name a file that holds the URL and nothing else, or `-` for standard input.",
        ) from None
