"""Exceptions: one class for each kind of failure, named by what the caller can do about it."""
from typing import Dict, Optional, Type


class Error(Exception):
    """A call of Tally's failed; the text says who, what, expected, got, what to do.

    `kind` is the kind's name ("peer lost"), `rank` this process's own, `step` and `bucket` those that the call was
    about. What the call did not know is None. Which peer is concerned stands in the text alone: `peer` is None until
    the library says it by itself.
    """

    kind = "internal error"

    def __init__(self, text: str, *, rank: Optional[int] = None, step: Optional[int] = None,
                 bucket: Optional[int] = None) -> None:
        super().__init__(text)
        self.rank, self.step, self.bucket = rank, step, bucket
        self.peer: Optional[int] = None


class InvalidArgument(Error, ValueError):
    """The caller's input or configuration is wrong: change it."""

    kind = "invalid argument"


class Unavailable(Error):
    """Not there now: retry, or give another address."""

    kind = "unavailable"


class PeerLost(Error):
    """A member of the job died or went silent."""

    kind = "peer lost"


class Corrupt(Error):
    """Bytes from a peer or a file failed validation."""

    kind = "corrupt"


class Timeout(Error, TimeoutError):
    """A deadline passed."""

    kind = "time-out"


class Unsupported(Error):
    """This build, machine or combination cannot do it."""

    kind = "unsupported"


class Mismatch(Error):
    """Ranks disagree on version, configuration, layout or call."""

    kind = "mismatch"


class Internal(Error):
    """A fault of the library's own."""

    kind = "internal error"


OF_STATUS: Dict[int, Type[Error]] = {1: InvalidArgument, 2: Unavailable, 3: PeerLost, 4: Corrupt, 5: Timeout,
                                     6: Unsupported, 7: Mismatch, 8: Internal}
