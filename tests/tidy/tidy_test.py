"""Each rule of tidy.py, on a small clean tree in which one thing was made wrong."""
import pathlib, tempfile, unittest

import tidy

CLEAN = {
    "CMakeLists.txt": "add_executable(a worker/client.cc) # frame\n",
    "schemas/frame.capnp": "@0x1;\n$Cxx.namespace(\"tally::schema\");\nstruct Bucket {\n}\n",
    "common/status.h": "// Status.\n#pragma once\n#include <string>\n",
    "common/frame.h": "// Frame.\n#pragma once\n#include \"common/status.h\"\n",
    "common/frame.cc": "#include \"common/frame.h\"\n#include \"schemas/frame.capnp.h\"\n",
    "common/loop.h": "// Loop.\n#pragma once\n",
    "common/transport/tcp.cc": "#include <boost/asio.hpp>\n#include \"common/loop.h\"\n",
    "server/core/owner.h": "// Owner.\n#pragma once\n#include \"common/frame.h\"\n",
    "server/server.cc": "#include \"server/core/owner.h\"\n",
    "worker/client.h": "// Client.\n#pragma once\n#include <span>\n#include \"common/status.h\"\n",
    "worker/client.cc": "#include \"worker/client.h\"\n#include \"server/core/owner.h\"\n",
    "tests/client_test.cc": "#include \"worker/client.h\"\n",
    "README.md": "See `common/frame.h`, `common/<name>.cc`, `build/release/bin` and [schemas](schemas/frame.capnp).\n",
}
COMPILED = [n for n in CLEAN if n.endswith(".cc")]


class Rules(unittest.TestCase):
    def found(self, rule, changes, *arguments):
        with tempfile.TemporaryDirectory() as root:
            for name, text in {**CLEAN, **changes}.items():
                path = pathlib.Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            if arguments:
                arguments = [[{"file": str(pathlib.Path(root) / name)} for name in arguments[0]]]
            return list(rule(tidy.Tree(root), *arguments))

    def check(self, rule, name, text, message, *arguments):
        self.assertEqual(self.found(rule, {}, *arguments), [], "the clean tree")
        found = self.found(rule, {name: text}, *arguments)
        self.assertEqual(len(found), 1, found)
        self.assertIn(message, found[0])
        self.assertTrue(found[0].startswith(name), found)

    def test_arrows(self):
        owner = '#include "server/core/owner.h"\n'
        self.check(tidy.arrows, "common/frame.cc", owner, "common must not include server/core/owner.h")
        self.check(tidy.arrows, "compress/int8.cc", owner, "compress must not include")
        self.check(tidy.arrows, "server/core/owner.cc", '#include "worker/client.h"\n', "server/core must not include")
        self.check(tidy.arrows, "server/main.cc", '#include "worker/client.h"\n', "server must not include")
        self.check(tidy.arrows, "worker/x.cc", '#include "tests/client_test.cc"\n', "worker must not include")
        self.check(tidy.arrows, "extra/x.cc", owner, "outside the layers")
        self.check(tidy.arrows, "worker/x.cc", '#include "client.h"\n', "no such file from the root")
        self.check(tidy.arrows, "common/x.cc", '#include "schemas/none.capnp.h"\n', "no such schema")

    def test_pure(self):
        for text in ["#include <sys/socket.h>\n", "#include <thread>\n", '#include "common/loop.h"\n',
                     "auto t = std::chrono::steady_clock::now();\n"]:
            self.check(tidy.pure, "server/core/x.cc", text, "not in a pure layer")
        self.assertEqual(self.found(tidy.pure, {"server/core/owner_host.cc": '#include "common/loop.h"\n'}), [])

    def test_libraries(self):
        self.check(tidy.libraries, "worker/x.cc", "#include <zmq.hpp>\n", "belongs into common/transport")
        self.check(tidy.libraries, "compress/x.cc", "#include <boost/asio/post.hpp>\n", "belongs into")

    def test_public_headers(self):
        self.check(tidy.public_headers, "common/status.h", "#include <boost/asio.hpp>\n", "reaches <boost/asio.hpp>")
        self.check(tidy.public_headers, "worker/client.h", "void F(zmq::message_t);\n", "third-party type")

    def test_dead_files(self):
        self.check(tidy.dead_files, "common/x.h", "// X.\n", "nobody includes it", COMPILED)
        self.check(tidy.dead_files, "common/x.cc", "int x;\n", "in no target", COMPILED)
        self.check(tidy.dead_files, "schemas/x.capnp", "@0x2;\n", "no CMake file names it", COMPILED)
        own = self.found(tidy.dead_files, {"common/x.h": "", "common/x.cc": '#include "common/x.h"\n'})
        self.assertEqual(own, ["common/x.h: nobody includes it"])

    def test_shape(self):
        head = "// X.\n#pragma once\n"
        self.check(tidy.shape, "common/x.h", head + "\n" * 700, "702 lines")
        self.check(tidy.shape, "common/x.h", head + "/" * 141 + "\n", "141 columns")
        self.check(tidy.shape, "common/x.h", head + "int x; \n", "blanks at the end")
        self.check(tidy.shape, "common/x.h", "// X.\n", "no #pragma once")
        self.check(tidy.shape, "common/x.h", "#pragma once\n", "does not begin with a comment")
        self.check(tidy.shape, "common/x.cc", "// X.\n" * 6, "more than 5 lines")

    def test_words(self):
        self.check(tidy.words, "common/x.cc", "// TO" "DO: later\n", "TO" "DO")
        self.check(tidy.words, "README.md", "in /ho" "me/me/x\n", "/ho" "me/")

    def test_environment(self):
        self.check(tidy.environment, "worker/x.cc", 'auto x = std::getenv("X");\n', "reads the environment")
        self.assertEqual(self.found(tidy.environment, {"common/config/x.cc": "char** e = environ;\n"}), [])

    def test_documented_paths(self):
        for text in ["`common/none.h`", "`compress/<name>.cc`", "[it](none.md)"]:
            self.check(tidy.documented_paths, "README.md", text, "no such path")

    def test_schemas(self):
        self.check(tidy.schemas, "schemas/z.capnp", "$Cxx.namespace(\"tally::schema\");\nstruct Bucket {\n}\n", "is in schemas/frame.capnp")
        other = {"schemas/z.capnp": "$Cxx.namespace(\"tally::z\");\nstruct Bucket {\n}\n"}
        self.assertEqual(self.found(tidy.schemas, other), [])


unittest.main()
