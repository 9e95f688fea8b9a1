"""make_wheel.py LIBRARY FOLDER: a wheel of the package and the built libtally.so for any Python 3 on this kind of
machine.

By hand, as nothing is compiled: a wheel is a zip archive with three files that say what is in it. What libtally itself
needs (libzmq, Cap'n Proto, …) comes from the system, so a wheel is for the distribution that it was built on.
"""
import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def make(library: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The wheel's path."""
    version = re.search(r'^VERSION = "(.+)"$', (HERE / "tally/_abi.py").read_text(), re.M)[1]
    tag = f"py3-none-linux_{platform.machine()}"
    about = f"tally-{version}.dist-info"
    files = {f"tally/{path.name}": path.read_bytes() for path in sorted((HERE / "tally").iterdir()) if path.is_file()}
    files[f"tally/libtally.so.{version.split('.')[0]}"] = library.read_bytes()
    files[f"{about}/METADATA"] = (f"Metadata-Version: 2.1\nName: tally\nVersion: {version}\nRequires-Python: >=3.9\n"
                                  "Summary: Gradient aggregation for training on several machines\n"
                                  "License: Apache-2.0\n").encode()
    files[f"{about}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: tally\nRoot-Is-Purelib: false\nTag: {tag}\n").encode()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    path = folder / f"tally-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])))
