"""package_test.py SOURCES LIBRARY: the wheel holds what it says, and the package in it finds the library beside itself;
so does one in a prefix; every name has type hints."""
import csv
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCES, LIBRARY = pathlib.Path(sys.argv.pop(1)).resolve(), pathlib.Path(sys.argv.pop(1)).absolute()
ALONE = {name: value for name, value in os.environ.items() if name not in ("LIBTALLY", "PYTHONPATH")}
PROGRAM = "import tally; print(tally.join(job__workers=1, worker__rank=0).size, tally.__file__)"


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], check=True, text=True, capture_output=True, timeout=60,
                          env={**ALONE, **environment}).stdout.split()


class Package(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.addCleanup(self.kept.cleanup)
        self.folder = pathlib.Path(self.kept.name)

    def import_from(self, folder):
        size, file = run(sys.executable, "-B", "-c", PROGRAM, PYTHONPATH=str(folder))
        self.assertEqual((size, file), ("1", str(folder / "tally/__init__.py")))

    def test_wheel(self):
        wheel = pathlib.Path(run(sys.executable, "-B", SOURCES / "make_wheel.py", LIBRARY, self.folder)[0])
        self.assertRegex(wheel.name, r"^tally-[\d.]+-py3-none-linux_\w+\.whl$")
        target = self.folder / "site"
        with zipfile.ZipFile(wheel) as archive:
            self.assertIsNone(archive.testzip())
            names = set(archive.namelist())
            archive.extractall(target)
        record = next(target.glob("*.dist-info/RECORD"))
        self.assertEqual(names, {row[0] for row in csv.reader(record.read_text().splitlines())})
        self.assertIn("tally/py.typed", names)
        self.import_from(target)

    def test_prefix(self):
        packages = self.folder / "usr/lib/python3/dist-packages"
        shutil.copytree(SOURCES / "tally", packages / "tally", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(LIBRARY, self.folder / "usr/lib")
        self.import_from(packages)

    def test_every_public_function_has_type_hints(self):
        import tally
        import tally.torch
        found = 0
        for module in tally, tally.torch:
            for thing in (getattr(module, name) for name in module.__all__):
                members = inspect.getmembers(thing) if inspect.isclass(thing) else [("", thing)]
                for function in (member for _, member in members if inspect.isfunction(member)):
                    if function.__module__.split(".")[0] == "tally":
                        signature = inspect.signature(function)
                        hints = [p.annotation for name, p in signature.parameters.items() if name != "self"]
                        self.assertNotIn(inspect.Parameter.empty, [*hints, signature.return_annotation], function)
                        found += 1
        self.assertGreater(found, 40)


if __name__ == "__main__":
    unittest.main()
