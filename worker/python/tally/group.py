"""A set of gradients that step together: hand buckets over, take the means, end the step."""
import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _arrays
from ._library import check, library
from .errors import InvalidArgument

if TYPE_CHECKING:
    from .client import Client

TensorLike = Any  # an array, or (shape, type)
TensorId = Union[int, str]
_TYPES = _abi.DTYPE[:3]


class Tensor(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    dtype: str  # "float32", "float16", "bfloat16"


class StepResult(NamedTuple):
    step: int
    committed: bool
    reason: str  # of a skip: "rank 1: non-finite value in fc1.weight"


class Ticket:
    """The completion of one bucket. Any thread."""

    def __init__(self, group: "Group", bucket: int, step: int, handle: int) -> None:
        self._group, self._bucket, self._step, self._handle = group, bucket, step, handle
        self._free = weakref.finalize(self, library().tally_ticket_free, handle)
        self._free.atexit = False

    def wait(self) -> None:
        """Waits until the bucket's means are there, at most step.timeout. They count once the step has ended."""
        self._group._client._wait(lambda: library().tally_wait(self._handle), step=self._step, bucket=self._bucket)

    def done(self) -> bool:
        """Whether wait would return at once."""
        answer = ctypes.c_int()
        check(library().tally_test(self._handle, ctypes.byref(answer)), step=self._step, bucket=self._bucket)
        return answer.value != 0


class Group:
    """Made by Client.declare_group, lives as long as its client. A tensor is named by its number in this rank's order
    of declaration or by its name."""

    def __init__(self, client: "Client", handle: int, name: str, tensors: Sequence[Tensor]) -> None:
        self._client, self._pointer, self._library = client, handle, library()
        self.name, self.tensors = name, tuple(tensors)
        self._numbers: Dict[str, int] = {tensor.name: number for number, tensor in enumerate(tensors)}
        self._held = client._held.setdefault(handle, [])
        self.buckets: Tuple[Tuple[int, ...], ...] = tuple(
            self._read_bucket(number) for number in range(self._library.tally_bucket_count(handle)))

    @property
    def _handle(self) -> int:
        self._client._handle  # raises in a forked child
        return self._pointer

    def _read_bucket(self, bucket: int) -> Tuple[int, ...]:
        members, size = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_size_t()
        self._check(self._library.tally_bucket(self._pointer, bucket, ctypes.byref(members), ctypes.byref(size)))
        return tuple(members[:size.value])

    def _check(self, status: int, bucket: Optional[int] = None) -> None:
        if status:
            check(status, rank=self._client.rank, step=self.step, bucket=bucket)

    def number(self, tensor: TensorId) -> int:
        """A tensor's number."""
        if isinstance(tensor, str) and tensor in self._numbers:
            return self._numbers[tensor]
        if isinstance(tensor, int) and 0 <= tensor < len(self.tensors):
            return tensor
        raise InvalidArgument(f"group {self.name} has no tensor {tensor!r}", rank=self._client.rank)

    @property
    def step(self) -> int:
        """The number of the open step."""
        return self._library.tally_step(self._pointer)

    def input(self, tensor: TensorId) -> Any:
        """The library's own memory for a tensor's gradient (zero at first): what is written there is handed over
        without a copy. Not to be written between submit of its bucket and the end of end_step. A numpy array (bf16 as
        uint16, its bits), without numpy a memoryview."""
        address, _ = self._memory(self._library.tally_input, tensor)
        number = self.number(tensor)
        return _arrays.view_of(address, self._dtype(number), self.tensors[number].shape, self._client, True)

    def output(self, tensor: TensorId) -> Any:
        """The mean over the ranks, of the tensor's type, read-only. Valid after wait until the next step's first
        submit."""
        address, _ = self._memory(self._library.tally_output, tensor)
        number = self.number(tensor)
        return _arrays.view_of(address, self._dtype(number), self.tensors[number].shape, self._client, False)

    def output_float(self, tensor: TensorId) -> Any:
        """The mean as fp32, also of tensors of 16 bits."""
        address, _ = self._memory(self._library.tally_output_float, tensor)
        return _arrays.view_of(address, _abi.FLOAT32, self.tensors[self.number(tensor)].shape, self._client, False)

    def raw_output_float(self, tensor: int) -> Any:
        """As output_float, as a flat buffer of bytes that is not protected against writing: for torch.frombuffer."""
        address, elements = self._memory(self._library.tally_output_float, tensor)
        return _arrays.raw_view(address, 4 * elements, self._client)

    def _dtype(self, number: int) -> int:
        return _abi.DTYPE.index(self.tensors[number].dtype.upper())

    def _memory(self, function: Any, tensor: TensorId) -> Tuple[int, int]:
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(function(self._handle, self.number(tensor), ctypes.byref(address), ctypes.byref(size)))
        return address.value or 0, size.value

    def set_weight(self, weight: float) -> None:
        """This rank's weight in the step that begins (default 1). Before the step's first submit, as the next two."""
        self._check(self._library.tally_set_weight(self._handle, weight))

    def set_loss_scale(self, scale: float) -> None:
        """What the loss was multiplied by, equal on all ranks; means come without it."""
        self._check(self._library.tally_set_loss_scale(self._handle, scale))

    def set_learning_rate(self, rate: float) -> None:
        """What the means are applied with (compression.ef_lr_correction), equal on all ranks."""
        self._check(self._library.tally_set_learning_rate(self._handle, rate))

    def keep(self, tensor: TensorId) -> None:
        """No gradient of the tensor here in this step: zeros count, and its residual stays. Before its bucket's
        submit."""
        self._check(self._library.tally_keep(self._handle, self.number(tensor)))

    def submit(self, bucket: int, arrays: Optional[Sequence[Any]] = None) -> Ticket:
        """Hands a bucket over; does not wait for others. `arrays`: one for each tensor of the bucket, in its order;
        None: what was written to `input`. An array without gaps is read where it lies and must stay as it is until
        end_step; another one is copied first; one of another shape, type or device is refused, and nothing was handed
        over."""
        ticket = ctypes.c_void_p()
        memories = [_arrays.describe(array) for array in arrays or ()]
        given = (_abi.Array * max(len(memories), 1))()
        for place, memory in enumerate(memories):
            memory.fill(given[place])
        step = self.step
        self._check(self._library.tally_submit(self._handle, bucket, None if arrays is None else given, len(memories),
                                               ctypes.byref(ticket)), bucket)
        self._held.extend(memories)
        return Ticket(self, bucket, step, ticket.value or 0)

    def end_step(self, skip: bool = False) -> StepResult:
        """Hands nothing more over in this step (a bucket that was not submitted counts as zeros), waits for all means
        and for the verdict; any rank's `skip` skips for all. After an error the step did not end."""
        result = _abi.StepResult()
        handle = self._handle
        self._client._wait(lambda: self._library.tally_end_step(handle, int(skip), ctypes.byref(result)),
                           step=self.step)
        self._held.clear()
        return StepResult(result.step, result.committed != 0, result.reason.decode(errors="replace"))

    def export_state(self) -> bytes:
        """What this rank's codecs carry from step to step, for a checkpoint; between steps only."""
        state, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._client._wait(lambda: self._library.tally_export_state(self._handle, ctypes.byref(state),
                                                                    ctypes.byref(size)))
        try:
            return ctypes.string_at(state, size.value)
        finally:
            self._library.tally_free(state)

    def import_state(self, state: bytes) -> None:
        """Puts back what the same rank exported, on all ranks or none, in a group whose next step is the one of
        then."""
        self._client._wait(lambda: self._library.tally_import_state(self._handle, state, len(state)))


def _read_tensor(name: str, given: TensorLike) -> Tensor:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str):
        shape, dtype = tuple(int(size) for size in given[0]), given[1]
    else:
        memory = _arrays.describe(given)
        shape, dtype = memory.shape, _abi.DTYPE[memory.dtype].lower()
    if len(shape) > _abi.MAX_DIMENSIONS:
        raise InvalidArgument(f"tensor {name} has {len(shape)} dimensions: expected at most {_abi.MAX_DIMENSIONS}")
    if dtype.upper() not in _TYPES:
        raise InvalidArgument(f"tensor {name}: expected float32, float16 or bfloat16, got {dtype}")
    return Tensor(name, shape, dtype.lower())


