#!/usr/bin/env python3
"""Question: is an all-reduce on one machine faster through Tally or through Gloo, Open MPI or MPICH?

Tally's ways and the peers in turn, N ranks each, on the same non-zero data: Gloo through PyTorch, Open MPI over shared
memory (with and without CMA) and forced to TCP, MPICH over shared memory; peers that are not installed are left out and
named (--install gets them from Debian, as root). Beside them the bound: N reads and one write by a bare loop.

All keep large blocks instead of giving them back to the system (fresh memory is dear on virtual machines) and check
every element. Figures of single rounds and their medians; ratios above 1 say that Tally is faster.
"""
import argparse, importlib.util, json, os, pathlib, shutil, socket, statistics, subprocess, sys, tempfile, time

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592",
          "MALLOC_TOP_PAD_": "67108864"}
PERIOD = 251
SOCKETS = ["--set", "link.shm=false"]
WAYS = {"arena": ["--mode", "hierarchical", "--arena"],
        "arena-spin": ["--mode", "hierarchical", "--arena", "--set", "worker.spin=50us"],
        "node": ["--mode", "hierarchical"],
        "node-spin": ["--mode", "hierarchical", "--set", "worker.spin=50us"],
        "ring-shm": ["--mode", "ring"],
        "ring-tcp": ["--mode", "ring", *SOCKETS],
        "ps-shm": ["--mode", "ps", "--servers", "2"],
        "ps-zmq": ["--mode", "ps", "--servers", "2", *SOCKETS],
        "ps-tcp": ["--mode", "ps", "--servers", "2", *SOCKETS, "--set", "servers.transport=tcp"]}
OMPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
MPI = {"ompi": ("mpicc.openmpi", OMPI),
       "ompi-nocma": ("mpicc.openmpi", OMPI + ["--mca", "btl_vader_single_copy_mechanism", "none"]),
       "ompi-tcp": ("mpicc.openmpi", OMPI + ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca",
                                             "pml", "ob1"]),
       "mpich": ("mpicc.mpich", ["mpiexec.mpich"])}
PACKAGES = ["python3-torch", "libopenblas0-pthread", "openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev"]


def busy_seconds():
    """Of the whole machine since boot: user, nice, system, irq, softirq, in ticks of 10 ms."""
    ticks = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return sum(int(ticks[i]) for i in (0, 1, 2, 5, 6)) / 100.0


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
        times, wrong, busy = [], 0, 0.0
        for i in range(iterations + 2):
            torch.mul(pattern, float(rank + 1), out=data)
            dist.barrier()
            busy_before, start = busy_seconds(), time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - start)
            busy += busy_seconds() - busy_before if i >= 2 else 0
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
                              "cpu_s_per_gb": busy / (size * iterations / 1e9),
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
            sys.exit("compare_peers: a Gloo rank ended early")
        line = self.ranks[0].stdout.readline()
        if not line:
            sys.exit("compare_peers: a Gloo rank ended early")
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
        sys.exit(f"compare_peers: {' '.join(command)} failed with code {ran.returncode}\n{ran.stderr}")
    row, = json.loads(path.read_text())["rows"]
    return {"time_s": row["time_us"] / 1e6, "wrong": int(row["wrong"]), "cpu_s_per_gb": row["cpu_s_per_gb"]}


def mpi_round(args, peer, folder):
    compiler, launch = MPI[peer]
    program = pathlib.Path(folder) / compiler
    if not program.exists():
        subprocess.run([compiler, "-O3", "-o", str(program), str(pathlib.Path(__file__).parent / "mpi_allreduce.c")],
                       check=True)
    exports = [word for name in MALLOC for word in ("-x", name)] if "openmpi" in launch[0] else []
    command = [*launch, *exports, "-n", str(args.workers), str(program), str(args.size), str(args.iterations), "2"]
    try:
        ran = subprocess.run(command, env=dict(os.environ, **MALLOC), capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        sys.exit(f"compare_peers: {' '.join(command)} did not end")
    if ran.returncode != 0:
        sys.exit(f"compare_peers: {' '.join(command)} failed with code {ran.returncode}\n{ran.stderr}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def bound_round(args):
    program = pathlib.Path(args.tally).parent / "memory_sum"
    ran = subprocess.run([str(program), str(args.workers), str(args.size), str(args.iterations)], capture_output=True,
                         text=True, timeout=120, check=True)
    return json.loads(ran.stdout)


def compare(args):
    peers = [peer for peer in args.peers if peer == "gloo" or shutil.which(MPI[peer][0])]
    for peer in args.peers:
        if peer not in peers:
            print(f"compare_peers: {peer} is left out, {MPI[peer][0]} is not installed", file=sys.stderr)
    sides = args.ways + peers + ["bound"]
    rounds = []
    gloo = Gloo(args) if "gloo" in peers else None

    def measure(side, folder):
        if side == "gloo":
            return gloo.round()
        if side == "bound":
            return bound_round(args)
        return mpi_round(args, side, folder) if side in MPI else tally_round(args, side, folder)

    try:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{args.size} bytes, {args.workers} ranks; milliseconds\nround  " +
                  "".join(f"{side:>11s}" for side in sides))
            for number in range(args.rounds):
                measured = {}
                first = number % len(sides)  # each side has each place in the order
                for side in sides[first:] + sides[:first]:
                    measured[side] = measure(side, folder)
                rounds.append(measured)
                print(f"{number + 1:5d}  " + "".join(f"{measured[side]['time_s'] * 1e3:11.3f}" for side in sides),
                      flush=True)
    finally:
        if gloo is not None:
            gloo.close()

    medians = {side: statistics.median(r[side]["time_s"] for r in rounds) for side in sides}
    wrong = {side: sum(r[side].get("wrong", 0) for r in rounds) for side in sides}
    cpu = {side: statistics.median(r[side].get("cpu_s_per_gb", 0) for r in rounds) for side in sides}
    for side in sides:
        line = f"{side}: median {medians[side] * 1e3:.3f} ms, {wrong[side]} wrong elements"
        if cpu[side] > 0:
            line += f", {cpu[side]:.2f} CPU s/GB"
        if side in args.ways:
            for peer in peers + ["bound"]:
                ratios = [r[peer]["time_s"] / r[side]["time_s"] for r in rounds]
                line += (f"\n    {peer} / {side}: {medians[peer] / medians[side]:.2f} (single rounds {min(ratios):.2f} to "
                         f"{max(ratios):.2f})")
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
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["arena", "node", "ring-shm", "ring-tcp"],
                        help="Tally's ways to measure")
    parser.add_argument("--peers", nargs="*", choices=["gloo", *MPI], default=["gloo", *MPI])
    parser.add_argument("--install", action="store_true", help="first install the peers' Debian packages (root)")
    parser.add_argument("--size", type=int, default=25 << 20, help="bytes of fp32")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each side, in turn")
    parser.add_argument("--iterations", type=int, default=5, help="timed all-reduces in a round; their median counts")
    parser.add_argument("--json", help="write rounds and medians there")
    parser.add_argument("--gloo-rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gloo_rank is not None:
        return gloo_rank(args.gloo_rank, args.workers, args.size, args.iterations)
    if args.install:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True)
    if "gloo" in args.peers and importlib.util.find_spec("torch") is None:
        sys.exit(f"compare_peers: {sys.executable} has no torch; Debian's python3-torch is for /usr/bin/python3")
    return compare(args)


sys.exit(main())
