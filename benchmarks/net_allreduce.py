#!/usr/bin/env python3
"""Question: how near to the wire do Tally's ways come on hosts with shaped links?

Runs `tally bench allreduce` over network namespaces h0, h1, … (10.77.0.1, …), as a lab script of the form `LAB N RATE`
makes them and `LAB down` removes them, interleaved with iperf3 between two of the hosts. Needs root.

  benchmarks/net_allreduce.py --lab PATH/netlab.sh [--bin build/release/bin] [--rounds 7] [--rate 1gbit] [--size 25MiB]
                              [--patterns ring ps4 …] [--slow HOST=RATE] [--predict]

Prints per pattern the time and the median over rounds of bound/measured, where B is iperf3's goodput of the same round
and M the bytes: ring and direct 2(N-1)/N M/B; PS with k further server hosts max(M/B, NM/kB); hybrid
2n(n-1)M/((n^2+kn-2k)B). With two workers on each of two hosts: node stages M/B, a ring in the order of the hosts
1.5 M/B, one that changes the host with every step 3 M/B; their times are compared with that of node stages. Pattern
gloo is PyTorch's all-reduce (compare_peers.py) on four hosts, in turn with the others: its time over theirs is printed.

Two questions more, a command each:
  --slow 0=300mbit --patterns direct hybrid1 hybrid2   a NIC is slower, all say their rates; tally plan has the bound
  --rate 10gbit --patterns ring gloo                   where CPUs bind before the wire

--predict: each pattern beside what tally plan says of it from tally probe, taken before the first round, and B; and the
median error over the patterns.
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
    """`way`: what tally plan calls it."""
    def __init__(self, hosts, servers, words, bound, way=None):
        self.hosts, self.servers, self.words, self.bound, self.way = hosts, servers, words, bound, way


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


FOUR = [0, 1, 2, 3]
RING = ["--mode", "ring"]
# A worker that names a node of its own is none of its host's.
APART = ["--set", "topology.node=rank{rank}"]
PATTERNS = {
    "ring": Pattern(FOUR, 0, RING, lambda m, b: 1.5 * m / b, "ring"),
    "direct": Pattern(FOUR, 0, RING + settings("compression.codec=int8", "compression.exclude=*"),
                      lambda m, b: 1.5 * m / b, "direct"),
    **{f"ps{k}": Pattern(FOUR, k, ["--mode", "ps"], lambda m, b, k=k: max(1, 4 / k) * m / b, "ps") for k in (1, 2, 4)},
    **{f"hybrid{k}": Pattern(FOUR, k, ["--mode", "hybrid"], lambda m, b, k=k: 24 * m / ((16 + 2 * k) * b), "hybrid")
       for k in (1, 2)},
    "nodes": Pattern([0, 0, 1, 1], 0, ["--mode", "hierarchical"], lambda m, b: m / b),
    "nodes-flat": Pattern([0, 0, 1, 1], 0, RING + APART, lambda m, b: 1.5 * m / b),
    "nodes-shuffled": Pattern([0, 1, 0, 1], 0, RING + APART, lambda m, b: 3 * m / b),
    "gloo": Pattern(FOUR, 0, [], lambda m, b: 1.5 * m / b),
}


def host(i):
    return f"10.77.0.{i + 1}"


def inside(i, command, env=None, **kwargs):
    return subprocess.Popen(["ip", "netns", "exec", f"h{i}"] + command,
                            env={**os.environ, **(env or {})}, **kwargs)


def goodput(seconds, slow=None):
    """Bytes per second from one host to another, neither of them the slow one."""
    a, b = [i for i in range(3) if slow is None or i != slow[0]][:2]
    server = inside(b, ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    client = subprocess.run(["ip", "netns", "exec", f"h{a}", "iperf3", "-c", host(b), "-O", "1", "-t", str(seconds),
                             "-J"], capture_output=True, timeout=60, check=True)
    server.wait(timeout=10)
    return json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"] / 8


def bits(rate):
    units = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
    return float(rate[:-4]) * units[rate[-4:]] if rate[-4:] in units else float(rate)


def reshape(i, rate):
    """Host i's NIC, both ways, as the lab shaped it."""
    burst = str(max(65536, int(bits(rate) / 8 / 1000)))
    for namespace, device in ((f"h{i}", "eth0"), ("sw", f"p{i}")):
        subprocess.run(["ip", "netns", "exec", namespace, "tc", "class", "change", "dev", device, "parent", "1:",
                        "classid", "1:1", "htb", "rate", rate, "ceil", rate, "burst", burst, "cburst", burst,
                        "quantum", "60000"], check=True, timeout=10)


