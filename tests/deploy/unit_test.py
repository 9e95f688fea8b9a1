"""unit_test.py UNIT: systemd accepts the unit without a word, and finds little exposed."""
import pathlib, re, shutil, subprocess, sys, tempfile

MOST_EXPOSED = 2.0  # systemd's scale: 0 nothing, 10 everything; network and the host's root remain


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def main():
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed (Debian: systemd)")
        return 1
    text = pathlib.Path(sys.argv[1]).read_text()
    if "@" in re.sub(r"=~?@[a-z-]+", "=", text):
        print("a placeholder is left in the unit")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        # a template is looked at as an instance of it
        unit = pathlib.Path(folder) / pathlib.Path(sys.argv[1]).name.replace("@.", "@daemon.")
        # verify wants a program that exists; the installed one does not yet
        unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M))
        verified = run("systemd-analyze", "verify", "--man=no", unit)
        if verified.returncode != 0 or verified.stderr:
            print("systemd-analyze verify:", verified.stderr)
            return 1
        rated = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    level = re.search(r"exposure level for \S+: ([0-9.]+)", rated.stdout)
    if not level:
        print("systemd-analyze security gave no level:", rated.stdout[-500:], rated.stderr)
        return 1
    print("exposure", level[1])
    return 0 if float(level[1]) <= MOST_EXPOSED else 1


sys.exit(main())
