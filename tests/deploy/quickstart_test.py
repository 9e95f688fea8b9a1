"""quickstart_test.py ROOT: deploy/quickstart in a small tree, with stand-ins that record their calls."""
import os, pathlib, shutil, subprocess, sys, tempfile, unittest

ROOT = pathlib.Path(sys.argv[1])
REAL = "bash env sed grep tr cat mktemp nproc dirname awk tail rm mkdir".split()
DEBIAN = 'ID=debian\nVERSION_ID="12"\n'

# What ctest 3.25 writes: a case each that passed, failed, skipped itself, is disabled, and could not be started.
RECORD = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)"
\ttests="6"
\tfailures="1"
\tdisabled="1"
\tskipped="3"
\t>
\t<testcase name="A.Passed" classname="A.Passed" time="0.1" status="run">
\t\t<system-out>x.cc:1: Skipped
not a skip here</system-out>
\t</testcase>
\t<testcase name="A.Failed" classname="A.Failed" time="0.1" status="fail">
\t\t<failure message=""/>
\t\t<system-out></system-out>
\t</testcase>
\t<testcase name="A.Skipped" classname="A.Skipped" time="0.1" status="notrun">
\t\t<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
\t\t<system-out>[ RUN      ] A.Skipped
x.cc:7: Skipped
no second NUMA node, &lt;2 &amp; 3