def rate_settings(args, i):
    """What a member on host i says of its NIC, where NICs differ."""
    if args.slow is None:
        return []
    return settings(f"topology.nic_rate={args.slow[1] if i == args.slow[0] else args.rate}")


def take_probe(args, path):
    """What links, codecs and cores are, from one host to another: the shaped path has a CPU cost of its own."""
    tally, place = os.path.join(args.bin, "tally"), f"{host(1)}:7171"
    listener = inside(1, [tally, "probe", "--listen", place, "--insecure", "--wait", "60s"], stderr=subprocess.DEVNULL)
    try:
        for attempt in range(20):
            time.sleep(0.2)
            prober = inside(0, [tally, "probe", "--to", place, "--insecure", "--json", path], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL if attempt < 19 else None)
            if prober.wait(timeout=60) == 0:
                return
        sys.exit("tally probe did not reach the other host")
    finally:
        if listener.poll() is None:
            listener.kill()
        listener.wait(timeout=10)


def planned(args, pattern, bytes_per_s, probe=None):
    """Seconds that tally plan predicts, with `probe` CPU time and rounds included, else the bytes alone."""
    hosts = pattern.hosts + [max(pattern.hosts) + 1 + s for s in range(pattern.servers)]
    slow = {} if args.slow is None else {args.slow[0]: bits(args.slow[1]) / bits(args.rate)}
    nics = ",".join(str(int(8 * bytes_per_s * slow.get(i, 1))) for i in hosts)
    words = ["--probe", probe, "--one-machine"] if probe else ["--alpha", "0us"]
    ran = subprocess.run([os.path.join(args.bin, "tally"), "plan", "--workers", str(len(pattern.hosts)), "--servers",
                          str(pattern.servers), "--nics", nics, "--bytes", args.size, "--json", "-", *words],
                         capture_output=True, text=True, timeout=60, check=True)
    return next(row["predicted_s"] for row in json.loads(ran.stdout)["rows"] if row["mode"] == pattern.way)


