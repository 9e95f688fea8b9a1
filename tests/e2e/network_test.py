"""network_test.py BIN [--choices]: jobs over hosts that are network namespaces: several addresses, limited flows. Needs root.
--choices also demands that what is measured leads to the better number of connections, which a busy machine may spoil."""
import json, os, subprocess, sys, tempfile, time

SKIPPED = 77
PORT = 29400
holders = {}  # by host: the process whose network namespace it is


class NoShaping(Exception):
    """The kernel lacks the queue that limits a link."""


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done


def at(host):
    """What runs a command there. Namespaces are held by processes: names in the file system would be mounts, which a
    killed test leaves behind."""
    return ["nsenter", f"--net=/proc/{holders[host].pid}/ns/net"]


def inside(host, *command):
    return run(*at(host), *command)


def hold_namespace():
    holder = subprocess.Popen(["unshare", "--net", "sleep", "300"], stderr=subprocess.DEVNULL)
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 10
    while holder.poll() is None and time.monotonic() < deadline:
        if os.readlink(f"/proc/{holder.pid}/ns/net") != own:
            return holder
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    raise RuntimeError("unshare --net made no network namespace")


class Hosts:
    """Namespaces, each with a bridge of the same private address, as every host with containers has."""

    def __init__(self, names):
        self.names = names

    def __enter__(self):
        try:
            for name in self.names:
                holders[name] = hold_namespace()
                inside(name, "ip", "link", "set", "lo", "up")
                inside(name, "ip", "link", "add", "docker0", "type", "bridge")
                inside(name, "ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
                inside(name, "ip", "link", "set", "docker0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            holder = holders.pop(name, None)
            if holder is not None:
                holder.kill()
                holder.wait()

    def wire(self, a, b, net):
        """A cable: NET.1 at `a`, NET.2 at `b`."""
        run("ip", "link", "add", f"to{b}", "netns", str(holders[a].pid), "type", "veth", "peer", "name", f"to{a}", "netns",
            str(holders[b].pid))
        for host, device, address in ((a, f"to{b}", 1), (b, f"to{a}", 2)):
            inside(host, "ip", "addr", "add", f"{net}.{address}/24", "dev", device)
            inside(host, "ip", "link", "set", device, "up")


def job(binaries, hosts, master, *settings):
    """An all-reduce with a rank on each host; the JSON of rank 0. Every element is checked by the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [os.path.join(binaries, "tally"), "bench", "allreduce", "--sizes", "1KiB,2MiB", "--iters", "3",
                   "--warmup", "1", "--insecure", "--mode", "ring", "--json", out, "--timeout", "60s",
                   "--set", "log.level=warn", "--set", "membership.join_timeout=30s"]
        for setting in settings:
            command += ["--set", setting]
        ranks = []
        for rank, host in enumerate(hosts):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(hosts)), MASTER_ADDR=master,
                       MASTER_PORT=str(PORT))
            ranks.append(subprocess.Popen(at(host) + command, env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        try:
            texts = [rank.communicate(timeout=75)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, text in zip(ranks, texts):
            if rank.returncode != 0:
                raise RuntimeError(f"rank {ranks.index(rank)} ended with {rank.returncode}:\n{text}")
        with open(out) as file:
            return json.load(file)


def several_addresses(binaries):
    """Each pair of hosts has a network of its own: what leads to the coordinator leads to nobody else."""
    with Hosts("abc") as hosts:
        hosts.wire("a", "b", "10.91.1")
        hosts.wire("a", "c", "10.91.2")
        hosts.wire("b", "c", "10.91.3")
        inside("c", "ip", "route", "add", "10.91.1.1/32", "via", "10.91.2.1")
        job(binaries, "abc", "10.91.1.1")


def shape(host, *what):
    done = run(*at(host), "tc", *what, check=False)
    if done.returncode != 0:
        raise NoShaping(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"tc ended with {done.returncode}")


def limit_each_flow(host, device, rate):
    """A class of its own for each pair of four bits of the two ports: flows that differ in none of them share one."""
    shape(host, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb")
    lines = []
    for source in range(16):
        for target in range(16):
            at = f"1:{256 + 16 * source + target:x}"
            lines += [f"class add dev {device} parent 1: classid {at} htb rate {rate} burst 16k quantum 20000",
                      f"filter add dev {device} parent 1: protocol ip u32 match ip sport {2 * source} 0x1e "
                      f"match ip dport {2 * target} 0x1e flowid {at}"]
    with tempfile.NamedTemporaryFile("w") as batch:
        batch.write("\n".join(lines + [""]))
        batch.flush()
        shape(host, "-batch", batch.name)


def check_choices(found, good, what):
    if not set(found) <= {1, 2, 4}:
        raise RuntimeError(f"{found} connections: expected one of the numbers that are measured")
    print(f"{found} connections {what}")
    if "--choices" in sys.argv and not good:
        raise RuntimeError(f"{found} connections {what}")


def limited_flows(binaries):
    """40 Mbit/s for each connection, and much more for all: several are worth having."""
    with Hosts("ab") as hosts:
        hosts.wire("a", "b", "10.91.1")
        limit_each_flow("a", "tob", "40mbit")
        limit_each_flow("b", "toa", "40mbit")
        # Ports are drawn at random, so that connections may share a limit; and the machine may be busy.
        found = [job(binaries, "ab", "10.91.1.1")["connections"] for _ in range(3)]
        told = job(binaries, "ab", "10.91.1.1", "link.connections=3")["connections"]
    check_choices(found, max(found) > 1, "where each flow is limited")
    if told != 3:
        raise RuntimeError(f"{told} connections, 3 are configured")


def limited_wire(binaries):
    """100 Mbit/s for all together: one connection fills it."""
    with Hosts("ab") as hosts:
        hosts.wire("a", "b", "10.91.1")
        for host, other in ("ab", "ba"):
            shape(host, "qdisc", "add", "dev", f"to{other}", "root", "tbf", "rate", "100mbit", "burst", "64kb",
                  "latency", "20ms")
        found = [job(binaries, "ab", "10.91.1.1")["connections"] for _ in range(3)]
    check_choices(found, sorted(found)[1] == 1, "where one fills the wire")


def main():
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        return SKIPPED
    if run("unshare", "--net", "true", check=False).returncode != 0:
        print("skipped: no network namespaces on this machine (unshare --net)")
        return SKIPPED
    failed = False
    for test in (several_addresses, limited_flows, limited_wire):
        try:
            test(sys.argv[1])
            print(f"ok: {test.__name__}")
        except NoShaping as why:
            print(f"left out: {test.__name__}: this kernel does not limit links ({why})")
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {test.__name__}: {error}")
            failed = True
    return 1 if failed else 0


sys.exit(main())
