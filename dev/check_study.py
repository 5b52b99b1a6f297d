#!/usr/bin/env python3
"""check_study.py [PROGRAM] - README's table of losses is what the committed results of the study give; its driver, the comparison script and the charts work end to end

The driver trains two seeds of a tiny model for 20 steps, is killed in between, and goes on. PROGRAM: a trainer, not to build one. With --write README.md is brought
up to date (python3 dev/study/study.py table --write does the same).
"""
import atexit
import fcntl
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

from checking import Checks, ROOT, clean_environment, read, run, trainer

for folder in ("study", "plots"):
    sys.path.insert(1, os.path.join(ROOT, "dev", folder))
import compare
import curves
import runs
import study

c = Checks()
tmp = tempfile.mkdtemp(prefix="check_study.")
atexit.register(shutil.rmtree, tmp, ignore_errors=True)
ENV = dict(clean_environment(), OMP_NUM_THREADS="1")


def check_readme():
    place = re.search(study.MARKERS, read("README.md"), flags=re.S)
    c.check(place, "README.md", "has no lines <!-- study --> and <!-- /study -->")
    want = study.section(study.read_results(os.path.join(ROOT, "dev/study/results.tsv")))
    c.check(place and place.group(2) == want, "README.md: table of losses", f"run python3 dev/study/study.py table --write; the results give\n{want}")


def check_statistics():
    # Student's t from the usual tables: (share, degrees of freedom, value)
    for p, df, value in ((0.975, 1, 12.7062), (0.95, 1, 6.3138), (0.975, 2, 4.3027), (0.95, 4, 2.1318), (0.975, 4, 2.7764), (0.975, 9, 2.2622), (0.95, 30, 1.6973), (0.975, 121, 1.9798)):
        c.check(abs(runs.t_quantile(p, df) - value) < 6e-5, f"t quantile {p}, {df}", f"{runs.t_quantile(p, df)} instead of {value}")
    c.check(abs(runs.t_cdf(-2.0, 5) + runs.t_cdf(2.0, 5) - 1) < 1e-12 and runs.t_cdf(0.0, 7) == 0.5, "t is symmetric")
    mean, half, bound = runs.paired([1.0, 2.0, 3.0, 4.0, 5.0])  # deviation 1.5811, error 0.7071
    c.check(mean == 3 and abs(half - 1.9632) < 1e-4 and abs(bound - 4.5075) < 1e-4, "paired differences", f"{mean} {half} {bound}")
    c.check(runs.paired([0.5]) == (0.5, None, None), "one pair has no interval")
    c.check(compare.steps_to({0: 4.0, 10: 3.0, 20: 2.0}, 2.5) == 15 and compare.steps_to({0: 4.0, 10: 3.0}, 2.9) is None and compare.steps_to({0: 4.0, 10: 3.0}, 3.0) == 10
            and compare.steps_to({0: 1.0, 10: 3.0}, 2.0) == 0, "steps to a loss")


PRINTED = """| device                | NVIDIA H200                                        |
=> setting grad_accum_steps=1
batch_size B=4 * seq_len T=64 * num_processes=1 and total_batch_size=256
device memory, MiB: parameters 2.7, FP8 weights 2.5, cuBLASLt workspace 32.0, total 37.2 of 24105.1
val loss 5.500000
step   10/20 | loss 3.0 (+nanz)| norm 1.6192 (+nanz)| lr 3.00e-03 | 137.56 ms | n/a bf16 MFU | 7791 tok/s
                  compute 97.5% | memory: 41.0% | fan: 30% | 1980 MHz / 1980 MHz | 350 W / 700 W | 55\u00b0C / 87\u00b0C | no cap
val loss 4.250000
                  compute 97.5% | memory: 41.0% | fan: n/a | 1980 MHz / 1980 MHz | 450 W /   n/a | 55\u00b0C / 87\u00b0C | no cap
step   20/20 | loss 3.0 (+nanz)| norm 1.6192 (+nanz)| lr 3.00e-03 | 137.56 ms | n/a bf16 MFU | 7791 tok/s
val loss 3.125000
total average iteration time: 131.5 ms
"""


def refused(text):
    try:
        return runs.parse(text) and False
    except runs.RunFailed:
        return True


