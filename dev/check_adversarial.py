#!/usr/bin/env python3
"""check_adversarial.py [PROGRAM] - models made to break FP8: where each recipe breaks, that it is seen, and that the guard catches it

Each case is a model file, or a learning rate, that BF16 trains well. Every recipe trains it on the CPU device, which plays a GPU that has the recipe. Printed:
the worst tensor of fp8.jsonl and the validation loss against BF16's. Asserted: no silent divergence. The loss ends within the bound, or a share in fp8.jsonl
is beyond the guard's limits, or a step was reported as not finite; and where the limits are passed, the guard names that tensor and its run ends within the
bound. Bound: 0.25 % of BF16's loss, or where BF16 itself is chaotic the largest distance that other seeds of its stochastic rounding make. CASES says which
recipes each case breaks. The outliers are also found by --calibrate, and --fp8-calibration holds without a guard.
PROGRAM: not to build one. Options: --only CASE. Standard library only; a minute on one core.
"""
import argparse
import json
import os
import random
import re
import shutil
import tempfile

from checking import Checks, clean_environment, run, trainer
from llmc_files import Shape, V, model_bytes, put, read_model, shard, weights

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?")
parser.add_argument("--only", default="")
args = parser.parse_args()
c = Checks()
program = trainer(c, args.program)
tmp = tempfile.mkdtemp(prefix="check_adversarial.")
ARCH = {"current": 89, "delayed": 90, "row": 90, "block": 90, "mx": 120}
SATURATED, FLUSHED = 0.001, 0.1  # the guard's limits by default
SHAPE = Shape(2, 64, 4, 64)
L, C = SHAPE.L, SHAPE.C
STEPS = 12

# ---------------------------------------------------------------------------- the cases


def data():
    """A chain in which each token has four likely successors, so that there is something to learn in a few steps."""
    rng = random.Random(5)
    for name, n in (("train", 40000), ("val", 4200)):
        t, tokens = 1, []
        for _ in range(n):
            t = (7 * t + rng.randrange(4)) % V if rng.random() < 0.9 else rng.randrange(V)
            tokens.append(t)
        shard(f"{tmp}/{name}.bin", tokens)


def outliers(w):
    """The same function, but one channel of what each layernorm gives is 2^20 times the others, whose columns of the matrix that reads them are as much larger."""
    for layer in range(L):
        for norm, matrix, rows, channel in (("ln1", "qkvw", 3 * C, 5), ("ln2", "fcw", 4 * C, 40)):
            for i in range(C):
                if i != channel:
                    w[norm + "w"][layer * C + i] /= 2.0 ** 20
                    w[norm + "b"][layer * C + i] /= 2.0 ** 20
                    for o in range(layer * rows, (layer + 1) * rows):
                        w[matrix][o * C + i] *= 2.0 ** 20


def dead(w):
    """Layer 0 multiplies with zeros only, and what layer 1's MLP reads is zero: amaxes of 0 for x, w and dy."""
    for name, n in (("qkvw", 3 * C * C), ("attprojw", C * C), ("fcw", 4 * C * C), ("fcprojw", 4 * C * C)):
        w[name][:n] = [0.0] * n
    w["ln2w"][C:] = [0.0] * C


def growing(w):
    """Matrices that begin so small that the first updates multiply them."""
    for name in ("qkvw", "attprojw", "fcw", "fcprojw"):
        w[name] = [x / 1024 for x in w[name]]


def tiny(w):
    """All gradients below the last layernorm are 2^-40 of what they were."""
    w["lnfw"] = [x * 2.0 ** -40 for x in w["lnfw"]]
    w["lnfb"] = [0.0] * C


