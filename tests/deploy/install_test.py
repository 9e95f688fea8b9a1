"""install_test.py BUILD COMPILER [FLAG…]: installs, then builds and runs a program against that."""
import json, os, pathlib, subprocess, sys, tempfile

PROGRAM = r"""
#include <cstdio>
#include "worker/client.h"
int main() {
  tally::ConfigSources sources;
  sources.overrides = {"job.workers=2", "worker.rank=0"};
  auto config = tally::LoadConfig(sources);
  if (!config.ok()) return 1;
  std::printf("workers %u\n", config->config.job.workers);
  return 0;
}
"""


def main():
    build, compiler, *extra = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "usr"
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        for path in ["lib/systemd/system/tally-server.service", "lib/systemd/system/tally-worker@.service",
                     "bin/tally-worker", "include/tally/worker/client.h",
                     "share/doc/tally/examples/job.toml", "share/doc/tally/LICENSE"]:
            if not (prefix / path).is_file():
                print("not installed:", path)
                return 1
        description = next(prefix.glob("lib*/**/tally.pc"))
        environment = dict(os.environ, PKG_CONFIG_PATH=str(description.parent))
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "tally"], check=True, text=True,
                               capture_output=True, env=environment).stdout.split()
        source, program = pathlib.Path(folder) / "program.cc", pathlib.Path(folder) / "program"
        source.write_text(PROGRAM)
        subprocess.run([compiler, "-std=c++20", "-Wall", "-Werror", *extra, source, "-o", program, *flags], check=True)
        library = next(prefix.glob("lib*/**/libtally.so")).parent
        shown = subprocess.run([program], env=dict(os.environ, LD_LIBRARY_PATH=str(library)), text=True,
                               capture_output=True, timeout=60)
        print(shown.stdout, shown.stderr)
        explained = subprocess.run([prefix / "bin/tally", "explain", "--json", "-"], text=True, capture_output=True,
                                   timeout=60)
        if explained.returncode != 0 or not json.loads(explained.stdout)["rows"]:
            print("tally explain finds no recorded gradient:", explained.stderr)
            return 1
        return 0 if shown.returncode == 0 and shown.stdout == "workers 2\n" else 1


sys.exit(main())
