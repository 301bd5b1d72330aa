"""What can go wrong, told to a person.

    FlexError               the agent cannot do what was asked                                      exit 1
    ├── CommandUsageError   the options of the command were wrong: nothing was tried                exit 2
    ├── ConfigError         the configuration is wrong: nothing was changed                         exit 3
    ├── MachineError        this machine lacks or refuses something                                 exit 4
    ├── ArtifactError       something could not be fetched, verified or unpacked                    exit 5
    ├── ClusterError        the API server, or the node in it, is not as it must be                 exit 6
    └── BusyError           somebody else is at work on this machine                                exit 7

Every error has a kebab-case name, one sentence that says what happened, a hint that says what to do next, and
says whether trying the same again may help.
"""

from __future__ import annotations


class FlexError(Exception):
    exit_code = 1

    def __init__(self, name: str, message: str, hint: str = "", *, retryable: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.hint = hint
        self.retryable = retryable  # nothing has to be changed first: the same may work in a while

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class CommandUsageError(FlexError):
    exit_code = 2


class ConfigError(FlexError):
    exit_code = 3


class MachineError(FlexError):
    exit_code = 4


class ArtifactError(FlexError):
    exit_code = 5


class ClusterError(FlexError):
    exit_code = 6


class BusyError(FlexError):
    exit_code = 7