def check_parsing():
    r = runs.parse(PRINTED)
    c.check(r["losses"] == {0: 5.5, 10: 4.25, 20: 3.125} and r["ms"] == 131.5 and r["device"] == "NVIDIA H200" and r["tokens_a_step"] == 256, "what a run printed", str(r))
    c.check(r["memory"] == {"parameters": 2.7, "FP8 weights": 2.5, "cuBLASLt workspace": 32.0, "total": 37.2} and r["watts"] == 400, "memory and power", str(r))
    c.check(refused(PRINTED.replace("val loss 3.125000", "val loss nan")) and refused(PRINTED.replace("total average", "some")), "a run that diverged or was cut short is refused")
    base = [dict(r, losses={0: 5.5, 20: x}) for x in (3.0, 3.1)]
    cells = compare.row("x", [dict(b, losses={0: 5.5, 20: list(b["losses"].values())[-1] + d}) for b, d in zip(base, (0.01, 0.03))], base)
    # difference 0.02, deviation 0.01414, error 0.01, t(0.975, 1) = 12.706; 400 W x 131.5 ms over 256 tokens
    c.check(cells[5] == "never" and cells[6] == "3.0700" and cells[7] == "+0.0200 ± 0.1271" and cells[8] == "+0.65 ± 4.03" and cells[10] == "+0.439 ± 3.012" and cells[11] == f"{400 * 131.5 / 256:.3f}", "a row of the comparison", str(cells))
    c.check(compare.configurations("current; --preset memory;") == [("bfloat16", ["--dtype", "bfloat16"]), ("current", ["--fp8-recipe", "current", "--dtype", "float8"]),
                                                                   ("--preset memory", ["--preset", "memory", "--dtype", "float8"])], "configurations", str(compare.configurations("current; --preset memory;")))


def check_charts():
    panels = [{"title": "a < b", "x": "step", "y": "%", "series": [("one & two", [(0, 1.0), (10, 0.5), (20, math.nan)]), ("flat", [(0, 1.0)])]}, {"title": "none", "x": "", "y": "", "series": []}]
    curves.write(f"{tmp}/a.svg", panels)
    svg = xml.dom.minidom.parse(f"{tmp}/a.svg")
    text = [t.firstChild.data for t in svg.getElementsByTagName("text") if t.firstChild]
    c.check({"a < b", "one & two", "flat", "no points"} <= set(text), "a chart's words", str(text))
    c.check(curves.ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1] and curves.ticks(-0.3, 0.3) == [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3] and curves.ticks(0, 1500) == [0, 500, 1000, 1500], "ticks",
            f"{curves.ticks(0, 1)} {curves.ticks(-0.3, 0.3)} {curves.ticks(0, 1500)}")
    with open(f"{tmp}/main.log", "w") as f:
        f.write("s:0 tel:5.5\ns:0 trl:5.4 lr:0.001 norm:1.00\ns:1 trl:5.0 lr:0.001 norm:1.00\ns:2 tel:4.5\n")
    code, out = run([sys.executable, "dev/plots/curves.py", f"{tmp}/b.svg", f"run={tmp}/main.log"])
    paths = [p.getAttribute("d") for p in xml.dom.minidom.parse(f"{tmp}/b.svg").getElementsByTagName("path")] if code == 0 else []
    c.check(code == 0 and sum("L" in p for p in paths) == 2, "curves.py draws main.log", f"{out} {paths}")
    code, out = run([sys.executable, "dev/plots/curves.py", f"{tmp}/b.svg", f"run={tmp}/none"])
    c.check(code == 2 and "HINT" in out and "Traceback" not in out, "curves.py without its log", out)


def check_driver(program):
    results, log = f"{tmp}/results.tsv", f"{tmp}/log"
    words = [sys.executable, "-u", "dev/study/study.py", "run", "--small", "--seeds", "2", "--only", "bfloat16,current,moments", "--trainer", program, "--data", tmp, "--commit", "x", "--results"]

    def go(*more, file=results):
        return run(words + [file] + list(more), env=ENV, timeout=120)
    with open(log, "w") as f:  # killed after its first run
        child = subprocess.Popen(words + [results], cwd=ROOT, env=ENV, stdin=subprocess.DEVNULL, stdout=f, stderr=f)
    end = time.monotonic() + 60
    while not (os.path.exists(results) and read(results).count("\n") >= 2) and time.monotonic() < end and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    child.wait()
    c.check(child.returncode == 143 and 1 <= len(study.read_results(results)) < 6, "the driver is killed in between", f"{child.returncode} {read(results)} {read(log)}")
    first = study.read_results(results)[0]
    with open(results, "a") as f:
        f.write("current\t2\thalf a li")
    with open(results) as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        code, out = go()
        c.check(code == 2 and "another study" in out and "HINT" in out, "two at a time are refused", out)
    code, out = go()
    rows = study.read_results(results)
    c.check(code == 0 and [(r["seed"], r["configuration"]) for r in rows] == [(s, n) for s in (1, 2) for n in ("bfloat16", "current", "moments")] and rows[0] == first,
            "it goes on where it was", out + read(results))
    before = read(results)
    code, out = go()
    c.check(code == 0 and read(results) == before, "nothing is trained twice", out)
    code, out = go(file=f"{tmp}/again.tsv")
    again = study.read_results(f"{tmp}/again.tsv")
    same = lambda of: [(r["configuration"], r["seed"], r["losses"], r["final"], r["MiB"], r["probe"], r["data"], r["build"]) for r in of]
    c.check(code == 0 and same(again) == same(rows), "the same again gives the same losses", f"{same(again)}\n{same(rows)}")
    c.check(all(list(map(int, re.findall(r"(\d+):", r["losses"]))) == [0, 10, 20] and r["losses"].endswith(":%.6f" % r["final"]) and r["tokens"] == "5120" for r in rows), "losses on the way", before)
    final = {(r["configuration"], r["seed"]): r["final"] for r in rows}
    c.check(len(set(final.values())) == 6, "every run is another", before)
    percent = [100 * (final["current", s] / final["bfloat16", s] - 1) for s in (1, 2)]
    mean, error = statistics.mean(percent), statistics.stdev(percent) / math.sqrt(2)
    line = next((x for x in study.table(rows).splitlines() if x.startswith("| `current`, the default |")), "")
    want = f"| 2 | {statistics.mean(final['current', s] for s in (1, 2)):.4f} | {mean:+.2f} ± {12.7062 * error:.2f} | {mean + 6.3138 * error:+.2f} |"
    c.check(want in line, "the table's arithmetic", f"{line} lacks {want}")
    for column in ("probe", "data", "setup"):  # runs that are not alike are no pairs
        c.check(study.pairs([dict(r, **({column: "other"} if r["configuration"] == "bfloat16" else {})) for r in rows], "current") == [], f"another {column}: no pair")
    code, out = run([sys.executable, "dev/study/study.py", "status", "--results", results, "--seeds", "2"])
    c.check(code == 0 and re.search(r"^current +seeds 1 2 ", out, flags=re.M) and "| bfloat16 | 2 |" in out, "status", out)
    with open(f"{tmp}/other.tsv", "w") as f:
        f.write(before.replace(rows[0]["setup"], "other", 1))
    code, out = go(file=f"{tmp}/other.tsv")
    c.check(code == 2 and "another model" in out and "HINT" in out, "results of another setup", out)
    with open(results, "a") as f:
        f.write("current\t3\n")
    code, out = go()
    c.check(code == 2 and "line 8" in out and "HINT" in out, "a line with too few columns", out)
    code, out = run([sys.executable, "dev/study/study.py", "run", "--only", "currant"])
    c.check(code == 2 and "currant" in out and "block-pow2" in out, "an unknown configuration", out)


