#!/usr/bin/env python3
"""Question: how near to the wire do Tally's ways come on hosts with shaped links?

Runs `tally bench allreduce` over network namespaces h0, h1, … (10.77.0.1, …), as a lab script of the form `LAB N RATE`
makes them and `LAB down` removes them, interleaved with iperf3 between two of the hosts. Needs root.

  benchmarks/net_allreduce.py --lab PATH/netlab.sh [--bin build/release/bin] [--rounds 7] [--rate 1gbit] [--size 25MiB]
                              [--patterns ring ps4 …]

Prints per pattern the time and the median over rounds of bound/measured, where B is iperf3's goodput of the same round
and M the bytes: ring and direct 2(N-1)/N M/B; PS with k further server hosts max(M/B, NM/kB); hybrid
2n(n-1)M/((n^2+kn-2k)B). With two workers on each of two hosts: node stages M/B, a ring in the order of the hosts
1.5 M/B, one that changes the host with every step 3 M/B; their times are compared with that of node stages.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HOSTS = 8


class Pattern:
    def __init__(self, hosts, servers, words, bound):
        self.hosts, self.servers, self.words, self.bound = hosts, servers, words, bound


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


FOUR = [0, 1, 2, 3]
RING = ["--mode", "ring"]
# A worker that names a node of its own is none of its host's.
APART = ["--set", "topology.node=rank{rank}"]
PATTERNS = {
    "ring": Pattern(FOUR, 0, RING, lambda m, b: 1.5 * m / b),
    "direct": Pattern(FOUR, 0, RING + settings("compression.codec=int8", "compression.exclude=*"),
                      lambda m, b: 1.5 * m / b),
    **{f"ps{k}": Pattern(FOUR, k, ["--mode", "ps"], lambda m, b, k=k: max(1, 4 / k) * m / b) for k in (1, 2, 4)},
    **{f"hybrid{k}": Pattern(FOUR, k, ["--mode", "hybrid"], lambda m, b, k=k: 24 * m / ((16 + 2 * k) * b))
       for k in (1, 2)},
    "nodes": Pattern([0, 0, 1, 1], 0, ["--mode", "hierarchical"], lambda m, b: m / b),
    "nodes-flat": Pattern([0, 0, 1, 1], 0, RING + APART, lambda m, b: 1.5 * m / b),
    "nodes-shuffled": Pattern([0, 1, 0, 1], 0, RING + APART, lambda m, b: 3 * m / b),
}


def host(i):
    return f"10.77.0.{i + 1}"


def inside(i, command, env=None, **kwargs):
    return subprocess.Popen(["ip", "netns", "exec", f"h{i}"] + command,
                            env={**os.environ, **(env or {})}, **kwargs)


def goodput(seconds):
    """Bytes per second from h0 to h1."""
    server = inside(1, ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    client = subprocess.run(["ip", "netns", "exec", "h0", "iperf3", "-c", host(1), "-O", "1", "-t", str(seconds), "-J"],
                            capture_output=True, timeout=60, check=True)
    server.wait(timeout=10)
    return json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"] / 8


def run(args, port, pattern):
    """One `bench allreduce` over the hosts; returns its JSON row."""
    workers = len(pattern.hosts)
    common = ["--insecure", "--set", "log.level=error"] + settings(*args.set) + pattern.words
    daemons = []
    first = max(pattern.hosts) + 1
    addresses = ",".join(f"tcp://{host(first + s)}:{port}" for s in range(pattern.servers))
    if pattern.servers:
        common += ["--set", f"servers.addresses={addresses}"]
    with tempfile.TemporaryDirectory() as scratch:
        for s in range(pattern.servers):
            ready = os.path.join(scratch, f"port{s}")
            daemons.append(inside(first + s, [
                os.path.join(args.bin, "tally-server"), "--index", str(s), "--listen", f"tcp://{host(first + s)}:{port}",
                "--set", f"servers.addresses={addresses}", "--set", "network.insecure=true", "--set", "log.level=error",
                "--exit-when-done", "--port-file", ready] + settings(*args.set)))
            deadline = time.time() + 20
            while not os.path.exists(ready) and time.time() < deadline:
                time.sleep(0.05)
        out = os.path.join(scratch, "rows.json")
        ranks = []
        for r, place in enumerate(pattern.hosts):
            env = {"RANK": str(r), "WORLD_SIZE": str(workers), "MASTER_ADDR": host(0), "MASTER_PORT": str(port)}
            ranks.append(inside(place, [os.path.join(args.bin, "tally"), "bench", "allreduce", "--sizes", args.size,
                                        "--iters", str(args.iters), "--warmup", "2", "--json", out]
                                + [word.format(rank=r) for word in common], env, stdout=subprocess.DEVNULL))
        try:
            codes = [p.wait(timeout=180) for p in ranks]
            for d in daemons:
                d.wait(timeout=20)
        finally:
            for p in ranks + daemons:
                if p.poll() is None:
                    p.kill()
        if any(codes):
            sys.exit(f"a rank failed: exit codes {codes}")
        with open(out) as f:
            return json.load(f)["rows"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", required=True, help="script that makes the namespaces")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iters", type=int, default=3)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for all")
    parser.add_argument("--size", default="25MiB")
    parser.add_argument("--patterns", nargs="+", choices=list(PATTERNS), default=["ring", "ps4"])
    args = parser.parse_args()
    subprocess.run([args.lab, str(HOSTS), args.rate], check=True, timeout=120)
    ratios = {name: [] for name in args.patterns}
    times = {name: [] for name in args.patterns}
    port = 7000
    try:
        for i in range(args.rounds):
            rate = goodput(3)
            for name in args.patterns:
                port += 10
                row = run(args, port, PATTERNS[name])
                if row["wrong"]:
                    sys.exit(f"{name}: {row['wrong']} wrong elements")
                bound = PATTERNS[name].bound(row["bytes"], rate)
                times[name].append(row["time_us"] / 1e6)
                ratios[name].append(bound / times[name][-1])
                print(f"round {i + 1}: B {rate / 1e6:.1f} MB/s, {name}: {row['time_us'] / 1e3:.1f} ms, "
                      f"bound {bound * 1e3:.1f} ms, {100 * ratios[name][-1]:.1f} %", flush=True)
    finally:
        subprocess.run([args.lab, "down"], check=False, timeout=120)
    for name, values in ratios.items():
        line = (f"{name}: median {1e3 * statistics.median(times[name]):.1f} ms, {100 * statistics.median(values):.1f} % "
                f"of the bound (min {100 * min(values):.1f}, max {100 * max(values):.1f}, {len(values)} rounds)")
        if name.startswith("nodes-") and "nodes" in times:
            line += f"; {statistics.median(times[name]) / statistics.median(times['nodes']):.2f} of node stages' time"
        print(line)


if __name__ == "__main__":
    main()
