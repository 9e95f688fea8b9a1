"""Joining a job, and what concerns all of it: who is there, collectives, leaving."""
import atexit
import ctypes
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _arrays
from ._calls import Caller
from ._library import check, library
from .errors import InvalidArgument
from .group import Group, TensorLike, declare

Setting = Union[str, bool, int, float, Sequence[Union[str, int, float]]]


class Stats(NamedTuple):
    """Counters since the join; bytes at the sockets, headers included."""

    bytes_sent: int
    bytes_received: int
    frames_sent: int
    frames_received: int
    steps_committed: int
    steps_skipped: int
    pool_allocations: int
    engine_cpu_seconds: float
    saturated: int
    residual_l1: float
    residual_bytes: int


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def join(config: Optional[Union[str, "os.PathLike[str]"]] = None, settings: Optional[Mapping[str, Setting]] = None,
         **more: Setting) -> "Client":
    """Joins the job and waits until every member is there, at most membership.join_timeout.

    `config`: a TOML file; `settings`: {"aggregation.mode": "ring"}, stronger than the file and the environment; as
    keyword arguments a dot is two underscores: aggregation__mode="ring". Errors: InvalidArgument, Unavailable,
    Mismatch, Timeout.
    """
    texts = setting_texts({**(settings or {}), **{key.replace("__", "."): value for key, value in more.items()}})
    encoded = [text.encode() for text in texts]
    options = _abi.JoinOptions(config_file=None if config is None else os.fsencode(config),
                               settings=(ctypes.c_char_p * len(encoded))(*encoded), settings_count=len(encoded))
    lib, caller, abandoned = library(), Caller(), []

    def body() -> int:
        handle = ctypes.c_void_p()
        check(lib.tally_join(ctypes.byref(options), ctypes.byref(handle)))
        if abandoned:
            lib.tally_close(handle)
        return handle.value or 0

    try:
        return Client(caller.run(body, abandoned.append), caller)
    except BaseException:
        caller.end()
        raise


def setting_texts(settings: Mapping[str, Setting]) -> List[str]:
    """As the library takes them: section.key=value. Lists are joined by commas."""

    def text(key: str, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, int, float)):
            return str(value)
        if isinstance(value, (list, tuple)):
            parts = [text(key, part) for part in value]
            if not any("," in part for part in parts):
                return ",".join(parts)
        raise InvalidArgument(f"setting {key}: expected text, a number, a truth value or a list of such without "
                              f"commas, got {value!r}")

    return [f"{key}={text(key, value)}" for key, value in settings.items()]


