"""The members of an archive, each judged before anything is made of it.

Nothing in here writes. A member is refused by name when it could land outside of the tree, or be anything but a file,
a directory or a link that stays inside.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from aks_flex_node.agent.artifacts.inflating import Broken, Hostile, Inflated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

MOST_MEMBERS = 100_000
LONGEST_NAME = 1024  # bytes, of a member or of what a link leads to; systems end at 4096 with all that is above it
DEEPEST = 100
BLOCK = 512


class Headers(tarfile.TarFile):
    """Reads no member by itself: `members` asks for one after another, and reads what is between them."""

    def next(self) -> tarfile.TarInfo | None:
        return None


@dataclass(frozen=True)
class Member:
    name: str  # clean: relative, without "." and ".."
    mode: int
    size: int
    kind: str  # "file", "folder", "symbolic link" or "hard link"
    target: str = ""


@dataclass
class Judge:
    """What was seen of an archive so far, and what may therefore not come now."""

    seen: dict[str, Member] = field(default_factory=dict)

    def admit(self, info: tarfile.TarInfo) -> Member | None:
        """The member, if it is honest; None for the archive's own root."""
        name = clean_name(info.name)
        if not name:
            return None
        member = Member(name, info.mode & 0o777, info.size, kind_of(info), info.linkname)
        self._check_place(member)
        if member.kind == "symbolic link":
            check_target(name, member.target)
        if member.kind == "hard link":
            member = self._resolved(member)
        self.seen[name] = member
        return member

    def _check_place(self, member: Member) -> None:
        before = self.seen.get(member.name)
        if before and (before.kind, member.kind) != ("folder", "folder"):
            raise Hostile(f"has {shown(member.name)} twice")
        if len(self.seen) >= MOST_MEMBERS:
            raise Hostile(f"has more than {MOST_MEMBERS} members")
        parts = member.name.split("/")
        for depth in range(1, len(parts)):
            above = self.seen.get("/".join(parts[:depth]))
            if above and above.kind != "folder":
                raise Hostile(f"puts {shown(member.name)} below a {above.kind}")

    def _resolved(self, member: Member) -> Member:
        """A hard link, with the clean name of the file it is another name of."""
        target = clean_name(member.target)
        known = self.seen.get(target)
        if known is None or known.kind not in {"file", "hard link"}:
            raise Hostile(f"links {shown(member.name)} to {shown(member.target)}, which is not a file before it")
        return Member(member.name, member.mode, 0, member.kind, target)


def members(stream: Inflated) -> Iterator[Member]:
    """All members, in order. Whatever the caller leaves of a file's bytes is skipped."""
    headers = Headers(fileobj=cast("IO[bytes]", stream))
    judge = Judge()
    while info := next_header(headers):
        stream.begin_header()
        end = stream.tell() + padded(info.size if info.isreg() else 0)
        member = judge.admit(info)
        if member:
            yield member
        stream.skip(end - stream.tell())
    stream.drain()


def next_header(headers: Headers) -> tarfile.TarInfo | None:
    try:
        info = tarfile.TarInfo.fromtarfile(headers)
    except tarfile.HeaderError as error:
        # An archive ends with zeros, or where the file ends.
        if type(error).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
            return None
        raise Broken(f"is not a sound tar ({error})") from error
    except RecursionError:
        raise Hostile("has header upon header, and no file after them") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:
        raise Broken(f"is not a sound tar ({error})") from error
    if info.size < 0:
        raise Broken("has a file of less than no bytes")
    return info


def kind_of(info: tarfile.TarInfo) -> str:
    if info.isreg() and info.sparse is None:
        return "file"
    if info.isdir():
        return "folder"
    if info.issym():
        return "symbolic link"
    if info.islnk():
        return "hard link"
    what = "a device" if info.ischr() or info.isblk() else "a pipe" if info.isfifo() else "of an unknown kind"
    raise Hostile(f"has {shown(info.name)}, which is {what}")


def clean_name(name: str) -> str:
    """A name without its needless dots; one that leads out of the tree is refused."""
    if name.startswith("/"):
        raise Hostile(f"has the absolute name {shown(name)}")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise Hostile(f"has {shown(name)}, which leads out of it")
    too_long = any(size(part) > 255 for part in parts) or size(name) > LONGEST_NAME or len(parts) > DEEPEST
    if not name.isprintable() or too_long:
        raise Hostile(f"has a name that no file should have: {shown(name)}")
    return "/".join(parts)


def check_target(name: str, target: str) -> None:
    """A symbolic link may climb only at its beginning, and no higher than the tree.

    That is enough, whatever other links there are: the climb goes through real directories, because nothing lies
    below a link, and each link on the way down stays inside by the same rule.
    """
    parts = [part for part in target.split("/") if part not in {"", "."}]
    climb = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    outside = target.startswith("/") or climb > name.count("/") or ".." in parts[climb:]
    if not parts or size(target) > LONGEST_NAME:
        raise Hostile(f"links {shown(name)} to {shown(target)}, which no link should lead to")
    if outside or not target.isprintable():
        raise Hostile(f"links {shown(name)} to {shown(target)}, which leads out of it")


def size(name: str) -> int:
    return len(name.encode("utf-8", "surrogateescape"))


def padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def shown(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:200]}…")
