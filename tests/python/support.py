"""Whole jobs whose ranks are processes: a test file is also its ranks' program, and each rank writes what it found as
JSON.

Programs and the library come by the variables RUN_TALLY and LIBTALLY, which CMake sets.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BODY, RESULTS = "RANK_BODY", "RANK_RESULTS"


class Job:
    """What a job's ranks found, by rank (None: it did not come to its end), and how the job ended."""

    def __init__(self, results, process, seconds):
        self.results, self.exit_code, self.output, self.seconds = results, process.returncode, process.stderr, seconds


def run_job(body, ranks=2, servers=0, settings=None, values=None, timeout_s=60, grace="5s"):
    """Runs `body` of the calling test file on each rank. `values`: for the body, as JSON."""
    file = pathlib.Path(body.__code__.co_filename)
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["RUN_TALLY"], "run", "-n", str(ranks), "--servers", str(servers), "--grace", grace,
                   "--timeout", f"{timeout_s}s"]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        began = time.monotonic()
        process = subprocess.run([*command, "--", sys.executable, "-B", str(file)], text=True, capture_output=True,
                                 timeout=timeout_s + 20,
                                 env={**os.environ, BODY: body.__name__, RESULTS: folder,
                                      "RANK_VALUES": json.dumps(values), "OMP_NUM_THREADS": "1"})
        results = []
        for rank in range(ranks):
            path = pathlib.Path(folder, str(rank))
            results.append(json.loads(path.read_text()) if path.exists() else None)
    return Job(results, process, time.monotonic() - began)


def values():
    return json.loads(os.environ["RANK_VALUES"])


def shared(name):
    """The path of a file that all ranks of the job may use."""
    return os.path.join(os.environ[RESULTS], name)


def report(result):
    """What this rank found; before it does what may end it."""
    path = pathlib.Path(os.environ[RESULTS], os.environ["RANK"])
    path.with_suffix(".part").write_text(json.dumps(result))
    path.with_suffix(".part").rename(path)


def folder():
    return tempfile.TemporaryDirectory()


class TestCase(unittest.TestCase):
    def run_ranks(self, body, **options):
        """A job that has to end well: its ranks' results."""
        job = run_job(body, **options)
        self.assertEqual(job.exit_code, 0, job.output)
        self.assertNotIn(None, job.results, job.output)
        return job.results


def main(namespace):
    """In a test file, at its end: a rank's body, or the tests."""
    if BODY in os.environ:
        result = namespace[os.environ[BODY]]()
        if result is not None:
            report(result)
        return
    unittest.main(module=namespace["__name__"])
