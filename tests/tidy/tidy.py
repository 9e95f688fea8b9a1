"""tidy.py ROOT [COMPILE_COMMANDS]: rules that a compiler does not check, each a function that yields "place: message".

Exit status 1 if any is broken. Every rule has a seeded violation in tidy_test.py. To add one: a function and a line in
RULES. Text that a rule looks for is written here in pieces, so that this file passes itself.
"""
import functools, json, pathlib, re, sys

# The arrows: who may include what. The longest prefix that fits names a file's layer.
BASE = ["schemas"]
COMMON = BASE + ["common", "compress/codecs.inc"]  # the list gives configurations the codecs' names
COMPRESS = COMMON + ["compress"]
CORE = COMPRESS + ["server/core"]
ARROWS = {
    "schemas": BASE,
    "common": COMMON,
    "compress": COMPRESS,
    "server/core": CORE,
    "server": CORE + ["server"],
    "worker": CORE + ["worker"],
}
ANYTHING = ("tests", "benchmarks")

# Layers without input, output, threads or a clock of their own: the simulation and the proofs rest on it. HOSTS drive
# them from an event loop.
PURE = ("common/schedule", "common/reduce", "compress", "server/core")
HOSTS = ("server/core/coordinator_host", "server/core/owner_host", "server/core/membership", "server/core/data_links")
IMPURE = re.compile(r'#include ("common/(loop|loop_asio)\.h"|<(sys/|netinet/|arpa/|boost/asio|zmq)'
                    r'|<(unistd\.h|fcntl\.h|poll\.h|thread|fstream|iostream)>)'
                    r'|\b(steady|system|high_resolution)_clock::now|\bSteadyClock\b')

# A library's headers stay where its work is done.
LIBRARIES = {
    r"zmq": ("common/transport",),
    r"boost/(asio|system)": ("common/loop", "common/transport", "worker", "server"),
    r"capnp/|kj/": ("common", "worker/agent/message"),
    r"spdlog/": ("common/log.cc",),
    r"toml\+\+/": ("common/config",),
    r"CLI/": ("worker/cli", "worker/daemon", "server"),
    r"hwy/": ("common/reduce", "compress"),
    r"Eigen/": ("benchmarks",),
    r"systemd/": ("server", "worker/daemon"),
}
PUBLIC_HEADER = "worker/client.h"

LONG_LINE, TOO_LONG_LINE, LONG_FILE, TOO_LONG_FILE, HEAD_LINES = 120, 140, 450, 700, 5
PRODUCT = ("common", "compress", "server", "worker")
SOURCES = (".cc", ".h", ".cu", ".cuh", ".inc")
TEXTS = SOURCES + (".py", ".md", ".txt", ".cmake", ".capnp", ".toml", ".json", ".in", ".sh", ".service", "")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")


def inside(name, folders):
    return any(name == folder or name.startswith(folder + "/") or name.startswith(folder + ".") for folder in folders)