def declare(client: "Client", tensors: Union[Mapping[str, TensorLike], Sequence[Tuple[str, TensorLike]]], name: str,
            buckets: Optional[Sequence[Sequence[str]]], first_step: int) -> Group:
    """Client.declare_group."""
    pairs = list(tensors.items()) if isinstance(tensors, Mapping) else list(tensors)
    read = [_read_tensor(key, given) for key, given in pairs]
    numbers = {tensor.name: number for number, tensor in enumerate(read)}
    given, alive = (_abi.Tensor * max(len(read), 1))(), []
    for place, tensor in enumerate(read):
        shape = _abi.Shape(*tensor.shape)
        alive.append(shape)
        given[place] = _abi.Tensor(name=tensor.name.encode(), dtype=_TYPES.index(tensor.dtype.upper()),
                                   dimensions=len(tensor.shape), shape=shape)
    options = _abi.GroupOptions(name=name.encode(), first_step=first_step)
    if buckets is not None:
        unknown = [key for bucket in buckets for key in bucket if key not in numbers]
        if unknown:
            raise InvalidArgument(f"group {name}: its buckets name tensors that it does not have: {', '.join(unknown)}")
        members = [numbers[key] for bucket in buckets for key in bucket]
        options.bucket_sizes = (ctypes.c_uint32 * len(buckets))(*(len(bucket) for bucket in buckets))
        options.bucket_tensors = (ctypes.c_uint32 * len(members))(*members)
        options.bucket_count = len(buckets)
    handle = ctypes.c_void_p()
    client._wait(lambda: client._library.tally_declare_group(client._handle, given, len(read), ctypes.byref(options),
                                                             ctypes.byref(handle)))
    return Group(client, handle.value or 0, name, read)