def run_gloo(args, port):
    """One round of PyTorch's all-reduce on four hosts; as a row of `bench allreduce`."""
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare_peers.py")
    size = int(float(args.size[:-3]) * (1 << 20)) if args.size.endswith("MiB") else int(args.size)
    ranks = [inside(i, ["/usr/bin/python3", peer, "--gloo-rank", str(i), "--workers", "4", "--size", str(size),
                        "--iterations", str(args.iters)],
                    {"MASTER_ADDR": host(0), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0",
                     "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592",
                     "MALLOC_TOP_PAD_": "67108864"}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
             for i in FOUR]
    try:
        for rank in ranks:
            rank.stdin.write("go\n")
            rank.stdin.close()
        codes = [rank.wait(timeout=180) for rank in ranks]
        line = ranks[0].stdout.readline()
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(codes) or not line:
        sys.exit(f"a rank of Gloo failed: exit codes {codes}")
    measured = json.loads(line)
    return {"time_us": measured["time_s"] * 1e6, "wrong": measured["wrong"], "bytes": size}


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
                "--exit-when-done", "--port-file", ready] + settings(*args.set) + rate_settings(args, first + s)))
            deadline = time.time() + 20
            while not os.path.exists(ready) and time.time() < deadline:
                time.sleep(0.05)
        out = os.path.join(scratch, "rows.json")
        ranks = []
        for r, place in enumerate(pattern.hosts):
            env = {"RANK": str(r), "WORLD_SIZE": str(workers), "MASTER_ADDR": host(0), "MASTER_PORT": str(port)}
            ranks.append(inside(place, [os.path.join(args.bin, "tally"), "bench", "allreduce", "--sizes", args.size,
                                        "--iters", str(args.iters), "--warmup", "2", "--json", out]
                                + [word.format(rank=r) for word in common] + rate_settings(args, place), env,
                                stdout=subprocess.DEVNULL))
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
    parser.add_argument("--slow", metavar="HOST=RATE", help="this host's NIC has another rate, and all say theirs")
    parser.add_argument("--predict", action="store_true", help="beside each pattern tally plan's prediction")
    args = parser.parse_args()
    if args.slow is not None:
        place, _, rate = args.slow.partition("=")
        args.slow = (int(place), rate)
        strange = [name for name in args.patterns if PATTERNS[name].way is None]
        if strange:
            parser.error(f"--slow: tally plan has no bound for {', '.join(strange)}")
    subprocess.run([args.lab, str(HOSTS), args.rate], check=True, timeout=120)
    ratios = {name: [] for name in args.patterns}
    times = {name: [] for name in args.patterns}
    predicted = {name: [] for name in args.patterns}
    port = 7000
    scratch = tempfile.TemporaryDirectory()
    probe = None
    try:
        if args.slow is not None:
            reshape(*args.slow)
        if args.predict:
            probe = os.path.join(scratch.name, "probe.json")
            take_probe(args, probe)
        for i in range(args.rounds):
            rate = goodput(3, args.slow)
            for name in args.patterns:
                port += 10
                pattern = PATTERNS[name]
                row = run_gloo(args, port) if name == "gloo" else run(args, port, pattern)
                if row["wrong"]:
                    sys.exit(f"{name}: {row['wrong']} wrong elements")
                bound = pattern.bound(row["bytes"], rate) if args.slow is None else planned(args, pattern, rate)
                if probe and pattern.way is not None:
                    predicted[name].append(planned(args, pattern, rate, probe))
                times[name].append(row["time_us"] / 1e6)
                ratios[name].append(bound / times[name][-1])
                print(f"round {i + 1}: B {rate / 1e6:.1f} MB/s, {name}: {row['time_us'] / 1e3:.1f} ms, "
                      f"bound {bound * 1e3:.1f} ms, {100 * ratios[name][-1]:.1f} %", flush=True)
    finally:
        subprocess.run([args.lab, "down"], check=False, timeout=120)
        scratch.cleanup()
    errors = []
    for name, values in ratios.items():
        line = (f"{name}: median {1e3 * statistics.median(times[name]):.1f} ms, {100 * statistics.median(values):.1f} % "
                f"of the bound (min {100 * min(values):.1f}, max {100 * max(values):.1f}, {len(values)} rounds)")
        if name.startswith("nodes-") and "nodes" in times:
            line += f"; {statistics.median(times[name]) / statistics.median(times['nodes']):.2f} of node stages' time"
        if name != "gloo" and "gloo" in times:
            line += f"; Gloo's time is {statistics.median(times['gloo']) / statistics.median(times[name]):.2f} of it"
        if predicted[name]:
            told, took = statistics.median(predicted[name]), statistics.median(times[name])
            errors.append(abs(told - took) / took)
            line += f"; predicted {1e3 * told:.1f} ms, off {100 * errors[-1]:.0f} %"
        print(line)
    if errors:
        print(f"median error of {len(errors)} predictions: {100 * statistics.median(errors):.0f} %")


if __name__ == "__main__":
    main()
