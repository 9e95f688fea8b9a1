#!/usr/bin/env python3
"""run.py PROGRAM [--seconds 600] [--jobs N] [--only REGEX] [--keep]: runs libFuzzer's program on every target.

Each target starts from its own seeds and from corpus/NAME; what it finds goes to fuzz-work/NAME beside the program and
is the start of the next run there. A finding is named with the command that shows it again; the exit status is then 1.
--keep afterwards copies the smallest new inputs that add coverage into corpus/NAME, to be committed.
"""
import argparse, concurrent.futures, hashlib, os, pathlib, re, shutil, subprocess, sys, tempfile, time

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
KEPT_BYTES, KEPT_FILES = 8 << 10, 16  # per target
LIMITS = ["-max_len=4096", "-timeout=120", "-rss_limit_mb=2048"]


def fuzz(program, name, seconds, work, seeds):
    """Runs one target; returns (name, executions, coverage, seconds, log or None)."""
    found = work / name
    found.mkdir(parents=True, exist_ok=True)
    log = work / f"{name}.log"
    folders = [found, seeds / name] + [CORPUS / name] * (CORPUS / name).is_dir()
    began = time.monotonic()
    with log.open("wb") as out:
        try:
            status = subprocess.run(
                [program, f"--target={name}", f"-max_total_time={seconds}", *LIMITS, "-print_final_stats=1",
                 f"-artifact_prefix={work}/{name}-", *folders],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=seconds + 300).returncode
        except subprocess.TimeoutExpired:
            status = "still running"
    text = log.read_text(errors="replace")
    executions = re.findall(r"number_of_executed_units: (\d+)", text) or ["?"]
    coverage = re.findall(r"cov: (\d+)", text) or ["?"]
    return name, executions[-1], coverage[-1], time.monotonic() - began, log if status else None


def tell(program, name, log):
    """What a finding was and how to see it again."""
    text = log.read_text(errors="replace")
    artifact = re.search(r"Test unit written to (\S+)", text)
    told = [line for line in text.splitlines()
            if re.search(r"check failed|runtime error|ERROR: |SUMMARY: |ALARM", line)]
    print(f"{name}: FOUND SOMETHING (log: {log})", *told[:6], sep="\n  ")
    if artifact:
        print(f"  again: {program} --target={name} {artifact[1]}")
        print(f"  once mended, keep it: cp {artifact[1]} {CORPUS / name}/WHAT.bin")


def keep(program, name, work, seeds):
    """Copies what adds coverage to seeds and corpus into the corpus, smallest first, within its bounds."""
    kept = CORPUS / name
    with tempfile.TemporaryDirectory() as folder:
        merged = pathlib.Path(folder)
        for source in [seeds / name, kept]:
            for file in source.iterdir() if source.is_dir() else []:
                shutil.copy(file, merged / ("old-" + file.name))
        done = subprocess.run([program, f"--target={name}", "-merge=1", *LIMITS, merged, work / name],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=900)
        if done.returncode:
            sys.exit(f"{name}: merging failed\n{done.stderr.decode(errors='replace')[-2000:]}")
        new = sorted((f for f in merged.iterdir() if not f.name.startswith("old-")), key=lambda f: f.stat().st_size)
        files = [f.stat().st_size for f in kept.iterdir()] if kept.is_dir() else []
        count, size = len(files), sum(files)
        for file in new:
            data = file.read_bytes()
            count, size = count + 1, size + len(data)
            if count > KEPT_FILES or size > KEPT_BYTES:
                break
            kept.mkdir(parents=True, exist_ok=True)
            (kept / (hashlib.sha256(data).hexdigest()[:12] + ".bin")).write_bytes(data)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=600, help="per target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at once")
    parser.add_argument("--only", default="", help="targets whose name matches")
    parser.add_argument("--keep", action="store_true", help="add to the kept corpus")
    given = parser.parse_args()
    program = given.program.resolve()
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True, timeout=60).stdout
    names = [name for name in listed.split() if re.search(given.only, name)]
    work = program.parent.parent / "fuzz-work"
    seeds = work / "seeds"
    shutil.rmtree(seeds, ignore_errors=True)
    seeds.mkdir(parents=True)
    subprocess.run([program, f"--seeds={seeds}"], check=True, timeout=60)

    found = []
    print(f"{'target':16} {'executions':>12} {'coverage':>9} {'seconds':>8}")
    with concurrent.futures.ThreadPoolExecutor(max(1, given.jobs)) as pool:
        runs = [pool.submit(fuzz, program, name, given.seconds, work, seeds) for name in names]
        for run in concurrent.futures.as_completed(runs):
            name, executions, coverage, seconds, log = run.result()
            print(f"{name:16} {executions:>12} {coverage:>9} {seconds:8.0f}", flush=True)
            if log:
                found.append(name)
                tell(program, name, log)
    if given.keep:
        for name in names:
            if name not in found:
                keep(program, name, work, seeds)
    print(f"{len(names)} targets, {len(found)} with findings" + "".join(f"\n  {name}" for name in found))
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
