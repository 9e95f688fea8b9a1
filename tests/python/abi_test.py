"""abi_test.py TALLY_H CC: tally/_abi.py says what tally.h says: functions, numbers, structs; and the library has it
all."""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from tally import _abi, _library, errors

HEADER, COMPILER = pathlib.Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
TEXT = re.sub(r"/\*.*?\*/|//[^\n]*", " ", HEADER.read_text(), flags=re.S)
HANDLES = ("tally_client", "tally_group", "tally_ticket")
SCALARS = {"tally_status": ctypes.c_int32, "tally_dtype": ctypes.c_int32, "tally_op": ctypes.c_int32,
           "tally_vote": ctypes.c_int32, "tally_device": ctypes.c_int32, "size_t": ctypes.c_size_t,
           "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32, "int": ctypes.c_int,
           "float": ctypes.c_float, "double": ctypes.c_double, "int64_t": ctypes.c_int64}
STRUCTS = {struct.C_NAME: struct for struct in _abi.STRUCTS}


def expected_type(text):
    """The ctypes of a parameter or result as C writes it."""
    base, stars = re.sub(r"\bconst\b|\*", " ", text).split()[0], text.count("*")
    if base in HANDLES or base == "void":
        if stars == 0:
            return None
        return ctypes.c_void_p if stars == 1 else ctypes.POINTER(ctypes.c_void_p)
    if base == "char" and stars == 1:
        return ctypes.c_char_p
    plain = STRUCTS.get(base) or SCALARS[base]
    for _ in range(stars):
        plain = ctypes.POINTER(plain)
    return plain


class Abi(unittest.TestCase):
    def test_every_function(self):
        declared = {}
        for result, name, arguments in re.findall(r"TALLY_API ([^;()]*?)(tally_\w+)\(([^)]*)\);", TEXT):
            parts = [] if arguments.strip() in ("", "void") else arguments.split(",")
            declared[name] = (expected_type(result), [expected_type(re.sub(r"\w+\s*$", "", part)) for part in parts])
        self.assertGreater(len(declared), 30)
        # float** is read as an address, too: the memory is viewed, not indexed.
        ours = dict(_abi.FUNCTIONS)
        floats = declared.pop("tally_output_float")
        self.assertEqual(ours.pop("tally_output_float")[0], floats[0])
        self.assertEqual(ours, declared)

    def test_every_number(self):
        found = dict(re.findall(r"\bTALLY_(\w+) = (\d+)", TEXT))
        ours = {"MAX_DIMENSIONS": str(_abi.MAX_DIMENSIONS)}
        for names in (_abi.STATUS, _abi.DTYPE, _abi.DEVICE, _abi.VOTE, _abi.OP):
            ours.update({name: str(number) for number, name in enumerate(names)})
        self.assertEqual(ours, found)

    def test_every_struct(self):
        self.assertEqual(set(STRUCTS), set(re.findall(r"\} (tally_\w+);", TEXT)))
        lines, ours = [], []
        for name, struct in STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            ours.append(f"{name} {ctypes.sizeof(struct)}")
            for field, _ in struct._fields_:
                place = getattr(struct, field)
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                             f"sizeof((({name} *)0)->{field}));")
                ours.append(f"{name}.{field} {place.offset} {place.size}")
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "sizes.c"), pathlib.Path(folder, "sizes")
            body = "\n".join(lines)
            source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{body}\n}}\n')
            subprocess.run([COMPILER, "-std=c99", source, "-o", program], check=True, timeout=60)
            shown = subprocess.run([program], check=True, text=True, capture_output=True, timeout=10).stdout
        self.assertEqual(ours, shown.splitlines())

    def test_kinds_have_classes(self):
        library = _library.library()
        for status, kind in errors.OF_STATUS.items():
            self.assertEqual(kind.kind, library.tally_status_name(status).decode())
        self.assertEqual(set(errors.OF_STATUS), set(range(1, len(_abi.STATUS))))

    def test_sizes_of_numbers(self):
        self.assertEqual(len(_abi.ITEM_BYTES), len(_abi.DTYPE))


class Finding(unittest.TestCase):
    def tearDown(self):
        _library.library.cache_clear()

    def find(self, path):
        known = os.environ["LIBTALLY"]
        try:
            os.environ["LIBTALLY"] = path
            _library.library.cache_clear()
            with self.assertRaises(errors.Error) as raised:
                _library.library()
            return raised.exception
        finally:
            os.environ["LIBTALLY"] = known

    def test_what_was_tried(self):
        error = self.find("/nowhere/libtally.so.0")
        self.assertIsInstance(error, errors.Unavailable)
        self.assertIn("/nowhere/libtally.so.0: not there", str(error))
        self.assertIn("LIBTALLY", str(error))

    def test_another_library(self):
        self.assertIn("tally_status_name", str(self.find("libc.so.6")))

    def test_another_version(self):
        with tempfile.TemporaryDirectory() as folder:
            source, other = pathlib.Path(folder, "other.c"), pathlib.Path(folder, "libother.so")
            functions = "".join(f"void {name}(void) {{}}\n" for name in _abi.FUNCTIONS if name != "tally_version")
            source.write_text(functions + 'const char *tally_version(void) { return "7.3.1"; }\n')
            subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", other], check=True, timeout=60)
            error = self.find(str(other))
        self.assertIsInstance(error, errors.Unsupported)
        self.assertIn("7.3.1", str(error))
        self.assertIn(_abi.VERSION, str(error))


if __name__ == "__main__":
    unittest.main()