def check_compare(program):
    env = dict(ENV, SEEDS="1 2", STEPS="6", EVERY="3", OUT=f"{tmp}/compare", CONFIGS="current; --preset memory")
    small = ["--train-data", f"{tmp}/train.bin", "--val-data", f"{tmp}/val.bin", "--val-steps", "4"]
    code, out = run(["scripts/compare_fp8_bf16.sh", program] + small + ["-b", "4"], env=env)
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    c.check(code == 0 and len(table) == 5 and [r[0] for r in table[2:]] == ["bfloat16", "current", "--preset memory"], "compare_fp8_bf16.sh", out)
    if code == 0:
        c.check(all(re.fullmatch(r"[+-]\d\.\d{4} ± \d+\.\d{4}", r[7]) and re.fullmatch(r"[+-]\d+\.\d\d ± \d+\.\d\d", r[8]) for r in table[3:]), "differences with intervals", out)
        c.check(float(table[4][4]) < float(table[2][4]) and table[2][5] == "6" and table[2][11] == "n/a", "memory by class, steps, energy", out)
        c.check("CPU device" in table[0][1] and "say nothing about a GPU" in out, "times are marked as the CPU device's", out)
        losses = [list(runs.parse(read(f"{tmp}/compare/bfloat16.{s}.txt"))["losses"].values())[-1] for s in (1, 2)]
        c.check(table[2][6] == f"{statistics.mean(losses):.4f}", "the losses are those of the runs", out)
        c.check(len(xml.dom.minidom.parse(f"{tmp}/compare/curves.svg").getElementsByTagName("g")) == 2, "two charts")
    for what, arguments, more, words in (("a recipe that is none", [], {"CONFIGS": "currant"}, ["currant", "--fp8-recipe"]), ("an option that is none", [], {"CONFIGS": "current --fp9"}, ["--fp9", "--help"]),
                                         ("steps in words", [], {"STEPS": "many"}, ["STEPS='many'"]), ("--seed", ["--seed", "3"], {}, ["SEEDS"]), ("-x", ["-x", "3"], {}, ["STEPS"])):
        code, out = run(["scripts/compare_fp8_bf16.sh", program] + small + arguments, env=dict(env, **more))
        c.check(code in (1, 2) and "HINT" in out and "Traceback" not in out and all(w in out for w in words), f"compare_fp8_bf16.sh: {what}", out)
    code, out = run(["scripts/compare_fp8_bf16.sh", f"{tmp}/no_program"])
    c.check(code == 2 and "make cpu" in out, "compare_fp8_bf16.sh without a program", out)


if "--write" in sys.argv[1:]:
    sys.exit(run([sys.executable, "dev/study/study.py", "table", "--write"])[0])
c.section("README's table", check_readme)
c.section("statistics", check_statistics)
c.section("parsing", check_parsing)
c.section("charts", check_charts)
program = trainer(c, sys.argv[1] if len(sys.argv) > 1 else None)
code, out = run([sys.executable, "data/make_text.py", "--text", "train_gpt_fp8.cu", "--out", tmp])
c.check(code == 0, "data/make_text.py", out)
c.section("the driver", lambda: check_driver(program))
c.section("the comparison", lambda: check_compare(program))
c.end()
