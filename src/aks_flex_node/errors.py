"""Error classes of the agent, the resource provider and the lab, with their exit codes.

    FlexError               the command failed                                                      exit 1
    ├── CommandUsageError   the command line is invalid; nothing was attempted                      exit 2
    ├── ConfigError         the configuration is invalid; nothing was changed                       exit 3
    ├── MachineError        this machine does not meet a requirement, or an operation on it failed  exit 4
    ├── ArtifactError       an artifact could not be downloaded, verified or unpacked               exit 5
    ├── ClusterError        the API server or the node object is not in the required state          exit 6
    └── BusyError           another process is changing this machine                                exit 7

Every error has a kebab-case name, a message that says what failed, a hint that says what to do next, and a flag that
says whether a retry can succeed.
"""

from __future__ import annotations


class FlexError(Exception):
    exit_code = 1

    def __init__(self, name: str, message: str, hint: str = "", *, retryable: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.hint = hint
        self.retryable = retryable  # the same operation can succeed later without any change

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


class DiskFullError(ArtifactError):
    """A download or an archive needs more space. The machine is the cause, not the artifact."""

    exit_code = MachineError.exit_code


class ClusterError(FlexError):
    exit_code = 6


class BusyError(FlexError):
    exit_code = 7
