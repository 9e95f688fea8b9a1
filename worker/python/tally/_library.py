"""Finds, loads and checks libtally, once, when it is first needed."""
import ctypes
import functools
import os
import pathlib
import sysconfig
from typing import Any, Iterator, Optional

from . import _abi
from .errors import OF_STATUS, Error, Internal, Unavailable, Unsupported

SONAME = "libtally.so." + _abi.VERSION.split(".")[0]
VARIABLE = "LIBTALLY"  # TALLY_… are settings, and unknown ones are errors


def candidates() -> Iterator[str]:
    """Where libtally may be: as LIBTALLY says and nowhere else; beside this package (a wheel); in the lib folders of
    the prefix that the package was installed to; where the system looks."""
    named = os.environ.get(VARIABLE)
    if named:
        yield named
        return
    package = pathlib.Path(__file__).resolve().parent
    yield str(package / SONAME)
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in package.parents:
        if folder.name in ("lib", "lib64"):
            for inside in (folder, folder / multiarch):
                yield str(inside / SONAME)
    yield SONAME


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """The loaded library. Errors: Unavailable, saying what was tried; Unsupported if it is another version's."""
    tried = []
    for path in candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(f"{path}: not there")
            continue
        try:
            loaded = ctypes.CDLL(path)
            _abi.declare(loaded)
        except (OSError, AttributeError) as why:
            tried.append(f"{path}: {why}")
            continue
        version = loaded.tally_version().decode()
        if version.split(".")[:2] != _abi.VERSION.split(".")[:2]:
            raise Unsupported(f"{path} is version {version}, this package is for {_abi.VERSION}: install both from one "
                              f"release, or name the library in {VARIABLE}")
        return loaded
    raise Unavailable(f"{SONAME} was not found (install it, or name it in {VARIABLE}): " + "; ".join(tried))


def check(status: int, rank: Optional[int] = None, step: Optional[int] = None, bucket: Optional[int] = None) -> None:
    """Raises what a call of this thread's failed with."""
    if status == 0:
        return
    text = library().tally_last_error().decode(errors="replace")
    kind = OF_STATUS.get(status, Internal)
    raise kind(text, rank=rank, step=step, bucket=bucket)


__all__ = ["Error", "check", "library"]
