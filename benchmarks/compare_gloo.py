#!/usr/bin/env python3
"""Question: is an all-reduce on loopback faster through Tally or through PyTorch's Gloo?

Tally's ways (a ring over tcp, 2 parameter servers over ZeroMQ and over tcp) and Gloo's ring in turn, N ranks each, on
the same non-zero data.

All keep large blocks instead of giving them back to the system (fresh memory is dear on virtual machines) and check
every element. A copy of the same size is timed in each round: it shows how the machine drifted meanwhile.
"""
import argparse, importlib.util, json, os, pathlib, socket, statistics, subprocess, sys, tempfile, time

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592",
          "MALLOC_TOP_PAD_": "67108864"}
PERIOD = 251
WAYS = {"ring": ["--mode", "ring"],
        "ps-zmq": ["--mode", "ps", "--servers", "2", "--set", "servers.transport=zmq"],
        "ps-tcp": ["--mode", "ps", "--servers", "2", "--set", "servers.transport=tcp"]}


def gloo_rank(rank, workers, size, iterations):
    """One rank: for each line on stdin a round; rank 0 answers with a line of JSON."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    count = size // 4
    pattern = (torch.arange(count) * 7 % PERIOD - 125).to(torch.float32)  # sums of up to 64 ranks are exact
    factors = workers * (workers + 1) // 2
    data, copied = torch.empty(count), torch.empty(count)
    for line in sys.stdin:
        times, wrong = [], 0
        for i in range(iterations + 2):
            torch.mul(pattern, float(rank + 1), out=data)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - start)
            wrong += int((data != pattern * factors).sum())
        slowest = torch.tensor(times[2:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        wrong = torch.tensor([wrong])
        dist.all_reduce(wrong)
        if rank == 0:
            copies = []
            for i in range(5):
                start = time.perf_counter()
                copied.copy_(data)
                copies.append(time.perf_counter() - start)
            print(json.dumps({"time_s": statistics.median(slowest.tolist()), "wrong": int(wrong),
                              "copy_gbs": size / statistics.median(copies) / 1e9}), flush=True)


class Gloo:
    def __init__(self, args):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        environment.update(MALLOC)
        self.ranks = [subprocess.Popen(
            [sys.executable, __file__, "--gloo-rank", str(rank), "--workers", str(args.workers), "--size",
             str(args.size), "--iterations", str(args.iterations)],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for rank in range(args.workers)]

    def round(self):
        try:
            for rank in self.ranks:
                rank.stdin.write("go\n")
                rank.stdin.flush()
        except BrokenPipeError:
            sys.exit("compare_gloo: a Gloo rank ended early")
        line = self.ranks[0].stdout.readline()
        if not line:
            sys.exit("compare_gloo: a Gloo rank ended early")
        return json.loads(line)

    def close(self):
        for rank in self.ranks:
            try:
                rank.communicate(timeout=20)  # the end of its input ends it
            except (subprocess.TimeoutExpired, BrokenPipeError):
                rank.kill()
                rank.wait()


def tally_round(args, way, folder):
    path = pathlib.Path(folder) / "tally.json"
    command = [args.tally, "bench", "allreduce", "--workers", str(args.workers), *WAYS[way], "--sizes",
               str(args.size), "--iters", str(args.iterations), "--warmup", "2", "--set", "log.level=warn",
               "--json", str(path)]
    ran = subprocess.run(command, env=dict(os.environ, **MALLOC), capture_output=True, text=True, timeout=300)
    if ran.returncode != 0:
        sys.exit(f"compare_gloo: {' '.join(command)} failed with code {ran.returncode}\n{ran.stderr}")
    row, = json.loads(path.read_text())["rows"]
    return {"time_s": row["time_us"] / 1e6, "wrong": int(row["wrong"])}


def compare(args):
    sides = args.ways + ["gloo"]
    rounds = []
    gloo = Gloo(args)
    try:
        with tempfile.TemporaryDirectory() as folder:
            print("round  " + "".join(f"{side + ' ms':>11s}" for side in sides) + "  copy GB/s")
            for number in range(args.rounds):
                measured = {}
                first = number % len(sides)  # each side has each place in the order
                for side in sides[first:] + sides[:first]:
                    measured[side] = gloo.round() if side == "gloo" else tally_round(args, side, folder)
                rounds.append(measured)
                print(f"{number + 1:5d}  " + "".join(f"{measured[side]['time_s'] * 1e3:11.1f}" for side in sides) +
                      f"  {measured['gloo']['copy_gbs']:9.1f}", flush=True)
    finally:
        gloo.close()

    medians = {side: statistics.median(r[side]["time_s"] for r in rounds) for side in sides}
    wrong = {side: sum(r[side]["wrong"] for r in rounds) for side in sides}
    for side in sides:
        line = f"{side}: median {medians[side] * 1e3:.1f} ms, {wrong[side]} wrong elements"
        if side != "gloo":
            ratios = [r["gloo"]["time_s"] / r[side]["time_s"] for r in rounds]
            line += (f"; gloo's time / this: {medians['gloo'] / medians[side]:.2f} (single rounds {min(ratios):.2f} to "
                     f"{max(ratios):.2f}; above 1 Tally is faster)")
        print(line)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            {"workers": args.workers, "bytes": args.size, "rounds": rounds, "median_s": medians, "wrong": wrong},
            indent=2) + "\n")
    return 6 if any(wrong.values()) else 0


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tally", default=str(root / "build/release/bin/tally"), help="the tally command")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="Tally's ways to measure")
    parser.add_argument("--size", type=int, default=25 << 20, help="bytes of fp32")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each side, in turn")
    parser.add_argument("--iterations", type=int, default=5, help="timed all-reduces in a round; their median counts")
    parser.add_argument("--json", help="write rounds and medians there")
    parser.add_argument("--gloo-rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gloo_rank is not None:
        return gloo_rank(args.gloo_rank, args.workers, args.size, args.iterations)
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"compare_gloo: {sys.executable} has no torch; Debian's python3-torch is for /usr/bin/python3")
    return compare(args)


sys.exit(main())
