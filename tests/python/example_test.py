"""example_test.py FILE: the example by torchrun's variables alone, without servers or configuration: plain DDP and
Tally learn the same."""
import os
import pathlib
import random
import socket
import subprocess
import sys
import unittest

EXAMPLE = pathlib.Path(sys.argv.pop(1))


def two_ports():
    """The first of two free ones, below those that the system gives to connections."""
    for _ in range(100):
        port = random.randrange(10000, 30000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue
    raise OSError("no two free ports from 10000 to 30000")


def run(*options):
    """Rank 0's final table."""
    port, processes = two_ports(), []
    for rank in "01":
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(
            [sys.executable, "-B", EXAMPLE, "--steps", "20", *options], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, **variables}))
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise AssertionError("\n".join(outputs))
    lines = [line.rsplit(None, 1) if line.startswith(("ranks", "accuracy")) else line.split(None, 2)
             for line in outputs[0].splitlines()]
    table = {line[0]: line[-1] for line in lines if line}
    return {"by": table["gradients"], "ranks": table["ranks"], "accuracy": float(table["accuracy"])}


class Example(unittest.TestCase):
    def test_plain_and_tally_learn_the_same(self):
        plain, ours = run(), run("--tally")
        self.assertEqual((plain["ranks"], ours["ranks"]), ("2", "2"))
        self.assertIn("gloo", plain["by"])
        self.assertIn("ring", ours["by"])
        self.assertGreater(ours["accuracy"], 0.3)
        self.assertAlmostEqual(plain["accuracy"], ours["accuracy"], delta=0.005)


if __name__ == "__main__":
    unittest.main()
