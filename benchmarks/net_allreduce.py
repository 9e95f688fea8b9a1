#!/usr/bin/env python3
"""Question: how near to the wire do ring and PS come on hosts with shaped links?

Runs `tally bench allreduce` with one rank per network namespace h0, h1, … (10.77.0.1, …), as a lab script of the
form `LAB N RATE` makes them and `LAB down` removes them, interleaved with iperf3 between two of the hosts. Needs root.

  benchmarks/net_allreduce.py --lab PATH/netlab.sh [--bin build/release/bin] [--rounds 7] [--rate 1gbit] [--size 25MiB]

Prints per pattern the median over rounds of bound/measured, where B is iperf3's goodput of the same round:
  ring of 4: bound 2(N-1)/N * bytes / B      PS with 4 further server hosts: bound bytes / B
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WORKERS = 4
SERVERS = 4


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


def run(args, port, servers):
    """One `bench allreduce` over the hosts; returns its JSON row."""
    settings = ["--insecure", "--set", "log.level=error"]
    for setting in args.set:
        settings += ["--set", setting]
    daemons = []
    addresses = ",".join(f"tcp://{host(WORKERS + s)}:{port}" for s in range(servers))
    if servers:
        settings += ["--set", f"servers.addresses={addresses}", "--mode", "ps"]
    else:
        settings += ["--mode", "ring"]
    with tempfile.TemporaryDirectory() as scratch:
        for s in range(servers):
            ready = os.path.join(scratch, f"port{s}")
            daemons.append(inside(WORKERS + s, [
                os.path.join(args.bin, "tally-server"), "--index", str(s), "--listen", f"tcp://{host(WORKERS + s)}:{port}",
                "--set", f"servers.addresses={addresses}", "--set", "network.insecure=true", "--set", "log.level=error",
                "--exit-when-done", "--port-file", ready]
                + [word for setting in args.set for word in ("--set", setting)]))
            deadline = time.time() + 20
            while not os.path.exists(ready) and time.time() < deadline:
                time.sleep(0.05)
        out = os.path.join(scratch, "rows.json")
        ranks = []
        for r in range(WORKERS):
            env = {"RANK": str(r), "WORLD_SIZE": str(WORKERS), "MASTER_ADDR": host(0), "MASTER_PORT": str(port)}
            ranks.append(inside(r, [os.path.join(args.bin, "tally"), "bench", "allreduce", "--sizes", args.size,
                                    "--iters", str(args.iters), "--warmup", "2", "--json", out] + settings,
                                env, stdout=subprocess.DEVNULL))
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
    args = parser.parse_args()
    subprocess.run([args.lab, str(WORKERS + SERVERS), args.rate], check=True, timeout=120)
    ratios = {"ring": [], "ps": []}
    try:
        for i in range(args.rounds):
            rate = goodput(3)
            for name, servers in (("ring", 0), ("ps", SERVERS)):
                row = run(args, 7000 + 20 * i + servers, servers)
                if row["wrong"]:
                    sys.exit(f"{name}: {row['wrong']} wrong elements")
                size = row["bytes"]
                bound = (2 * (WORKERS - 1) / WORKERS if name == "ring" else 1) * size / rate
                ratios[name].append(bound / (row["time_us"] / 1e6))
                print(f"round {i + 1}: B {rate / 1e6:.1f} MB/s, {name}: {row['time_us'] / 1e3:.1f} ms, "
                      f"bound {bound * 1e3:.1f} ms, {100 * ratios[name][-1]:.1f} %", flush=True)
    finally:
        subprocess.run([args.lab, "down"], check=False, timeout=120)
    for name, values in ratios.items():
        print(f"{name}: median {100 * statistics.median(values):.1f} % of the bound "
              f"(min {100 * min(values):.1f}, max {100 * max(values):.1f}, {len(values)} rounds)")


if __name__ == "__main__":
    main()
