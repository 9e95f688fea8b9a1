#!/usr/bin/env python3
"""How fast Tally's codecs are beside what Python users have: torch.topk, torch's quantisation, sign packing in numpy.

  benchmarks/codec_peers.py build/release/bin/tally [--elements 25000000] [--runs 9]

Needs python3-torch and python3-numpy. Each peer counts with the better of one and two threads, Tally with one. Both run
in turns, round by round, and the ratio of the medians is printed.
"""
import argparse
import json
import statistics
import subprocess
import time

import numpy
import torch


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def peers(x):
    """Name -> (what it does on x, Tally's codec, Tally's operation)."""
    n = x.numel()
    k = max(1, n // 100)
    scale = float(x.abs().max()) / 127
    array = x.numpy()
    residual = torch.zeros_like(x)
    out = torch.empty_like(x)

    def quantise():
        return torch.quantize_per_tensor(x, scale, 0, torch.qint8)

    def orthogonalise(p):
        for j in range(p.shape[1]):
            column = p[:, j : j + 1]
            column /= torch.linalg.vector_norm(column) + 1e-8
            if j + 1 < p.shape[1]:
                rest = p[:, j + 1 :]
                rest -= (column * rest).sum(dim=0) * column

    # One worker's arithmetic of PowerSGD, as torch's own communication hook does it; both all-reduces left out.
    side = int(n**0.5)
    matrix, matrix_residual, error = (t[: side * side].view(side, side) for t in (x, residual, out))
    q = torch.randn(side, 4)

    def powersgd():
        m = matrix + matrix_residual
        p = m @ q
        orthogonalise(p)
        torch.matmul(m.t(), p, out=q)
        torch.sub(m, p @ q.t(), out=error)

    def quantise_with_residual():
        p = torch.add(x, residual)
        q = torch.quantize_per_tensor(p, scale, 0, torch.qint8)
        torch.sub(p, q.dequantize(), out=out)

    return {
        "torch.topk 1 % of the whole": (lambda: torch.topk(x.abs(), k, sorted=False), "topk", "encode_ef"),
        "torch.quantize_per_tensor": (quantise, "int8", "encode_ef"),
        "the same with a residual": (quantise_with_residual, "int8", "encode_ef"),
        "numpy.packbits of signs": (lambda: numpy.packbits(numpy.signbit(array)), "onebit", "encode_ef"),
        "torch's PowerSGD, rank 4": (powersgd, "powersgd", "encode_ef"),
        "torch fp32 to fp16": (lambda: x.to(torch.float16), "fp16", "encode"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tally")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(1)
    x = torch.randn(options.elements)
    times = {}   # (peer, threads) -> seconds
    ours = {}    # (codec, op) -> input GB/s
    copies = []
    gigabytes = options.elements * 4 / 1e9
    wanted = peers(x)
    for _ in range(options.rounds):
        command = [options.tally, "bench", "codec", "--codecs", "int8,onebit,topk,fp16,powersgd", "--ops", "encode_ef,encode",
                   "--elements", str(options.elements), "--runs", "7", "--peer", "--json", "-"]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        copies.append(result["copy_gbs"])
        for row in result["rows"]:
            ours.setdefault((row["codec"], row["op"], row["target"]), []).append(row["input_gbs"])
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for name, (work, _, _) in wanted.items():
                work()
                runs = max(1, options.runs // options.rounds)
                times.setdefault((name, threads), []).extend(seconds(work) for _ in range(runs))

    def best(codec, op):
        rates = [statistics.median(r) for (c, o, t), r in ours.items() if (c, o) == (codec, op) and "::" not in t]
        return max(rates)

    print(f"copy {statistics.median(copies):.1f} GB/s read and written; GB/s of fp32 input, medians")
    print(f"{'peer':32} {'ms':>8} {'GB/s':>7} {'threads':>7}   {'Tally, 1 thread':22} {'GB/s':>6} {'ratio':>7}")
    for name, (_, codec, op) in wanted.items():
        taken, threads = min((statistics.median(times[name, t]), t) for t in (1, 2))
        rate = best(codec, op)
        print(f"{name:32} {taken * 1e3:8.1f} {gigabytes / taken:7.2f} {threads:7}   {codec + ' ' + op:22} "
              f"{rate:6.2f} {rate * taken / gigabytes:6.1f}x")
    nth = statistics.median(ours["topk", "encode", "std::nth_element"])
    print(f"{'std::nth_element and a scan':32} {gigabytes / nth * 1e3:8.1f} {nth:7.2f} {1:7}   {'topk encode_ef':22} "
          f"{best('topk', 'encode_ef'):6.2f} {best('topk', 'encode_ef') / nth:6.1f}x")


if __name__ == "__main__":
    main()
