"""What tally.h declares, once more for ctypes: numbers, structs, functions. tests/python/abi_test.py holds the two
against each other."""
import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple

VERSION = "0.1.0"

STATUS = ("OK", "INVALID_ARGUMENT", "UNAVAILABLE", "PEER_LOST", "CORRUPT", "TIMEOUT", "UNSUPPORTED", "MISMATCH",
          "INTERNAL")
DTYPE = ("FLOAT32", "FLOAT16", "BFLOAT16", "FLOAT64", "INT8", "UINT8", "INT32", "INT64")
DEVICE = ("CPU", "CUDA")
VOTE = ("COMMIT", "SKIP")
OP = ("SUM", "MEAN", "MIN", "MAX", "PRODUCT", "AND", "OR", "XOR")
MAX_DIMENSIONS = 16

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
ITEM_BYTES = (4, 2, 2, 8, 1, 1, 4, 8)  # by dtype


class Sized(ctypes.Structure):
    """A struct that begins with its size as this package knows it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class JoinOptions(Sized):
    C_NAME = "tally_join_options"
    _fields_ = [("struct_size", c_size_t), ("config_file", c_char_p), ("settings", POINTER(c_char_p)),
                ("settings_count", c_size_t)]


class Stats(Sized):
    C_NAME = "tally_stats"
    _fields_ = [("struct_size", c_size_t), ("bytes_sent", c_uint64), ("bytes_received", c_uint64),
                ("frames_sent", c_uint64), ("frames_received", c_uint64), ("steps_committed", c_uint64),
                ("steps_skipped", c_uint64), ("pool_allocations", c_uint64), ("engine_cpu_seconds", c_double),
                ("saturated", c_uint64), ("residual_l1", c_double), ("residual_bytes", c_uint64)]


class Array(Sized):
    C_NAME = "tally_array"
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("device", c_int32),
                ("dimensions", c_uint32), ("shape", POINTER(c_uint64)), ("strides", POINTER(c_int64))]


class Tensor(Sized):
    C_NAME = "tally_tensor"
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_int32), ("dimensions", c_uint32),
                ("shape", POINTER(c_uint64))]


class GroupOptions(Sized):
    C_NAME = "tally_group_options"
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("bucket_sizes", POINTER(c_uint32)),
                ("bucket_count", c_size_t), ("bucket_tensors", POINTER(c_uint32)), ("first_step", c_uint64)]


class StepResult(Sized):
    C_NAME = "tally_step_result"
    _fields_ = [("struct_size", c_size_t), ("step", c_uint64), ("committed", c_int32), ("reason", ctypes.c_char * 256)]


# Of any number of dimensions: a type made for each number would be made anew each time.
Shape = c_uint64 * MAX_DIMENSIONS
Strides = c_int64 * MAX_DIMENSIONS

STRUCTS = (JoinOptions, Stats, Array, Tensor, GroupOptions, StepResult)

_status, _handle, _out = c_int32, c_void_p, POINTER(c_void_p)

# By name: what it returns, what it takes. Handles and pointers to handles are c_void_p.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "tally_status_name": (c_char_p, [_status]),
    "tally_last_error": (c_char_p, []),
    "tally_version": (c_char_p, []),
    "tally_join": (_status, [POINTER(JoinOptions), _out]),
    "tally_leave": (_status, [_handle]),
    "tally_abort": (_status, [_handle, c_char_p]),
    "tally_close": (None, [_handle]),
    "tally_rank": (c_uint32, [_handle]),
    "tally_size": (c_uint32, [_handle]),
    "tally_local_rank": (c_uint32, [_handle]),
    "tally_servers": (c_uint32, [_handle]),
    "tally_epoch": (c_uint64, [_handle]),
    "tally_describe": (c_char_p, [_handle]),
    "tally_get_stats": (_status, [_handle, POINTER(Stats)]),
    "tally_declare_group": (_status, [_handle, POINTER(Tensor), c_size_t, POINTER(GroupOptions), _out]),
    "tally_bucket_count": (c_size_t, [_handle]),
    "tally_bucket": (_status, [_handle, c_uint32, POINTER(POINTER(c_uint32)), POINTER(c_size_t)]),
    "tally_input": (_status, [_handle, c_uint32, _out, POINTER(c_size_t)]),
    "tally_output": (_status, [_handle, c_uint32, _out, POINTER(c_size_t)]),
    "tally_output_float": (_status, [_handle, c_uint32, _out, POINTER(c_size_t)]),
    "tally_set_weight": (_status, [_handle, c_float]),
    "tally_set_loss_scale": (_status, [_handle, c_float]),
    "tally_set_learning_rate": (_status, [_handle, c_float]),
    "tally_keep": (_status, [_handle, c_uint32]),
    "tally_submit": (_status, [_handle, c_uint32, POINTER(Array), c_size_t, _out]),
    "tally_wait": (_status, [_handle]),
    "tally_test": (_status, [_handle, POINTER(c_int)]),
    "tally_ticket_free": (None, [_handle]),
    "tally_end_step": (_status, [_handle, c_int32, POINTER(StepResult)]),
    "tally_step": (c_uint64, [_handle]),
    "tally_export_state": (_status, [_handle, _out, POINTER(c_size_t)]),
    "tally_import_state": (_status, [_handle, c_void_p, c_size_t]),
    "tally_free": (None, [c_void_p]),
    "tally_all_reduce": (_status, [_handle, c_void_p, c_size_t, c_int32, c_int32]),
    "tally_broadcast": (_status, [_handle, c_void_p, c_size_t, c_int32, c_uint32]),
    "tally_all_gather": (_status, [_handle, c_void_p, c_size_t, c_int32, c_void_p]),
    "tally_reduce_scatter": (_status, [_handle, c_void_p, c_size_t, c_int32, c_int32, c_void_p]),
    "tally_barrier": (_status, [_handle]),
}


def declare(library: Any) -> None:
    """Gives the functions of a loaded library their types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
