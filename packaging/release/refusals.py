"""What a release is refused for, in words for the person who makes it."""


class Refused(Exception):  # noqa: N818 - it reads as a sentence
    """The release cannot be made; the message says why and what to do."""
