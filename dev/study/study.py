#!/usr/bin/env python3
"""study.py - validation loss of every FP8 configuration against BF16 over paired seeds: hours on a CPU, resumable, for the README's table

    python3 dev/study/study.py run [--trainer FILE] [--data FOLDER] [--results FILE] [--seeds N]     trains what is missing; may be killed and started again at any time
    python3 dev/study/study.py status [--results FILE] [--seeds N]                                   what is done, what is missing, and the table so far
    python3 dev/study/study.py table [--results FILE] [--write]                                      the table; --write: into README.md, between its markers

A pair is two runs with the same seed, which decides initial weights, order of the data and noise of rounding. Seeds are the outer loop, so that whole pairs exist
early. Every finished run appends one line to the results (dev/study/results.tsv; its first line names the columns), with one write; what a kill leaves half is cut at
the next start. A run that was cut short is trained again. Only one process at a time works on a file of results.

Runs are paired only if they are alike: `setup` is a digest of the options that all have, `data` of the shards, and `probe` the loss of a short run in BF16, so that builds, compilers and machines that
compute the same may be mixed, and others are told apart. Options that the program does not have (yet) leave their configuration out, with a note.
The gate: a configuration is as good as BF16 if the one-sided 95 % bound of its mean paired difference is at most 0.25 %. Tests: dev/check_study.py
"""
import argparse
import fcntl
import hashlib
import os
import re
import signal
import statistics
import subprocess
import sys

from runs import ROOT, RunFailed, digest, fail, options_of, paired, text_data, train

# 0.7 M parameters, 1.5 M tokens in many small steps: 3 to 4 minutes on one core of a Zen 4. The end must be flat: where the loss still falls fast, a run that learns
# something a few steps later ends 1 to 3 % apart from its pair, with or without FP8. Widths of 160 and 640: several blocks of 128, not all of them whole.
MODEL = "--layers 2 --heads 5 --channels 160 --seq-len 64 --batch-size 8"
TRAINING = "--max-steps 3000 --learning-rate 3e-3 --warmup-steps 150 --final-lr-fraction 0 --weight-decay 0.1 --beta2 0.99"
VALIDATION = "--val-every 500 --val-steps 128"  # 65,536 tokens, the same ones always
SMALL_MODEL = "--layers 2 --heads 2 --channels 64 --seq-len 64 --batch-size 4"  # of --small
SMALL_TRAINING = "--max-steps 20 --learning-rate 2e-3 --warmup-steps 5 --val-every 10 --val-steps 4"
PROBE = "--max-steps 8 --learning-rate 2e-3 --warmup-steps 5 --val-every 0 --val-steps 4 --dtype bfloat16 --seed 1"
VAL_TOKENS = 65536
BASELINE = "bfloat16"
GATE = 0.25  # percent
# The CPU device sums products in FP32; with this it sums as a Hopper does in fast accumulation, with about 14 bits
HOPPER = {"GPT_CPU_HOPPER_ACCUMULATOR": "1"}

# name, options, environment, what it says in the README. Slow ones last.
CONFIGURATIONS = [
    (BASELINE, "--dtype bfloat16", {}, "bfloat16"),
    ("current", "--fp8-recipe current", {}, "`current`, the default"),
    ("fast-forward", "--fp8-recipe current", HOPPER, "`current` as a Hopper sums: forward with 14 bits"),
    ("delayed", "--fp8-recipe delayed", {}, "`delayed`"),
    ("row", "--fp8-recipe row", {}, "`row`"),
    ("block", "--fp8-recipe block", {}, "`block`"),
    ("block-pow2", "--fp8-recipe block --fp8-power-of-two", {}, "`block` with scales that are powers of two"),
    ("mx", "--fp8-recipe mx", {}, "`mx`"),
    ("fp32-masters", "--dtype bfloat16 --master-dtype float32", {}, "bfloat16 with FP32 masters: what other rounding does by itself"),
    ("moments", "--fp8-recipe current --moment-dtype float8", {}, "`current` with FP8 moments"),
    ("activations", "--fp8-recipe current --fp8-activations", {}, "`current` with FP8 activations"),
    ("memory", "--fp8-recipe current --fp8-activations --moment-dtype float8", {}, "`current` with FP8 activations and moments"),
    ("everything", "--fp8-recipe current --fp8-activations --moment-dtype float8 --fp8-head", {}, "`current` with FP8 activations, moments and head"),
    ("fast-all", "--fp8-recipe current --fp8-fast-dgrad on --fp8-fast-wgrad on", HOPPER, "`current`, all three products with 14 bits"),
]
COLUMNS = ["configuration", "seed", "tokens", "final", "losses", "ms", "MiB", "seconds", "device", "setup", "data", "probe", "build", "commit"]