[  SKIPPED ] A.Skipped (0 ms)</system-out>
\t</testcase>
\t<testcase name="script" classname="script" time="0.1" status="notrun">
\t\t<skipped message="SKIP_RETURN_CODE=77"/>
\t\t<system-out>Skipped: no systemd-analyze
</system-out>
\t</testcase>
\t<testcase name="off" classname="off" time="0" status="disabled">
\t\t<system-out>Disabled</system-out>
\t</testcase>
\t<testcase name="absent" classname="absent" time="0" status="notrun">
\t\t<skipped message="Unable to find executable"/>
\t\t<system-out>Unable to find executable: absent</system-out>
\t</testcase>
</testsuite>
"""


class Quickstart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        (self.top / "deploy").mkdir()
        for name in ["quickstart", "packages.txt"]:
            shutil.copy(ROOT / "deploy" / name, self.top / "deploy" / name)
        (self.top / "CMakePresets.json").write_text("{}")
        self.bin = self.top / "bin"
        self.bin.mkdir()
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name))
        self.os_release = self.top / "os-release"
        self.os_release.write_text(DEBIAN)
        self.build = self.top / "build" / "release"
        self.record = self.top / "ctest.xml"
        self.record.write_text(RECORD)
        self.fake("id", "echo 0")
        self.installed(*self.packages())
        self.fake("apt-get", "")
        self.fake("cmake", f"mkdir -p {self.build} && cd {self.build} && echo > build.ninja; "
                           "case $* in *WARNINGS*) echo TALLY_WARNINGS_AS_ERRORS:BOOL=ON > CMakeCache.txt;; esac")
        self.fake("ninja", "")
        self.fake("ctest", f'while [ "$1" != --output-junit ]; do shift; done; cat {self.record} > "$2"; exit 8')

    def fake(self, name, body):
        path = self.bin / name
        path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> {self.top}/calls\n{body}\n')
        path.chmod(0o755)

    def packages(self):
        lines = (self.top / "deploy" / "packages.txt").read_text().splitlines()
        return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]

    def installed(self, *packages):
        lines = "".join(f"installed {p}{':amd64' if p.startswith('lib') else ''}\\n" for p in packages)
        self.fake("dpkg-query", f"printf '{lines}'; printf 'config-files libgone\\n'")

    def run_it(self, *arguments, **environment):
        (self.top / "calls").write_text("")
        environment.update(PATH=str(self.bin), OS_RELEASE=str(self.os_release))
        done = subprocess.run([self.top / "deploy" / "quickstart", *arguments], env=environment, timeout=60,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done, [c for c in (self.top / "calls").read_text().splitlines() if not c.startswith("id ")]

    def test_usage(self):
        done, _ = self.run_it("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("quickstart demo", done.stdout)
        for arguments in [[], ["tests"]]:
            done, calls = self.run_it(*arguments)
            self.assertEqual((done.returncode, calls), (2, []))

    def test_second_run_only_builds(self):
        _, calls = self.run_it("build")
        self.assertEqual([c.split()[0] for c in calls], ["dpkg-query", "cmake", "ninja"])
        done, calls = self.run_it("build")
        self.assertEqual([c.split()[0] for c in calls], ["dpkg-query", "ninja"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_ci_turns_warnings_into_errors_once(self):
        self.run_it("build")
        _, calls = self.run_it("build", CI="true")
        self.assertIn("cmake --preset release -DTALLY_WARNINGS_AS_ERRORS=ON", calls)
        _, calls = self.run_it("build", CI="true")
        self.assertNotIn("cmake", [c.split()[0] for c in calls])

    def test_installs_only_what_is_missing(self):
        self.installed(*[p for p in self.packages() if p not in ("cmake", "libzmq3-dev")])
        done, calls = self.run_it("build")
        self.assertEqual(done.returncode, 0, done.stderr)
        apt = [c for c in calls if c.startswith("apt-get")]
        self.assertTrue(apt[0].endswith(" update"))
        self.assertTrue(apt[1].endswith(" install --no-install-recommends cmake libzmq3-dev"), apt[1])

    def test_neither_root_nor_sudo(self):
        self.installed()
        self.fake("id", "echo 1000")
        done, calls = self.run_it("build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not root and there is no sudo", done.stderr)
        self.assertIn("apt-get install --no-install-recommends cmake", done.stderr)
        self.fake("sudo", "exit 1")
        done, calls = self.run_it("build")
        self.assertIn("no terminal", done.stderr)
        self.assertFalse([c for c in calls if c.startswith("apt-get")])

    def test_sudo_without_password(self):
        self.installed()
        self.fake("id", "echo 1000")
        self.fake("sudo", '[ "$1" = -n ] || exec "$@"')
        done, calls = self.run_it("build")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len([c for c in calls if c.startswith("apt-get")]), 2)

    def test_causes_of_a_failed_installation(self):
        self.installed()
        for said, cause in [("Temporary failure resolving 'deb.debian.org'", "no network"),
                            ("E: Unable to locate package capnproto", "package sources do not have them"),
                            ("dpkg was interrupted", "apt-get failed as above")]:
            self.fake("apt-get", f'echo "{said}"; exit 100')
            done, calls = self.run_it("build")
            self.assertEqual(done.returncode, 1)
            self.assertIn(cause, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertNotIn("ninja", [c.split()[0] for c in calls])

    def test_other_distribution(self):
        self.os_release.write_text("ID=fedora\nVERSION_ID=40\n")
        done, calls = self.run_it("build")
        self.assertEqual((done.returncode, calls), (1, []))
        self.assertIn("not Debian 12", done.stderr)
        self.assertIn("missing: g++ pkg-config capnp python3", done.stderr)
        for name in ["g++", "pkg-config", "capnp", "python3"]:
            self.fake(name, "")
        done, calls = self.run_it("build")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([c.split()[0] for c in calls], ["cmake", "ninja"])

    def test_summary_counts_skips_apart(self):
        done, _ = self.run_it("test")
        self.assertEqual(done.returncode, 8)
        self.assertEqual(done.stdout.splitlines(), [
            "skipped: A.Skipped: no second NUMA node, <2 & 3", "skipped: script: no systemd-analyze", "skipped: off",
            "1 passed, 2 failed, 3 skipped"])

    def test_demo_builds_the_programs_and_hands_arguments_on(self):
        (self.build / "bin").mkdir(parents=True)
        program = self.build / "bin" / "tally"
        program.write_text('#!/usr/bin/env bash\necho "tally $*"\nexit 6\n')
        program.chmod(0o755)
        done, calls = self.run_it("demo", "--steps", "3")
        self.assertEqual((done.returncode, done.stdout), (6, "tally demo --steps 3\n"))
        self.assertTrue(calls[-1].endswith(" programs"), calls[-1])


unittest.main(argv=sys.argv[:1])