def spread(w):
    """fcproj reads its inputs with weights that span 40 octaves, and so do the gradients that go to fc."""
    for i, x in enumerate(w["fcprojw"]):
        w["fcprojw"][i] = x * 2.0 ** (-40 * (i % (4 * C)) // (4 * C))


# name: what it does to the weights, learning rate, recipes with tensors beyond the guard's limits, recipes without
ALL = ("current", "delayed", "row", "block", "mx")
CASES = {
    "plain": (lambda w: None, 3e-3, ("delayed",), ("current", "row", "block", "mx")),
    "outlier channels": (outliers, 1e-9, ALL, ()),  # a trained model, so that its layers matter, which AdamW must not move: its steps know nothing of 2^20
    "dead layers": (dead, 3e-3, ("delayed",), ("current", "row", "block", "mx")),
    "growing weights": (growing, 3e-3, ("delayed",), ("current", "block", "mx")),
    "tiny gradients": (tiny, 3e-3, ("delayed",), ("current", "row", "block", "mx")),
    "spread gradients": (spread, 3e-3, ("delayed", "row"), ("current", "block", "mx")),
    "high learning rate": (lambda w: None, 0.1, ALL, ()),
}

# ---------------------------------------------------------------------------- runs


class Trained:
    def __init__(self, model, lr, recipe, more, seed=42):
        folder = tempfile.mkdtemp(dir=tmp)
        env = dict(clean_environment(), OMP_NUM_THREADS="1", GPT_CPU_ARCH=str(ARCH.get(recipe, 90)))
        precision = f"--dtype float8 --fp8-recipe {recipe} --fp8-log-every 1 -o {folder}" if recipe else "--dtype bfloat16"
        self.code, self.out = run(f"{program} --train-data {tmp}/train.bin --val-data {tmp}/val.bin --model {model} --batch-size 4 --seq-len 64 --max-steps {STEPS} "
                                  f"--val-every 0 --val-steps 8 --sample-every 0 --data-order llmc --learning-rate {lr} --seed {seed} {precision} {more}", env=env)
        vals = re.findall(r"^val loss (\S+)$", self.out, re.M)
        self.val = float(vals[-1]) if vals else float("nan")
        self.nonfinite = "not finite" in self.out
        self.guard = re.findall(r"^fp8 guard: step \d+: (\S+): .* is in BF16 until", self.out, re.M)
        self.tensors = []
        if recipe and os.path.exists(f"{folder}/fp8.jsonl"):
            with open(f"{folder}/fp8.jsonl") as f:
                self.tensors = [json.loads(line) for line in f]
        used = [t for t in self.tensors if not t["bf16"]]
        self.saturated = max((t["saturated"] for t in used), default=0.0)
        self.flushed = max((t["flushed"] for t in used), default=0.0)
        self.sqnr = min((t["sqnr_db"] for t in used if t["sqnr_db"] is not None), default=float("nan"))
        self.beyond = sorted({t["tensor"] for t in used if t["saturated"] > SATURATED or t["flushed"] > FLUSHED})
        shutil.rmtree(folder)


def trained_weights():
    put(f"{tmp}/random.bin", model_bytes(SHAPE, 3, weights(SHAPE, lookup=False)))
    code, out = run(f"{program} --train-data {tmp}/train.bin --val-data {tmp}/val.bin --model {tmp}/random.bin --batch-size 4 --seq-len 64 --max-steps 150 --val-every 0 --sample-every 0 "
                    f"--learning-rate 0.003 --dtype bfloat16 -o {tmp}/trained -n 150", env=dict(clean_environment(), OMP_NUM_THREADS="1"))
    c.check(code == 0, "training the model that gets outliers", out[-800:])
    return read_model(f"{tmp}/trained/model_00000150.bin", SHAPE)[1]


def check_case(name):
    change, lr, breaks, holds = CASES[name]
    w = trained_weights() if change is outliers else weights(SHAPE, lookup=False)
    change(w)
    model = f"{tmp}/{name.replace(' ', '_')}.bin"
    put(model, model_bytes(SHAPE, 3, w))
    bf16 = [Trained(model, lr, "", "", seed) for seed in ((42, 43, 44) if lr > 0.01 else (42,))]
    c.check(all(r.code == 0 and not r.nonfinite for r in bf16), f"{name}: BF16 trains it", bf16[0].out[-800:])
    middle = bf16[0].val
    bound = max([0.0025 * middle] + [abs(r.val - middle) for r in bf16])
    print(f"{name}: BF16 {middle:.4f}, bound {bound:.4f}\n  recipe    worst SQNR dB  saturated %   flushed %   loss - BF16  guarded      beyond the limits")
    for recipe in ARCH:
        r = Trained(model, lr, recipe, "")
        away = r.val - middle
        seen = r.beyond or r.nonfinite
        guarded, text = None, "-"
        if r.beyond:
            guarded = Trained(model, lr, recipe, "--fp8-guard-every 1")
            text = f"{guarded.val - middle:+.4f}"
        print(f"  {recipe:8} {r.sqnr:14.2f} {100 * r.saturated:12.4f} {100 * r.flushed:11.4f} {away:+13.4f}  {text:11}  {' '.join(r.beyond[:6])}{' ...' if len(r.beyond) > 6 else ''}", flush=True)
        c.check(r.code == 0 or r.nonfinite, f"{name}, {recipe}: ends well, or says what is not finite", r.out[-800:])
        c.check(abs(away) <= bound or seen, f"{name}, {recipe}: no silent divergence", f"{away:+.4f} from BF16, bound {bound:.4f}, and nothing is beyond a limit")
        c.check(r.beyond or recipe not in breaks, f"{name}, {recipe}: breaks, as known")
        c.check(not r.beyond or recipe not in holds, f"{name}, {recipe}: holds, as known", f"beyond the limits: {r.beyond}")
        if guarded:
            c.check(guarded.code == 0 and not guarded.nonfinite and abs(guarded.val - middle) <= bound, f"{name}, {recipe}: the guard brings it back to BF16", f"{text}, bound {bound:.4f}")
            c.check(guarded.guard and set(guarded.guard) & set(r.beyond), f"{name}, {recipe}: the guard names the tensor", f"{guarded.guard}, not {r.beyond}")


    if change is outliers:  # a calibration sees them beforehand; where scales are fine it finds E5M2 enough, which costs more than BF16 does
        code, out = run(f"{program} --train-data {tmp}/train.bin --val-data {tmp}/val.bin --model {model} --seq-len 64 --calibrate 2 --calibration-file {tmp}/calibration.tsv",
                        env=dict(clean_environment(), OMP_NUM_THREADS="1"))
        c.check(code == 0 and all(f"recipe {recipe:8} 4 of 8 linear layers need BF16" in out for recipe in ("current", "delayed")), f"{name}: a calibration finds the four linear layers", out[-800:])
        for recipe in ARCH:
            r = Trained(model, lr, recipe, f"--fp8-calibration {tmp}/calibration.tsv")
            bf16 = sorted({t["tensor"] for t in r.tensors if t["bf16"] and t["tensor"].endswith(".x")})
            e5m2 = sorted({t["tensor"] for t in r.tensors if not t["bf16"] and t["format"] == "e5m2" and t["tensor"].endswith(".x")})
            print(f"  {recipe:8} calibrated {r.val - middle:+.4f}, in BF16: {' '.join(bf16) or '-'}, E5M2: {' '.join(e5m2) or '-'}", flush=True)
            c.check(r.code == 0 and abs(r.val - middle) <= 2 * bound and not r.beyond and sorted(bf16 + e5m2) == ["l0.fc.x", "l0.qkv.x", "l1.fc.x", "l1.qkv.x"],
                    f"{name}, {recipe}: the calibration takes them out of E4M3", f"{r.val - middle:+.4f}, bound {2 * bound:.4f}; beyond the limits {r.beyond}")


data()
for each in CASES:
    if args.only in each:
        c.section(each, lambda: check_case(each))
shutil.rmtree(tmp)
c.end()