class Tree:
    """The files of a source tree by name from its root; build folders and hidden ones (but .ci) left out."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.names = sorted(self._walk(self.root, ""))

    def _walk(self, folder, prefix):
        for entry in folder.iterdir():
            name = prefix + entry.name
            if entry.is_dir():
                if name == ".ci" or not entry.name.startswith((".", "build", "__pycache__")):
                    yield from self._walk(entry, name + "/")
            elif entry.is_file() and not entry.is_symlink():
                yield name

    @functools.lru_cache(maxsize=None)
    def lines(self, name):
        return (self.root / name).read_text(encoding="utf-8").splitlines()

    def named(self, suffixes, folders=None):
        return [n for n in self.names if pathlib.PurePath(n).suffix in suffixes and (not folders or inside(n, folders))]

    def includes(self, name):
        """(line number, "path" or <path>) of each include."""
        for number, line in enumerate(self.lines(name), 1):
            found = re.match(r'\s*#\s*include\s*(["<][^">]+[">])', line)
            if found:
                yield number, found[1]


def arrows(tree):
    """Includes follow the layers, name the file from the root, and never point at tests, benchmarks or deploy."""
    for name in tree.named(SOURCES):
        layer = max((a for a in ARROWS if inside(name, [a])), key=len, default=None)
        for number, include in tree.includes(name):
            if include[0] == "<":
                continue
            target = include[1:-1]
            made = target.startswith("schemas/") and target.endswith(".capnp.h")
            if not made and target not in tree.names:
                yield f"{name}:{number}: no such file from the root: {target}"
            elif made and target[:-2] not in tree.names:
                yield f"{name}:{number}: no such schema: {target}"
            elif layer is None and not inside(name, ANYTHING):
                yield f"{name}:{number}: a source outside the layers"
            elif layer and not inside(target, ARROWS[layer]):
                yield f"{name}:{number}: {layer} must not include {target}"
            elif layer == "server" and not inside(target, ["server", "common", "schemas", "compress"]):
                yield f"{name}:{number}: {layer} must not include {target}"


def pure(tree):
    """Schedules, reductions, codecs and the server's core do no I/O and read no clock."""
    for name in tree.named(SOURCES, PURE):
        if inside(name, HOSTS):
            continue
        for number, line in enumerate(tree.lines(name), 1):
            if IMPURE.search(line.split("//")[0]):
                yield f"{name}:{number}: not in a pure layer: {line.strip()}"


def libraries(tree):
    """Third-party headers stay in the files that do their work."""
    for name in tree.named(SOURCES):
        if inside(name, ["tests", "benchmarks"]):
            continue
        for number, include in tree.includes(name):
            for library, homes in LIBRARIES.items():
                if re.match("<" + library, include) and not any(name.startswith(home) for home in homes):
                    yield f"{name}:{number}: {include} belongs into {', '.join(homes)}"


def public_headers(tree):
    """What users include is standard C++ only."""
    queue, seen = [PUBLIC_HEADER], set()
    while queue:
        name = queue.pop()
        if name in seen or name not in tree.names:
            continue
        seen.add(name)
        for number, include in tree.includes(name):
            if include[0] == '"':
                queue.append(include[1:-1])
            elif "/" in include or include.endswith(".hpp>"):
                yield f"{name}:{number}: {PUBLIC_HEADER} reaches {include}"
        if any(re.search(r"\b(boost|zmq|capnp|spdlog|asio)::", line.split("//")[0]) for line in tree.lines(name)):
            yield f"{name}: {PUBLIC_HEADER} reaches a third-party type here"


def dead_files(tree, commands=None):
    """Every header is used by another file, every source is in a target, every schema and list is named."""
    used = {}
    for name in tree.named(SOURCES):
        for _, include in tree.includes(name):
            used.setdefault(include[1:-1], set()).add(name)
    for name in tree.named((".h", ".cuh", ".inc")):
        own = str(pathlib.PurePath(name).with_suffix(".cc"))
        if name != PUBLIC_HEADER and not used.get(name, set()) - {own}:
            yield f"{name}: nobody includes it"
    lists = "\n".join("\n".join(tree.lines(n)) for n in tree.names if n.endswith(("CMakeLists.txt", ".cmake")))
    for name in tree.named((".capnp",)) + tree.named((".py",), ["tests"]):
        if not re.search(rf"\b{pathlib.PurePath(name).stem.removesuffix('_test')}\b", lists):
            yield f"{name}: no CMake file names it"
    if commands is not None:
        compiled = {str(pathlib.Path(entry["file"]).resolve()) for entry in commands}
        for name in tree.named((".cc", ".cu")):
            # A user's project of its own is compiled against what was installed.
            if not inside(name, ["tests/deploy/consumer"]) and str((tree.root / name).resolve()) not in compiled:
                yield f"{name}: in no target"