# ---------------------------------------------------------------------------------------------------------------------
# the file of results

def read_results(path):
    """The runs of a file as dicts, in its order. A last line without a line break is half a line: left out."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")[:-1]
    if not lines:
        return []
    if lines[0].split("\t") != COLUMNS:
        fail(f"'{path}' does not begin with the columns {' '.join(COLUMNS)}", "another version wrote it: move it away")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != len(COLUMNS):
            fail(f"'{path}', line {number}: {len(fields)} columns instead of {len(COLUMNS)}", "remove that line: its run is trained again")
        row = dict(zip(COLUMNS, fields))
        row["seed"], row["final"] = int(row["seed"]), float(row["final"])
        rows.append(row)
    return rows


def alike_of(row):
    """What two runs must have in common to be a pair."""
    return row["seed"], row["setup"], row["data"], row["probe"]


def open_results(path):
    """A descriptor to append to, locked; cuts half a line, writes the first line of a new file."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail(f"another study works on '{path}'", "wait for it, or name another file with --results")
    size = os.fstat(fd).st_size
    content = os.pread(fd, size, 0)
    whole = content.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(fd, whole)
    if whole == 0:
        append(fd, COLUMNS)
    return fd


def append(fd, fields):
    os.write(fd, ("\t".join(fields) + "\n").encode())
    os.fsync(fd)


# ---------------------------------------------------------------------------------------------------------------------
# running

def command_run(a):
    trainer = os.path.abspath(a.trainer)
    options = options_of(trainer)
    data = text_data(a.data)
    fd = open_results(a.results)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the child is ended as well
    fixed = [trainer, "--train-data", f"{data}/train.bin", "--val-data", f"{data}/val.bin", "--sample-every", "0"]
    model = (SMALL_MODEL if a.small else MODEL).split()
    training = model + (SMALL_TRAINING if a.small else f"{TRAINING} {VALIDATION}").split() + ["--log-every", "10"]
    alike = {"setup": hashlib.sha256(" ".join(training).encode()).hexdigest()[:12], "data": digest(f"{data}/train.bin", f"{data}/val.bin"), "build": digest(trainer), "commit": a.commit or commit()}
    if any(r["setup"] != alike["setup"] for r in read_results(a.results)):
        fail(f"'{a.results}' has runs of another model or schedule", "name another file with --results, or move it away")
    probe = train(fixed + model + PROBE.split())
    alike["probe"] = f"{list(probe['losses'].values())[-1]:.6f}"
    wanted = []
    for configuration in CONFIGURATIONS:
        lacks = [word for word in configuration[1].split() if word.startswith("--") and word not in options]
        if lacks:
            print(f"note: {configuration[0]} is left out: this program has no {', '.join(lacks)}", flush=True)
        elif not a.only or configuration[0] in a.only.split(","):
            wanted.append(configuration)
    failures = 0
    for seed in range(1, a.seeds + 1):
        for name, words, env, _ in wanted:
            if any((r["configuration"], alike_of(r)) == (name, (seed, alike["setup"], alike["data"], alike["probe"])) for r in read_results(a.results)):
                continue
            try:
                run = train(fixed + training + words.split() + ["--seed", str(seed)], env)
            except RunFailed as e:  # one that always fails must not keep the others from being trained
                print(f"FAILED {name}, seed {seed}: {e}", flush=True)
                failures += 1
                continue
            steps, final = list(run["losses"].items())[-1]
            row = dict(alike, configuration=name, seed=str(seed), tokens=str(steps * run["tokens_a_step"]), final=f"{final:.6f}", ms=f"{run['ms']:.1f}", MiB=f"{run['memory']['total']:.1f}",
                       losses=",".join(f"{s}:{x:.6f}" for s, x in run["losses"].items()), seconds=f"{run['seconds']:.0f}", device=run["device"])
            append(fd, [row[c] for c in COLUMNS])
            print(f"seed {seed} {name}: {final:.6f} after {run['seconds']:.0f} s", flush=True)
    print("FAILED runs: %d; start again to try them again" % failures if failures else "all done", flush=True)
    return 1 if failures else 0


def commit():
    r = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty=+"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return r.stdout.strip() or "unknown"


# ---------------------------------------------------------------------------------------------------------------------
# the table

def pairs(rows, name):
    """[(loss of the configuration, loss of the baseline)] over the seeds that have both, in runs that are alike."""
    base = {alike_of(r): r["final"] for r in rows if r["configuration"] == BASELINE}
    return [(r["final"], base[alike_of(r)]) for r in rows if r["configuration"] == name and alike_of(r) in base]


