"""compare.py - the work of scripts/compare_fp8_bf16.sh: the same run in BF16 and in FP8 configurations over several seeds, as one table and two charts

Usage and variables: see that script. Every seed gives one run of each configuration with the same initial weights, data and noise of rounding; differences are
paired. Columns:
    ms a step             average of the program's own times, without the first step; mean over the seeds
    MiB                   device memory by the program's count, all classes; of it activations and optimizer state
    steps to BF16's loss  where a configuration's curve of validation losses (straight between two validations) first reaches the final loss of BF16 with the same seed
    loss, perplexity      of the last validation, means over the seeds, with the paired difference from BF16 and its two-sided 95 % interval (Student's t)
    mJ a token            mean power that NVML reports x time; n/a where it does not answer
On the CPU device ms and mJ are those of that device and say nothing about a GPU: the table says so.
"""
import math
import os
import re
import statistics
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../plots"))
import curves
from runs import RunFailed, fail, options_of, paired, text_data, train

BASELINE = "bfloat16"
DEFAULTS = {"--layers": "2", "--heads": "4", "--channels": "64", "--seq-len": "64", "--batch-size": "8", "--learning-rate": "2e-3", "--warmup-steps": "50",
            "--final-lr-fraction": "0", "--val-steps": "20", "--sample-every": "0"}
OURS = ["--max-steps", "--val-every", "--log-every", "--seed"]  # from STEPS, EVERY and SEEDS


def number(name, default):
    text = os.environ.get(name, default)
    if not re.fullmatch(r"[1-9]\d*", text):
        fail(f"{name}='{text}' is not a number from 1 on", f"for instance {name}={default}")
    return int(text)


def configurations(text):
    """[(name, options)] of "current; block --fp8-power-of-two; --preset memory", the baseline first."""
    result = [(BASELINE, ["--dtype", "bfloat16"])]
    for part in text.split(";"):
        words = part.split()
        if words:
            result.append((" ".join(words), (words if words[0].startswith("-") else ["--fp8-recipe"] + words)))
            if "--dtype" not in words:
                result[-1][1].extend(["--dtype", "float8"])
    if len({name for name, _ in result}) < len(result):
        fail(f"CONFIGS='{text}' names a configuration twice", "bfloat16 is always trained; separate the others by ;")
    return result


def steps_to(curve, target):
    """The step, as a real number, where the curve {step: loss} first is at most target; None if never."""
    points = sorted(curve.items())
    for (s0, x0), (s1, x1) in zip(points, points[1:]):
        if x0 <= target:
            return float(s0)
        if x1 <= target:
            return s0 + (x0 - target) / (x0 - x1) * (s1 - s0)
    return float(points[-1][0]) if points[-1][1] <= target else None


def plus_minus(values, digits):
    mean, half, _ = paired(values)
    return f"{mean:+.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def row(name, mine, base):
    """One line of the table. mine, base: runs of the seeds, in the same order."""
    last = lambda r: list(r["losses"].values())[-1]
    loss, mib = [last(r) for r in mine], lambda k: f"{mine[0]['memory'].get(k, math.nan):.1f}"
    reached = [s for s in (steps_to(m["losses"], last(b)) for m, b in zip(mine, base)) if s is not None]
    ms = statistics.mean(r["ms"] for r in mine)
    watts = [r["watts"] for r in mine if r["watts"] is not None]
    cells = [name, f"{ms:.1f}", mib("total"), mib("activations"), mib("optimizer state"),
             (f"{statistics.mean(reached):.0f}" + ("" if len(reached) == len(mine) else f" ({len(reached)} of {len(mine)})")) if reached else "never",
             f"{statistics.mean(loss):.4f}", "", "", f"{statistics.mean(map(math.exp, loss)):.3f}", "", f"{statistics.mean(watts) * ms / base[0]['tokens_a_step']:.3f}" if watts else "n/a"]
    if mine is not base:
        cells[7] = plus_minus([last(m) - last(b) for m, b in zip(mine, base)], 4)
        cells[8] = plus_minus([100 * (last(m) / last(b) - 1) for m, b in zip(mine, base)], 2)
        cells[10] = plus_minus([math.exp(last(m)) - math.exp(last(b)) for m, b in zip(mine, base)], 3)
    return cells