class Client:
    """A member of a job. One thread for all its calls but Ticket.wait and Ticket.done; each group may have a thread of
    its own. Calls that wait let other Python threads run.

    Ctrl-C while the main thread waits ends the job on all members (abort) and raises KeyboardInterrupt; during join it
    gives up joining. As a context manager: leaves at the end, aborts if the block ends by an exception. Memory that
    groups gave out stays good as long as somebody holds it. A forked child must not use its parent's client.
    """

    def __init__(self, handle: int, caller: Caller) -> None:
        self._library, self._caller, self._pointer, self._pid = library(), caller, handle, os.getpid()
        self._left = False
        # What the library reads until a step's end, per group: a group that nobody has any more is still read.
        self._held: Dict[int, List[_arrays.Memory]] = {}
        self.rank: int = self._library.tally_rank(handle)
        self.local_rank: int = self._library.tally_local_rank(handle)
        self._close = weakref.finalize(self, _close, self._library, handle, caller, self._pid, self._held)
        self._close.atexit = False  # a daemon thread may still be in a call then; leaving is what the others need
        _clients.add(self)

    @property
    def _handle(self) -> int:
        if os.getpid() != self._pid:
            raise InvalidArgument("a forked process has no part in its parent's job: let it call tally.join itself")
        return self._pointer

    def _wait(self, call: Callable[[], int], **about: Any) -> None:
        """Makes a call that may wait, which returns a status."""
        self._handle  # not first on the caller's thread, which a forked child does not have

        def body() -> None:
            check(call(), rank=self.rank, **about)

        self._caller.run(body, self._abandon)

    def _abandon(self, signal: str) -> None:
        self._library.tally_abort(self._handle, f"interrupted by {signal}".encode())

    @property
    def size(self) -> int:
        """Workers."""
        return self._library.tally_size(self._handle)

    @property
    def servers(self) -> int:
        return self._library.tally_servers(self._handle)

    @property
    def epoch(self) -> int:
        return self._library.tally_epoch(self._handle)

    @property
    def left(self) -> bool:
        return self._left

    def describe(self) -> str:
        """What the mode expands to: "schedule ring over tcp"."""
        return self._library.tally_describe(self._handle).decode()

    def stats(self) -> Stats:
        stats = _abi.Stats()
        check(self._library.tally_get_stats(self._handle, ctypes.byref(stats)), rank=self.rank)
        return Stats(*(getattr(stats, name) for name in Stats._fields))

    def declare_group(self, tensors: Union[Mapping[str, TensorLike], Sequence[Tuple[str, TensorLike]]],
                      name: str = "default", buckets: Optional[Sequence[Sequence[str]]] = None,
                      first_step: int = 0) -> Group:
        """Declares gradients that step together, in the same order of groups on all ranks. A tensor is given by an
        array of its shape and type, or by (shape, type), type being "float32", "float16" or "bfloat16". `buckets`:
        names, equal on all ranks; None: by bucket.cap in the reverse order of declaration. `first_step`: where a saved
        job goes on."""
        return declare(self, tensors, name, buckets, first_step)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._wait(lambda: self._library.tally_barrier(self._handle))

    def all_reduce(self, array: Any, op: str = "sum") -> Any:
        """All ranks' arrays become what `op` (sum, mean, min, max, product, and, or, xor) makes of them, in place.
        Returns the array. An array with gaps is packed and written back; a read-only one is refused."""
        number = _choice("op", op, _abi.OP)
        return self._in_place(array, lambda memory: lambda: self._library.tally_all_reduce(
            self._handle, memory.address, memory.elements, memory.dtype, number))

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """All ranks' arrays become the root's, in place. Returns the array."""
        return self._in_place(array, lambda memory: lambda: self._library.tally_broadcast(
            self._handle, memory.address, memory.elements, memory.dtype, root))

    def all_gather(self, array: Any, out: Any = None) -> Any:
        """All ranks' arrays one after the other, in `out` or a new array of shape (size, …)."""
        source = self._packed(array)
        memory = _arrays.describe(source)
        out = _output(array, out, (self.size, *memory.shape))
        target = _writable(out, memory, memory.elements * self.size)
        self._wait(lambda: self._library.tally_all_gather(self._handle, memory.address, memory.elements, memory.dtype,
                                                          target.address))
        return out

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """This rank's part, of `size` equal ones along the first dimension, of what `op` makes of all ranks' arrays."""
        number = _choice("op", op, _abi.OP)
        source = self._packed(array)
        memory = _arrays.describe(source)
        if not memory.shape or memory.shape[0] % self.size:
            raise InvalidArgument(f"reduce_scatter: expected a first dimension that {self.size} ranks can share, got "
                                  f"shape {memory.shape}")
        out = _output(array, out, (memory.shape[0] // self.size, *memory.shape[1:]))
        target = _writable(out, memory, memory.elements // self.size)
        self._wait(lambda: self._library.tally_reduce_scatter(self._handle, memory.address, target.elements,
                                                              memory.dtype, number, target.address))
        return out

    def _packed(self, array: Any) -> Any:
        if _arrays.describe(array).packed:
            return array
        return _need_copy(array)

    def _in_place(self, array: Any, bind: Callable[[_arrays.Memory], Callable[[], int]]) -> Any:
        memory = _arrays.describe(array)
        if not memory.writable:
            raise InvalidArgument("a read-only array cannot take the result: give a copy")
        packed = array if memory.packed else _need_copy(array)
        self._wait(bind(memory if memory.packed else _arrays.describe(packed)))
        if packed is not array:
            _arrays.write_back(array, packed)
        return array

    def abort(self, reason: str) -> None:
        """Ends the job on all members with an error that names this rank and the reason."""
        check(self._library.tally_abort(self._handle, reason.encode()), rank=self.rank)

    def leave(self) -> None:
        """Leaves in good order: the others are told. Again is fine."""
        if not self._left and os.getpid() == self._pid:
            self._left = True
            check(self._library.tally_leave(self._pointer), rank=self.rank)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not self._left:
            self.abort(f"{kind.__name__}: {error}")
        self.leave()


def _close(lib: Any, handle: int, caller: Caller, pid: int, held: Dict[int, List[_arrays.Memory]]) -> None:
    if os.getpid() == pid:
        caller.end()
        lib.tally_close(handle)
        held.clear()


@atexit.register
def leave_all() -> None:
    """A program that ends by an exception nobody caught tells the others why."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for client in list(_clients):
        client.__exit__(None if error is None else type(error), error, None)


def _choice(what: str, name: str, names: Sequence[str]) -> int:
    if name.upper() in names:
        return names.index(name.upper())
    raise InvalidArgument(f"{what} {name!r}: expected one of {', '.join(names).lower()}")


def _need_copy(array: Any) -> Any:
    copy = _arrays.packed_copy(array)
    if copy is None:
        raise InvalidArgument(f"{type(array).__name__} with gaps: expected numbers one after the other; copy it first")
    return copy


def _output(array: Any, out: Any, shape: Sequence[int]) -> Any:
    out = _arrays.empty_like(array, shape) if out is None else out
    if out is None:
        raise InvalidArgument(f"{type(array).__name__}: give the array for the result (out=), of shape {tuple(shape)}")
    return out


def _writable(out: Any, like: _arrays.Memory, elements: int) -> _arrays.Memory:
    memory = _arrays.describe(out)
    if not memory.writable or not memory.packed or memory.dtype != like.dtype or memory.elements != elements:
        got = [str(memory.elements), "" if memory.writable else "read-only", _abi.DTYPE[memory.dtype].lower(),
               "" if memory.packed else "with gaps"]
        raise InvalidArgument(f"out: expected {elements} writable {_abi.DTYPE[like.dtype].lower()} without gaps, got "
                              f"{' '.join(part for part in got if part)}")
    return memory


__all__ = ["Client", "Stats", "join"]