def table(rows):
    """The Markdown table, made of nothing but the results."""
    lines = ["| configuration | seeds | validation loss | difference from bfloat16, % | at most, % (95 %) | |", "| --- | --- | --- | --- | --- | --- |"]
    for name, _, _, text in CONFIGURATIONS:
        both = pairs(rows, name)
        if not both:
            continue
        loss = f"{statistics.mean(x for x, _ in both):.4f}"
        if name == BASELINE:
            lines.append(f"| {text} | {len(both)} | {loss} | | | |")
            continue
        mean, half, bound = paired([100 * (x / y - 1) for x, y in both])
        if half is None:
            lines.append(f"| {text} | 1 | {loss} | {mean:+.2f} | | one pair: no bound |")
        else:
            lines.append(f"| {text} | {len(both)} | {loss} | {mean:+.2f} ± {half:.2f} | {bound:+.2f} | {'not worse' if bound <= GATE else f'bound above {GATE} %'} |")
    return "\n".join(lines)


def about(rows):
    """The sentence above the table."""
    if not rows:
        return "No run has finished yet."
    seeds, tokens = len({r["seed"] for r in rows}), sorted({int(r["tokens"]) for r in rows})
    devices, commits = sorted({r["device"] for r in rows}), sorted({r["commit"] for r in rows})
    return (f"{len(rows)} runs of {seeds} seeds, {' and '.join(f'{t:,}' for t in tokens)} tokens each, loss on {VAL_TOKENS:,} tokens; device: {', '.join(devices)}; "
            f"commit: {', '.join(commits)}.")


MARKERS = r"(<!-- study -->\n)(.*?)(\n?<!-- /study -->)"


def section(rows):
    return f"{about(rows)}\n\n{table(rows)}" if rows else about(rows)


def command_table(a):
    rows = read_results(a.results)
    text = section(rows)
    print(text)
    if a.write:
        path = os.path.join(ROOT, "README.md")
        with open(path, encoding="utf-8") as f:
            readme = f.read()
        place = re.search(MARKERS, readme, flags=re.S)
        if not place:
            fail("README.md has no lines <!-- study --> and <!-- /study -->", "put them where the table is to stand")
        with open(path, "w", encoding="utf-8") as f:
            f.write(readme[:place.start(2)] + text + readme[place.end(2):])
        print("README.md written")
    return 0


def command_status(a):
    rows = read_results(a.results)
    wanted, left = range(1, a.seeds + 1), 0.0
    for name, _, _, _ in CONFIGURATIONS:
        mine = [r for r in rows if r["configuration"] == name]
        done = sorted({r["seed"] for r in mine})
        each = statistics.mean(float(r["seconds"]) for r in mine) if mine else None
        left += (each or 300) * len([s for s in wanted if s not in done])
        print(f"{name:14} seeds {' '.join(map(str, done)) or 'none':20} {f'{each:.0f} s each' if each else ''}")
    print(f"{len(rows)} runs; about {left / 3600:.1f} h left\n\n{section(rows)}")
    return 0


def main():
    parser = argparse.ArgumentParser(description="validation loss of FP8 configurations against BF16 over paired seeds")
    parser.add_argument("command", choices=["run", "status", "table"])
    parser.add_argument("--trainer", default=os.path.join(ROOT, "train_gpt_fp8_cpu"), help="default: train_gpt_fp8_cpu")
    parser.add_argument("--data", help="folder with train.bin and val.bin; default: data/text, made if need be")
    parser.add_argument("--results", default=os.path.join(ROOT, "dev/study/results.tsv"))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to N; default 5")
    parser.add_argument("--commit", help="what to note as the program's commit; default: that of this checkout")
    parser.add_argument("--only", help="run: these configurations, separated by commas; default: all that the program can do")
    parser.add_argument("--small", action="store_true", help="run: 20 steps of a tiny model, to try the driver")
    parser.add_argument("--write", action="store_true", help="table: write it into README.md")
    a = parser.parse_args()
    unknown = sorted(set((a.only or BASELINE).split(",")) - {name for name, _, _, _ in CONFIGURATIONS})
    if unknown or a.seeds < 1:
        fail(f"--only names {', '.join(unknown)}" if unknown else f"--seeds {a.seeds} is not a number from 1 on", f"configurations: {', '.join(name for name, _, _, _ in CONFIGURATIONS)}")
    return {"run": command_run, "status": command_status, "table": command_table}[a.command](a)


if __name__ == "__main__":
    sys.exit(main())
