"""Tally in Python: gradients summed over workers. tally.join() for arrays of any kind, tally.torch.attach(ddp) for
PyTorch.

Pure Python over the C interface of libtally; numpy and torch are used if they are there.
"""
from ._abi import VERSION as __version__
from .client import Client, Stats, join
from .errors import (Corrupt, Error, Internal, InvalidArgument, Mismatch, PeerLost, Timeout, Unavailable, Unsupported)
from .group import Group, StepResult, Tensor, Ticket

__all__ = ["Client", "Corrupt", "Error", "Group", "Internal", "InvalidArgument", "Mismatch", "PeerLost", "Stats",
           "StepResult", "Tensor", "Ticket", "Timeout", "Unavailable", "Unsupported", "__version__", "join"]
