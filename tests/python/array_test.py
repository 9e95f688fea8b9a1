"""What tally/_arrays.py reads of other people's arrays, and what it refuses; without a job."""
import array
import ctypes
import sys
import unittest

import numpy
import torch

import tally
from tally import _abi, _arrays, client

NUMPY = {"float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "int8": "INT8", "uint8": "UINT8",
         "int32": "INT32", "int64": "INT64"}


def read(memory):
    """The numbers of fp32 memory, element by element by address and strides."""
    places = numpy.ndindex(*memory.shape)
    strides = memory.strides or numpy.cumprod((1, *memory.shape[:0:-1]))[::-1][:len(memory.shape)]
    offsets = [4 * int(numpy.dot(place, strides)) if place else 0 for place in places]
    return [ctypes.c_float.from_address(memory.address + offset).value for offset in offsets]


class Reads(unittest.TestCase):
    def test_every_type_of_numpy_and_torch(self):
        for name, expected in NUMPY.items():
            for given in numpy.zeros((2, 3), name), torch.zeros((2, 3), dtype=getattr(torch, name)):
                memory = _arrays.describe(given)
                self.assertEqual((_abi.DTYPE[memory.dtype], memory.shape, memory.elements), (expected, (2, 3), 6))
                self.assertTrue(memory.packed and memory.writable)
        self.assertEqual(_arrays.describe(torch.zeros(3, dtype=torch.bfloat16)).dtype, _abi.BFLOAT16)

    def test_every_layout(self):
        base = numpy.arange(64 * 6, dtype=numpy.float32).reshape(64, 6)
        layouts = [lambda a: a, lambda a: a.T, lambda a: a[:, ::2], lambda a: a[3:9, 1:2], lambda a: a[:0]]
        for layout in layouts + [lambda a: a[::-1], lambda a: a[::-2, ::-1]]:
            memory = _arrays.describe(layout(base))
            self.assertEqual(read(memory), layout(base).ravel().tolist())
        for layout in layouts:
            memory = _arrays.describe(layout(torch.from_numpy(base)))
            self.assertEqual(read(memory), layout(base).ravel().tolist())

    def test_packed_is_known(self):
        base = numpy.zeros((4, 1, 6), numpy.float32)
        for given, packed in ((base, True), (base.T, False), (base[1:2], True), (base[:, :, ::2], False),
                              (base[:, 0], True), (base[:0, :, ::2], True)):
            self.assertEqual(_arrays.describe(given).packed, packed, given.strides)

    def test_other_buffers(self):
        self.assertEqual(read(_arrays.describe(array.array("f", [1, 2, 3]))), [1, 2, 3])
        self.assertEqual(_abi.DTYPE[_arrays.describe(bytearray(3)).dtype], "UINT8")
        self.assertEqual(_abi.DTYPE[_arrays.describe(array.array("l", [1])).dtype], "INT64")
        self.assertFalse(_arrays.describe(b"abc").writable)
        frozen = numpy.zeros(3, numpy.float32)
        frozen.flags.writeable = False
        self.assertFalse(_arrays.describe(frozen).writable)
        one = numpy.float32(7)
        self.assertEqual((read(_arrays.describe(one)), _arrays.describe(one).shape), ([7], ()))

    def test_memory_lives_and_stays_put(self):
        growing = bytearray(8)
        memory = _arrays.describe(growing)
        with self.assertRaises(BufferError):
            growing.extend(b"x")
        del memory
        growing.extend(b"x")
        described = _arrays.describe(torch.full((1000,), 3.0))
        other = [torch.full((1000,), 4.0) for _ in range(50)]
        self.assertEqual((set(read(described)), len(other)), ({3.0}, 50))

    def test_without_copy(self):
        numbers, tensor = numpy.zeros(3, numpy.float32), torch.zeros(3)
        self.assertEqual(_arrays.describe(numbers).address, numbers.ctypes.data)
        self.assertEqual(_arrays.describe(tensor).address, tensor.data_ptr())
        self.assertEqual(_arrays.describe(torch.nn.Parameter(tensor)).address, tensor.data_ptr())
        self.assertEqual(_arrays.describe(tensor[1:]).address, tensor.data_ptr() + 4)


class Refuses(unittest.TestCase):
    def refused(self, given, text, kind=tally.InvalidArgument):
        with self.assertRaises(kind) as raised:
            _arrays.describe(given)
        self.assertIn(text, str(raised.exception))

    def test_what_would_be_misread(self):
        foreign = ">f4" if sys.byteorder == "little" else "<f4"
        self.refused(numpy.zeros(3, foreign), "byte order")
        self.refused(numpy.zeros(3, bool), "'?'")
        self.refused(numpy.zeros(3, complex), "'Zd'")
        self.refused(numpy.zeros(3, "uint32"), "'I'")
        self.refused(numpy.zeros(3, [("a", "f4"), ("b", "f4")]), "buffer format")
        self.refused(numpy.zeros(4, "i1,f4")["f1"], "strides")
        self.refused([1.0, 2.0], "got list")
        self.refused(3.0, "got float")
        self.refused("text", "got str")
        self.refused(torch.zeros(3, dtype=torch.complex64), "DLPack type")
        self.refused(torch.zeros(2, 2).to_sparse(), "no plain numbers")

    def test_other_devices(self):
        class OnDevice:
            def __dlpack_device__(self):
                return (2, 0)

            def __dlpack__(self):
                raise AssertionError("not to be asked")

        self.refused(OnDevice(), "host memory", tally.Unsupported)

    def test_dlpack_of_unknown_is_not_written(self):
        class Immutable:
            def __init__(self):
                self.tensor = torch.arange(3.0)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

            def __dlpack__(self):
                return self.tensor.__dlpack__()

        memory = _arrays.describe(Immutable())
        self.assertEqual((read(memory), memory.writable), ([0, 1, 2], False))


class Settings(unittest.TestCase):
    def test_values_of_any_type(self):
        self.assertEqual(client.setting_texts({"aggregation.deterministic": True, "compression.ratio": 0.25,
                                               "bucket.cap": "4MiB", "link.connections": 2,
                                               "compression.warmup": [0.25, 0.0625]}),
                         ["aggregation.deterministic=true", "compression.ratio=0.25", "bucket.cap=4MiB",
                          "link.connections=2", "compression.warmup=0.25,0.0625"])
        for wrong in (None, {"a": 1}, ["a,b"], object()):
            with self.assertRaises(tally.InvalidArgument):
                client.setting_texts({"job.name": wrong})

    def test_an_unknown_one_names_the_nearest(self):
        for give in (lambda: tally.join(aggregation__mod="ring"),
                     lambda: tally.join(None, {"aggregation.mod": "ring"})):
            with self.assertRaises(tally.InvalidArgument) as raised:
                give()
            self.assertIn("aggregation.mode", str(raised.exception))
            self.assertIsInstance(raised.exception, ValueError)
            self.assertEqual(raised.exception.kind, "invalid argument")

    def test_a_file_that_is_not_there(self):
        with self.assertRaises(tally.Error) as raised:
            tally.join("/nowhere/job.toml")
        self.assertIn("/nowhere/job.toml", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