def print_table(header, rows):
    widths = [max(len(r[i]) for r in [header] + rows) for i in range(len(header))]
    for i, r in enumerate([header] + rows):
        print("| " + " | ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(r, widths))) + " |")
        if i == 0:
            print("| " + " | ".join("-" * w for w in widths) + " |")


def main():
    trainer, given = os.path.abspath(sys.argv[1]), sys.argv[2:]
    steps, every, out = number("STEPS", "300"), number("EVERY", "25"), os.environ.get("OUT", "log_compare")
    seeds = os.environ.get("SEEDS", "1 2 3 4 5").split()
    known, names = options_of(trainer), [word.split("=")[0].replace("_", "-") for word in given if word.startswith("-")]
    gives = lambda option: option in names or (known.get(option) or option) in names
    for name in OURS:
        if gives(name):
            fail(f"{name} is this script's", "set STEPS, EVERY or SEEDS instead")
    defaults = {k: v for k, v in DEFAULTS.items() if not gives(k) and not (k in ("--layers", "--heads", "--channels") and gives("--model"))}
    if not gives("--train-data"):
        data = text_data(None)
        defaults.update({"--train-data": f"{data}/train.bin", "--val-data": f"{data}/val.bin"})
    wanted = configurations(os.environ.get("CONFIGS", "current"))
    for name, options in wanted:
        lacking = [w for w in options if w.startswith("--") and not w.startswith("--no-") and w.split("=")[0] not in known]
        if lacking:
            fail(f"configuration '{name}': {trainer} has no {', '.join(lacking)}", f"{trainer} --help lists its options")
    os.makedirs(out, exist_ok=True)
    fixed = [trainer] + [w for pair in defaults.items() for w in pair] + given + ["--max-steps", str(steps), "--val-every", str(every), "--log-every", str(every),
                                                                               "--gpu-info-every", str(max(1, steps // 50))]
    runs = {name: [] for name, _ in wanted}
    for seed in seeds:
        for name, options in wanted:
            log = os.path.join(out, re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") + f".{seed}.txt")
            try:
                runs[name].append(train(fixed + options + ["--seed", seed], log=log))
            except RunFailed as e:
                print(f"ERROR: {name}, seed {seed}: {e}\nHINT: its output is in {log}", file=sys.stderr)
                return 1
            r = runs[name][-1]
            print(f"seed {seed} {name}: loss {list(r['losses'].values())[-1]:.4f}, {r['seconds']:.0f} s", file=sys.stderr, flush=True)
    base = runs[BASELINE]
    device, cpu = base[0]["device"], base[0]["device"].startswith("CPU device")
    print_table(["configuration", "ms a step" + (", CPU device" if cpu else ""), "MiB", "activations", "optimizer", "steps to BF16's loss", "loss", "- BF16's", "%", "perplexity", "- BF16's",
                 "mJ a token" + (", CPU device" if cpu else "")], [row(name, of, base) for name, of in runs.items()])
    print(f"{device}; {len(seeds)} seed{'s' if len(seeds) > 1 else ''}, {steps} steps of {base[0]['tokens_a_step']} tokens; ± is the two-sided 95 % interval of the mean paired difference" +
          (" (it needs two seeds)" if len(seeds) < 2 else ""))
    if cpu:
        print("time and energy are the CPU device's: they say nothing about a GPU; losses and memory do")
    curves.write_paired(os.path.join(out, "curves.svg"), {name: [r["losses"] for r in of] for name, of in runs.items()}, BASELINE)
    print(f"curves: {out}/curves.svg; outputs of the runs: {out}/*.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
