"""install_test.py BUILD CC CXX [FLAG…]: installs, then builds and runs users' programs against that, by CMake and
by pkg-config; the library shows no other symbols than the interfaces'."""
import json, os, pathlib, subprocess, sys, tempfile

CONSUMER = pathlib.Path(__file__).parent / "consumer"


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, capture_output=True, timeout=110,
                          **options).stdout


def expect(shown, expected):
    if shown != expected:
        sys.exit(f"expected {expected!r}, got {shown!r}")


def build_by_cmake(folder, prefix, compilers, flags):
    run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={compilers[0]}",
        f"-DCMAKE_CXX_COMPILER={compilers[1]}", f"-DTALLY_CONSUMER_FLAGS={';'.join(flags)}")
    run("cmake", "--build", folder)
    return folder / "consumer_c", folder / "consumer_cxx"


def build_by_pkg_config(folder, prefix, compilers, flags):
    description = next(prefix.glob("lib*/**/tally.pc"))
    found = run("pkg-config", "--cflags", "--libs", "tally",
                env=dict(os.environ, PKG_CONFIG_PATH=str(description.parent))).split()
    folder.mkdir()
    run(compilers[0], "-std=c99", "-pedantic-errors", "-Wall", "-Werror", *flags, CONSUMER / "consumer.c",
        "-o", folder / "consumer_c", *found)
    run(compilers[1], "-std=c++20", "-Wall", "-Werror", *flags, CONSUMER / "consumer.cc", "-o", folder / "consumer_cxx",
        *found)
    return folder / "consumer_c", folder / "consumer_cxx"


def check_symbols(library):
    for line in run("nm", "--dynamic", "--defined-only", "--demangle", library).splitlines():
        name = line.split(maxsplit=2)[2].removeprefix("typeinfo for ").removeprefix("vtable for ")
        if not name.startswith(("tally_", "tally::", "TALLY_0.1")):
            sys.exit(f"libtally shows a symbol that is not its interface's: {name}")
    if "TALLY_0.1" not in run("objdump", "-T", library):
        sys.exit("the symbols have no version")
    if "SONAME               libtally.so." not in run("objdump", "-p", library):
        sys.exit("the library has no SONAME")


def main():
    build, *compilers = sys.argv[1:4]
    flags = [flag for flag in sys.argv[4:] if flag]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix = folder / "usr"
        run("cmake", "--install", build, "--prefix", prefix)
        for path in ["lib/systemd/system/tally-server.service", "lib/systemd/system/tally-worker@.service",
                     "bin/tally-worker", "include/tally/worker/client.h", "include/tally/tally.h",
                     "share/doc/tally/examples/job.toml", "share/doc/tally/LICENSE",
                     "lib/python3/dist-packages/tally/py.typed"]:
            if not (prefix / path).is_file():
                sys.exit(f"not installed: {path}")
        library = next(prefix.glob("lib*/**/libtally.so"))
        check_symbols(library)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(library.parent))
        for how in build_by_cmake, build_by_pkg_config:
            in_c, in_cxx = how(folder / how.__name__, prefix, compilers, flags)
            expect(run(in_c, env=environment), "tally 0.1.0: rank 0 of 1\n")
            expect(run(in_cxx, env=environment), "tally 0.1.0: workers 1\n")
        if not flags:  # a sanitized library needs a sanitized interpreter
            python = dict(os.environ, PYTHONPATH=str(prefix / "lib/python3/dist-packages"))
            expect(run(sys.executable, "-B", "-c", "import tally; print(tally.join(job__workers=1, worker__rank=0).size)",
                       env=python), "1\n")
        explained = json.loads(run(prefix / "bin/tally", "explain", "--json", "-"))
        if not explained["rows"]:
            sys.exit("tally explain finds no recorded gradient")


try:
    main()
except subprocess.CalledProcessError as e:
    sys.exit(f"{e}\n{e.stdout}{e.stderr}")
