"""Commands of `az aks flex-node pool enrolment`, in the package that the AAZ loader expects."""

from .__cmd_group import EnrolmentGroup
from ._commands import Approve, CreateEnrolment, ListEnrolmentsCommand, Machines, Reject, Revoke, ShowEnrolment

__all__ = [
    "Approve",
    "CreateEnrolment",
    "EnrolmentGroup",
    "ListEnrolmentsCommand",
    "Machines",
    "Reject",
    "Revoke",
    "ShowEnrolment",
]