def shape(tree):
    """Length of lines and files, file heads, include guards, blanks at line ends."""
    for name in tree.named(SOURCES + (".py", ".cmake", ".capnp", ".toml")) + tree.named(("",), ["deploy", ".ci"]):
        lines = tree.lines(name)
        if len(lines) > TOO_LONG_FILE:
            yield f"{name}: {len(lines)} lines (at most {TOO_LONG_FILE})"
        for number, line in enumerate(lines, 1):
            if len(line) > TOO_LONG_LINE:
                yield f"{name}:{number}: {len(line)} columns (at most {LONG_LINE})"
            if line != line.rstrip() or "\t" in line:
                yield f"{name}:{number}: a tab, or blanks at the end"
    for name in tree.named((".h",)):
        if "#pragma once" not in tree.lines(name):
            yield f"{name}: no #pragma once"
    for name in tree.named((".h", ".cc"), PRODUCT):
        head = [line.startswith("//") for line in tree.lines(name)] + [False]
        if name.endswith(".h") and not head[0]:
            yield f"{name}: does not begin with a comment that says what it is for"
        if head.index(False) > HEAD_LINES:
            yield f"{name}: the comment at its head has more than {HEAD_LINES} lines"


WORDS = re.compile(r"\b(" + "|".join(["TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK"]) + r")\b")
MACHINE = re.compile(r"(?<![\w.])/(wo" r"rk|var/t" r"mp|ho" r"me|ro" r"ot)/")


def words(tree):
    """No unfinished business, no path of somebody's machine."""
    for name in tree.names:
        if pathlib.PurePath(name).suffix not in TEXTS or name == "LICENSE":
            continue
        for number, line in enumerate(tree.lines(name), 1):
            for pattern in (WORDS, MACHINE):
                if found := pattern.search(line):
                    yield f"{name}:{number}: {found[0]}"


def environment(tree):
    """Only common/config reads the environment."""
    for name in tree.named(SOURCES, PRODUCT):
        if inside(name, ["common/config"]):
            continue
        for number, line in enumerate(tree.lines(name), 1):
            if re.search(r"\b(secure_)?getenv\b|\benviron\b", line.split("//")[0]):
                yield f"{name}:{number}: reads the environment"


def documented_paths(tree):
    """Paths that the documents name exist; `<name>` and `*` stand for any name, build/ is made later."""
    tops = {n.split("/")[0] for n in tree.names if "/" in n}
    for name in DOCUMENTS:
        if name not in tree.names:
            continue
        home = str(pathlib.PurePath(name).parent)
        for number, line in enumerate(tree.lines(name), 1):
            for path in re.findall(r"`([\w./<>*-]+)`|\]\(([\w./-]+)\)", line):
                linked = bool(path[1])
                path = path[1] or path[0]
                top = path.split("/")[0]
                if not linked and ("/" not in path or top == "build" or not (top in tops or path.endswith(SOURCES))):
                    continue
                bases = [tree.root, tree.root / home] if linked else [tree.root]
                pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
                if not any(any(base.glob(pattern)) for base in bases):
                    yield f"{name}:{number}: no such path: {path}"


def schemas(tree):
    """Two schemas that declare one name in one namespace make two classes of one name, of which the linker takes either."""
    seen = {}
    for name in tree.named((".capnp",)):
        space = re.search(r'namespace\("([^"]+)"\)', "\n".join(tree.lines(name)))
        for number, line in enumerate(tree.lines(name), 1):
            declared = re.match(r"(?:struct|enum)\s+(\w+)", line)
            if declared and (other := seen.setdefault((space and space[1], declared[1]), name)) != name:
                yield f"{name}:{number}: {declared[1]} is in {other}, too, in the same namespace"


RULES = [arrows, pure, libraries, public_headers, shape, words, environment, documented_paths, schemas]


def main():
    tree = Tree(sys.argv[1])
    commands = json.loads(pathlib.Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else None
    broken = [found for rule in RULES for found in rule(tree)] + list(dead_files(tree, commands))
    for found in broken:
        print(found)
    for name in tree.named(SOURCES):
        long_lines = sum(len(line) > LONG_LINE for line in tree.lines(name))
        if long_lines:
            print(f"note: {name}: {long_lines} lines of more than {LONG_LINE} columns")
        if len(tree.lines(name)) > LONG_FILE:
            print(f"note: {name}: {len(tree.lines(name))} lines, more than nine in ten have")
    print(f"{len(tree.names)} files, {len(broken)} broken rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
