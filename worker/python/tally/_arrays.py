"""Other people's arrays as memory: the buffer protocol (numpy, bytearray, array.array, memoryview), else DLPack
(torch). What cannot be read right is refused here: another byte order or type, a device, pointers in place of
numbers."""
import ctypes
import sys
from typing import Any, Optional, Sequence

from . import _abi
from .errors import InvalidArgument, Unsupported

_OF_FORMAT = {"f": "FLOAT32", "e": "FLOAT16", "d": "FLOAT64", "b": "INT8", "B": "UINT8", "i": "INT32"}
_OF_DLPACK = {(2, 32): "FLOAT32", (2, 16): "FLOAT16", (4, 16): "BFLOAT16", (2, 64): "FLOAT64", (0, 8): "INT8",
              (1, 8): "UINT8", (0, 32): "INT32", (0, 64): "INT64"}
_TYPES = ", ".join(name.lower() for name in _abi.DTYPE)


class Memory:
    """Where an array's numbers are. Keeps the array alive. Strides count elements; none: row-major without gaps."""

    def __init__(self, owner: Any, address: int, dtype: int, shape: Sequence[int], strides: Optional[Sequence[int]],
                 writable: bool) -> None:
        if len(shape) > _abi.MAX_DIMENSIONS:
            raise InvalidArgument(f"an array of {len(shape)} dimensions: expected at most {_abi.MAX_DIMENSIONS}")
        self.owner, self.address, self.dtype = owner, address, dtype
        self.shape, self.writable = tuple(shape), writable
        self.elements = count(self.shape)
        self.strides = None if strides is None or _row_major(self.shape, strides) else tuple(strides)

    @property
    def packed(self) -> bool:
        return self.strides is None

    def fill(self, entry: _abi.Array) -> None:
        """As tally_submit takes it. In place: many small objects in each step would keep the garbage collector busy."""
        entry.struct_size, entry.data, entry.dtype = ctypes.sizeof(_abi.Array), self.address, self.dtype
        entry.dimensions, entry.shape = len(self.shape), _abi.Shape(*self.shape)
        if self.strides is not None:
            entry.strides = _abi.Strides(*self.strides)


def count(shape: Sequence[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return count(shape) == 0
        expected *= size
    return True


def describe(array: Any) -> Memory:
    """The memory of an array. Errors: InvalidArgument, Unsupported, saying what was expected."""
    if isinstance(array, Memory):
        return array
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError):
        if hasattr(array, "__dlpack__"):
            return _from_dlpack(array)
        raise InvalidArgument(f"expected an array (numpy, torch, the buffer protocol or DLPack), got {_named(array)}") \
            from None
    return _from_buffer(array, view)


def _named(array: Any) -> str:
    kind = type(array)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_PYBUF_FULL_RO = 0x11C
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int], ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None


def _address(view: memoryview) -> int:
    """Of a view's first number, also where it is read-only; good while the view lives."""
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), _PYBUF_FULL_RO)
    address = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return address


def _from_buffer(array: Any, view: memoryview) -> Memory:
    letters = view.format
    order = letters[0] if letters[:1] in ("<", ">", "=", "@", "!") else "@"
    letter = letters.lstrip("<>=@!")
    name = {4: "INT32", 8: "INT64"}.get(view.itemsize) if letter in ("i", "l", "q") else _OF_FORMAT.get(letter)
    foreign = order in (">", "!") if sys.byteorder == "little" else order == "<"
    if name is None or (foreign and view.itemsize > 1):
        raise InvalidArgument(f"{_named(array)} of buffer format {view.format!r}: expected {_TYPES} in this machine's "
                              "byte order; convert it first")
    dtype = _abi.DTYPE.index(name)
    if view.suboffsets and any(offset >= 0 for offset in view.suboffsets):
        raise InvalidArgument(f"{_named(array)}: expected numbers, got pointers to them (suboffsets)")
    if any(stride % view.itemsize for stride in view.strides):
        raise InvalidArgument(f"{_named(array)}: strides of {view.strides} bytes are no multiples of {view.itemsize}; "
                              "copy it")
    strides = [stride // view.itemsize for stride in view.strides]
    return Memory(view, _address(view), dtype, view.shape, strides, not view.readonly)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DLPACK_NAME = b"dltensor"
_DLPACK_HOST = (1, 3)  # plain, and pinned for CUDA
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _from_dlpack(array: Any) -> Memory:
    """The capsule stays unconsumed: its own destructor frees it, and `owner` holds it and the array."""
    device = tuple(array.__dlpack_device__())
    if device[0] not in _DLPACK_HOST:
        raise Unsupported(f"{_named(array)} on device {device}: this build takes host memory only; copy it there first")
    if hasattr(array, "is_neg") and array.is_neg():
        raise InvalidArgument(f"{_named(array)} is the negative of what its memory holds; give its resolve_neg()")
    detached = array.detach() if hasattr(array, "detach") else array
    try:
        capsule = detached.__dlpack__()
    except Exception as why:  # whatever the array's own library says of sparse, conjugated, … ones
        raise InvalidArgument(f"{_named(array)} gives no plain numbers: {why}") from why
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, _DLPACK_NAME))
    name = _OF_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise InvalidArgument(f"{_named(array)} of DLPack type {(tensor.code, tensor.bits, tensor.lanes)}: expected "
                              f"{_TYPES}")
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    # DLPack does not say what may be written; torch's tensors may, jax's arrays for one may not.
    return Memory((detached, capsule), (tensor.data or 0) + tensor.byte_offset, _abi.DTYPE.index(name), shape, strides,
                  is_torch(array))


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def packed_copy(array: Any) -> Any:
    """A copy without gaps of a numpy array or torch tensor, else None."""
    if is_torch(array):
        return array.detach().contiguous()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return numpy.array(array, order="C")
    return None


def write_back(array: Any, packed: Any) -> None:
    """Into what packed_copy was made of."""
    if is_torch(array):
        array.detach().copy_(packed)
    else:
        array[...] = packed


def empty_like(array: Any, shape: Sequence[int]) -> Any:
    """A new array of the same library and type, else None."""
    if is_torch(array):
        return array.detach().new_empty(tuple(shape))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return numpy.empty(tuple(shape), dtype=array.dtype)
    return None


_LETTERS = {_abi.FLOAT32: "f", _abi.FLOAT16: "H", _abi.BFLOAT16: "H"}
_NUMPY = {_abi.FLOAT32: "float32", _abi.FLOAT16: "float16", _abi.BFLOAT16: "uint16"}


def view_of(address: int, dtype: int, shape: Sequence[int], owner: Any, writable: bool) -> Any:
    """The library's memory as a numpy array (bf16 as uint16, its bits), or without numpy as a memoryview (both 16-bit
    types as bits). `owner` lives as long as the view."""
    memory = raw_view(address, count(shape) * _abi.ITEM_BYTES[dtype], owner)
    try:
        import numpy
    except ImportError:
        view = memoryview(memory).cast("B").cast(_LETTERS[dtype])
        if count(shape):
            view = view.cast("B").cast(_LETTERS[dtype], tuple(shape))
        return view if writable else view.toreadonly()
    array = numpy.frombuffer(memory, dtype=_NUMPY[dtype]).reshape(tuple(shape))
    array.flags.writeable = writable
    return array


def raw_view(address: int, size: int, owner: Any) -> Any:
    """`size` bytes at an address, with the buffer protocol."""
    memory = (ctypes.c_char * size).from_address(address) if size else (ctypes.c_char * 0)()
    memory.owner = owner
    return memory
