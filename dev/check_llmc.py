#!/usr/bin/env python3
"""check_llmc.py [PROGRAM] - a user of llm.c changes only the program's name: their files, commands, scripts and half-finished runs work here

Files are made here byte by byte from llm.c's formats (shared knowledge: offsets and magics, no code), small, in a temporary folder that has llm.c's default
paths. The model that is run most says the same logits a[0..V-1] whatever it reads: the final layernorm's weight is 0 and its bias (1, 0, 0 ...), and
wte[t][0] = a[t]. Its losses, samples and answers can therefore be computed here from the tokens alone, and a printed loss tells which tokens were read.
DEFECTS and GOLDEN at the end say where each row of llm.c's latent defects, and each table of golden values, is tested. PROGRAM: not to build one.
"""
import array
import math
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from checking import Checks, ROOT, read, run, strip_c, trainer
from llmc_files import (LOGIT, LSE, LlmcLoader, Run, Shape, V, VP, bf16_bits, flat, get, header, lookup_loss, model_bytes, put, questions_file, random_tokens, read_model,
                        shard, state_bytes, tokenizer_file, weights, zero_shard)

c = Checks()

# ---------------------------------------------------------------------------- running it

tmp = tempfile.mkdtemp(prefix="check_llmc.")
work = os.path.join(tmp, "llm.c")       # the folder an llm.c user is in
os.makedirs(work)
program = trainer(c, sys.argv[1] if len(sys.argv) > 1 else None)
letters_used, runs = set(), []
ENV = dict(os.environ, OMP_NUM_THREADS="1")  # small models: threads cost more than they give


def train(args, cwd=None):
    """The program with these arguments (a string as in a shell script, so that patterns must be quoted)."""
    letters_used.update(re.findall(r"(?:^|\s)-([a-z]{1,2})(?=\s)", args))
    cwd = cwd or work
    runs.append(args)
    name = os.path.relpath(program, cwd) if len(runs) % 2 else program  # started by a relative path as well as by a full one
    try:
        r = subprocess.run(f"{shlex.quote(name)} {args}", shell=True, cwd=cwd, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    except subprocess.TimeoutExpired:
        return Run(args, 124, "", "no end after 120 s")
    return Run(args, r.returncode, r.stdout.decode("utf-8", "replace"), r.stderr.decode("utf-8", "replace"))


def near(a, b, tolerance=3e-5):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b))


def fine(r, name, steps=None):
    """Did it run to its end?"""
    c.check(r.code == 0 and (steps is None or len(r.steps) == steps), name, f"exit code {r.code}, {len(r.steps)} step lines{'' if steps is None else f' instead of {steps}'}{r}")
    return r.code == 0


def log(folder):
    return get(os.path.join(work, folder, "main.log")).decode()


def files(folder):
    return sorted(os.listdir(os.path.join(work, folder)))


def checkpoint_files(folder):
    return sorted({int(f[5:]) for f in files(folder) if f.startswith("DONE_")}), [f for f in files(folder) if re.match("(model|state|DONE)_", f)]


def expected_files(steps, ranks=1):
    return sorted([f"model_{s:08d}.bin" for s in steps] + [f"DONE_{s:08d}" for s in steps] + [f"state_{s:08d}_{r:05d}.bin" for s in steps for r in range(ranks)])


# ---------------------------------------------------------------------------- the user's folder

rng = random.Random(7)
LONG, SMALL, TINY, ODD = Shape(1, 16, 2, 1024), Shape(2, 64, 4, 64), Shape(1, 16, 2, 64), Shape(2, 60, 4, 64)


shakespeare = random_tokens(rng, 3 * 4096 + 1 + 77), random_tokens(rng, 4096 * 2 + 1 + 5)
train_shards = [random_tokens(rng, n) for n in (2 * 64 * 6 + 1 + 30, 2 * 64 * 3 + 1, 2 * 64 * 4 + 1 + 100)]  # of unequal size
val_shards = [random_tokens(rng, 2 * 64 * 5 + 1 + 9)]
shard(f"{work}/dev/data/tinyshakespeare/tiny_shakespeare_train.bin", shakespeare[0])
shard(f"{work}/dev/data/tinyshakespeare/tiny_shakespeare_val.bin", shakespeare[1])
for i, tokens in enumerate(train_shards):
    shard(f"{work}/dev/data/fineweb10B/fineweb_train_{i + 1:06d}.bin", tokens)
shard(f"{work}/dev/data/fineweb10B/fineweb_val_000000.bin", val_shards[0])
texts = [f"<{i}>".encode() for i in range(V)]
tokenizer_file(f"{work}/gpt2_tokenizer.bin", 2, texts, V - 1)
questions = []  # of seven, the answer that the lookup model gives (the completion of the largest tokens) is right in four
for index in range(7):
    answer = index % 4
    completions = [random_tokens(rng, 4 + i) for i in range(4)]
    completions[answer if index % 2 == 0 else (answer + 1) % 4] = [V - 1 - index] * 3
    questions.append((answer, random_tokens(rng, 3 + index), completions))
questions_file(f"{work}/dev/data/hellaswag/hellaswag_val.bin", questions)
lookup_small, real_small = weights(SMALL, True), weights(SMALL, False)
put(f"{work}/gpt2_124M_bf16.bin", model_bytes(LONG, 5, weights(LONG, True)))
put(f"{work}/small.bin", model_bytes(SMALL, 5, lookup_small))
put(f"{work}/small_f32.bin", model_bytes(SMALL, 3, lookup_small))
put(f"{work}/real.bin", model_bytes(SMALL, 5, real_small))
put(f"{work}/real_f32.bin", model_bytes(SMALL, 3, real_small))
put(f"{work}/tiny.bin", model_bytes(TINY, 5, weights(TINY, True)))
DATA = '-i "dev/data/fineweb10B/fineweb_train_*.bin" -j "dev/data/fineweb10B/fineweb_val_*.bin"'
SHORT = f"{DATA} -b 2 -t 64 -v 0 -s 0"  # nothing but steps, and one validation at the end


def right_answers():
    right = 0
    for label, _, completions in questions:
        means = [sum(LOGIT[t] for t in x) / len(x) for x in completions]
        right += means.index(max(means)) == label
    return right


def sampled_tokens(n):
    """The first n tokens that llm.c's sampler (seed 1337) draws from LOGIT."""
    state, result = 1337, []
    for _ in range(n):
        state ^= state >> 12
        state = (state ^ state << 25) & (1 << 64) - 1
        state ^= state >> 27
        coin = ((state * 0x2545f4914f6cdd1d & (1 << 64) - 1) >> 40) / 2**24 * math.exp(LSE)
        cdf, token = 0.0, 0
        while True:
            cdf += math.exp(LOGIT[token])
            if coin < cdf or token == V - 1:
                break
            token += 1
        assert min(abs(coin - cdf), abs(coin - cdf + math.exp(LOGIT[token]))) > 1e-3, "this coin is too close to call in float32"
        result.append(token)
    return result


def val_loss(tokens, n, batches):
    """Mean over batches of n tokens from the start."""
    return lookup_loss([tokens[i * n:(i + 1) * n + 1] for i in range(batches)])


# ---------------------------------------------------------------------------- the checks


def check_defaults():
    """No option at all: llm.c's default paths and values."""
    before = sorted(os.listdir(work))
    r = train("")
    if not fine(r, "defaults", 3):  # one epoch: floor of all tokens / 4096
        return
    rows = [("Parameter", "Value")], [
        ("train data pattern", "dev/data/tinyshakespeare/tiny_shakespeare_train.bin"), ("val data pattern", "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"),
        ("output log dir", "NULL"), ("checkpoint_every", "0"), ("resume", "0"), ("micro batch size B", "4"), ("sequence length T", "1024"), ("total batch size", "4096"),
        ("LR scheduler", "cosine"), ("learning rate (LR)", "3.000000e-04"), ("warmup iterations", "0"), ("final LR fraction", "1.000000e+00"), ("weight decay", "0.000000e+00"),
        ("skip update lossz", "0.000000"), ("skip update gradz", "0.000000"), ("max_steps", "-1"), ("val_loss_every", "20"), ("val_max_steps", "20"), ("sample_every", "20"),
        ("genT", "64"), ("overfit_single_batch", "0"), ("use_master_weights", "disabled"), ("gelu_fusion", "0"), ("recompute", "1")]
    c.check(r.blocks[0:1] == [[]] and r.blocks[1:3] == list(rows), "parameter table, first block", f"{r.blocks[:3]}{r}")
    c.check([n for n, _ in r.blocks[3]] == ["device", "peak TFlops", "precision"], "parameter table, second block", r.blocks[3])
    c.check(r.blocks[4] == [("weight init method", "gpt2_124M_bf16.bin"), ("max_sequence_length T", "1024"), ("vocab_size V", "200"), ("padded_vocab_size Vp", "256"), ("num_layers L", "1"),
                            ("num_heads NH", "2"), ("channels C", "16"), ("num_parameters", str(LONG.N))], "parameter table, third block", r.blocks[4])
    c.check(r.blocks[5][0] == ("train_num_batches", "3") and r.blocks[5][1][0] == "val_num_batches", "parameter table, fourth block", r.blocks[5])
    c.check(r.blocks[6] == [("run hellaswag", "no")], "parameter table, fifth block", r.blocks[6])
    c.check(r.blocks[7] == [("num_processes", "1"), ("zero_stage", "0")], "parameter table, sixth block", r.blocks[7])
    zero = "| Zero Optimization is disabled                                              |"
    c.check(zero in r.lines and r.lines[r.lines.index(zero) + 1].startswith("| num_processes"), "ZeRO row", str(r))
    for text in (f"num_parameters: {LONG.N} => bytes: {2 * LONG.N}", "allocated 0 MiB for model parameters",
                 "batch_size B=4 * seq_len T=1024 * num_processes=1 and total_batch_size=4096", "=> setting grad_accum_steps=1"):
        c.check(text in r.lines, f"start-up line '{text}'", str(r))
    c.check(r.events == ["val", "step 1", "step 2", "step 3", "val", "sample"], "defaults: what comes in which order", r.events)
    c.check(abs(r.vals[0] - val_loss(shakespeare[1], 4096, 2)) < 3e-5, "defaults: validation loss", f"{r.vals}, should be {val_loss(shakespeare[1], 4096, 2):.6f}")
    c.check(re.fullmatch(r"total average iteration time: \d+\.\d{6} ms", r.lines[-2] or "") and r.lines[-1] == "", "the last line", r.lines[-3:])
    c.check(sorted(os.listdir(work)) == before, "without -o nothing is written", sorted(set(os.listdir(work)) - set(before)))
    c.check(all(s["line"].startswith(f"step {i + 1:4d}/3 | loss ") and s["z"] in ("+nan", "-nan") for i, s in enumerate(r.steps)), "step lines", r.steps)


def check_columns():
    """A CI script of llm.c's reads ten losses from columns 20..27 of the lines from 'step    1/10' on."""
    r = train("-e small_f32.bin -b 1 -t 64 -d 256 -l 0.0001 -v 200 -s 200 -a 1 -x 10 -r 0 -f 0 -j 'dev/data/fineweb10B/fineweb_val_*.bin' -i 'dev/data/fineweb10B/fineweb_train_*.bin'")
    fine(r, "loss checker", 10)
    lines = r.out.splitlines()
    first = next((i for i, line in enumerate(lines) if "step    1/10" in line), 0)
    found = [line[20:28] for line in lines[first:first + 10]]
    c.check(found == [f"{x:.6f}" for x in r.losses], "loss checker: columns 20..27 of ten lines in a row", f"{found}{r}")
    found = r.losses  # from here on without regard to lines between them
    c.check("=> setting grad_accum_steps=4" in r.lines, "loss checker: accumulation", str(r))
    c.check(found and abs(found[0] - val_loss(val_shards[0], 256, 1)) < 3e-5, "-a 1 reads the validation data", f"{found[:1]}, should be {val_loss(val_shards[0], 256, 1):.6f}")
    c.check(all(a > b for a, b in zip(found, found[1:])), "-a 1: the same batch again and again", found)


def check_log(r, folder, name=""):
    """main.log again from the printed lines: llm.c's formats, 0-based steps."""
    due, at = [], 0
    steps, vals, evals = list(r.steps), list(r.vals), list(r.evals)
    for event in r.events:
        if event == "val":
            due.append(f"s:{at} tel:{vals.pop(0):.4f}")
        elif event == "eval":
            due.append(f"s:{at} eval:{float(evals.pop(0)[2]):.4f}")
        elif event.startswith("step"):
            s = steps.pop(0)
            due.append(f"s:{at} trl:{s['loss']:.4f} lr:{float(s['lr']):.6f} norm:{s['norm']:.2f}")
            at += 1
    units = {"tel": 1.01e-4, "trl": 1.01e-4, "eval": 1.01e-4, "lr": 3.01e-6, "norm": 1.01e-2}  # what was printed was rounded once more
    got, word = log(folder).splitlines(), re.compile(r"(\w+):(\d+\.\d+)")
    same = len(got) == len(due) and log(folder).endswith("\n")
    for a, b in zip(got, due):
        same = same and word.sub("#", a) == word.sub("#", b) and all(abs(float(x) - float(y)) < units[key] for (key, x), (_, y) in zip(word.findall(a), word.findall(b)))
    c.check(same, f"main.log of {folder}: {name}llm.c's lines, 0-based", f"{got}\nshould be\n{due}")
    formats = r"s:\d+ (tel:\d+\.\d{4}|eval:\d\.\d{4}|trl:\d+\.\d{4} lr:\d\.\d{6} norm:\d+\.\d\d)"
    c.check(all(re.fullmatch(formats, line) for line in got), f"main.log of {folder}: formats", got)


def check_loop():
    """Everything at once: order of events, values, log, files."""
    shutil.rmtree(f"{work}/loop", ignore_errors=True)
    os.mkdir(f"{work}/loop")
    put(f"{work}/loop/main.log", b"s:0 tel:1.0000\n")
    r = train(f"{DATA} -e small.bin -o loop -b 4 -t 64 -l 0 -v 2 -m 1 -s 2 -g 9 -h 1 -n 2 -nk 1 -x 5 -w 1 -k linear -q 0.5 -u 2")
    if not fine(r, "loop", 5):
        return
    rest = ["val", "eval", "sample", "writing 2", "step 3", "step 4", "val", "eval", "sample", "writing 4", "step 5", "val", "eval", "sample", "writing 5"]
    at = {e: i for i, e in enumerate(r.events)}  # old checkpoints go while training goes on, but before the next one is begun
    c.check([e for e in r.events if not e.startswith("deleting")] == ["val", "step 1", "step 2"] + rest and
            at.get("writing 4", 99) < at.get("deleting 2", -1) < at.get("writing 5", -1) and r.events[-1] == "deleting 4", "loop: events", r.events)
    c.check(near(r.vals, [val_loss(val_shards[0], 256, 1)] * 4), "-m 1: validation loss", r.vals)
    c.check(r.rows.get("val_num_batches") == "1" and r.rows.get("run hellaswag") == "yes", "loop: rows", r.rows)
    c.check(r.evals == [(str(right_answers()), "7", f"{right_answers() / 7:.6f}")] * 3, "HellaSwag: right answers", f"{r.evals}, should be {right_answers()} of 7")
    c.check(r.samples == ["".join(f"<{t}>" for t in sampled_tokens(8))] * 3, "sample: llm.c's coins and tokens", f"{r.samples}, should be {sampled_tokens(8)}")
    for line in ("Writing model to loop/model_00000002.bin", "Writing state to loop/state_00000002_00000.bin"):
        c.check(line in r.lines, line, str(r))
    c.check("created directory: loop" not in r.lines, "an existing folder is not created", str(r))
    c.check(files("loop") == sorted(expected_files([5]) + [f for f in files("loop") if f.startswith(("main.log", "goodput.log"))]), "loop: files", files("loop"))
    check_log(r, "loop", "-y 0 wipes it, ")
    for b in (1, 3):
        odd = train(f"{DATA} -e small.bin -b {b} -t 64 -l 0 -v 0 -s 0 -m 0 -h 1 -x 0")
        c.check(odd.evals == r.evals[:1], f"HellaSwag with -b {b}, where llm.c needs 4", f"{odd.evals}{odd}")
    version, w = read_model(f"{work}/loop/model_00000005.bin", SMALL)
    c.check(version == 5 and flat(SMALL, w) == flat(SMALL, lookup_small), "-l 0 changes no weight; the model file is llm.c's version 5", version)


def check_order():
    """--data-order llmc reads llm.c's tokens in its order; the default order reads everything once an epoch."""
    loader = LlmcLoader(train_shards, 2, 64)
    expected = [lookup_loss([loader.next()]) for _ in range(30)]
    for dtype in ("float32", "bfloat16", "float8"):
        r = train(f"{SHORT} -e small.bin -l 0 -x 30 -m 0 --data-order llmc --dtype {dtype}")
        fine(r, f"llm.c's order, {dtype}", 30)
        c.check(near(r.losses, expected), f"llm.c's token stream, two epochs over unequal shards, {dtype}", f"{r.losses}\nshould be\n{[round(x, 6) for x in expected]}")
    loader = LlmcLoader(train_shards, 2, 64)
    expected = [lookup_loss([loader.next() for _ in range(3)]) for _ in range(5)]
    r = train(f"{SHORT} -e small.bin -l 0 -d 384 -x 5 -m 0 --data-order llmc")
    c.check(near(r.losses, expected), "llm.c's token stream with accumulation", f"{r.losses}\nshould be\n{expected}")
    r = train(f"{SHORT} -e small.bin -l 0 -x 13 -m 0 -b 2")  # 12 + 6 + 9 sequences: 13 batches of 2, and one sequence is left for the next epoch
    sequences = [lookup_loss([s[i * 64:i * 64 + 65]]) for s in train_shards for i in range((len(s) - 1) // 64)]
    missing = sum(sequences) - 2 * sum(r.losses)
    c.check(len(sequences) == 27 and len(r.losses) == 13 and min(abs(missing - x) for x in sequences) < 2e-3, "the default order reads every sequence once an epoch", f"{missing}, {sequences}")
    r = train(f"{SHORT} -e small.bin -l 0 -x 1 -v 1 -m 8 --data-order llmc")
    wrapped = lookup_loss([val_shards[0][i % 5 * 128:i % 5 * 128 + 129] for i in range(8)])
    c.check(near(r.vals, [wrapped] * 2) and r.rows.get("val_num_batches") == "8", "-m above what there is begins again, in llm.c's order", f"{r.vals}, should be {wrapped}")
    r = train(f"{SHORT} -e small.bin -l 0 -x 1 -m -1")
    c.check(near(r.vals, [val_loss(val_shards[0], 128, 5)]) and r.rows.get("val_num_batches") == "5", "-m -1 takes all", f"{r.vals}, {r.rows.get('val_num_batches')}")


GOLDEN_LR = {  # llm.c's, -l 6e-4 -u 10 -x 100 -q 0.1; step: cosine, linear, wsd
    0: (6.00000021e-05, 6.00000021e-05, 6.00000021e-05), 4: (3.00000014e-04, 3.00000014e-04, 3.00000014e-04), 9: (6.00000028e-04, 6.00000028e-04, 6.00000028e-04),
    10: (6.00000028e-04, 6.00000028e-04, 6.00000028e-04), 11: (5.99835534e-04, 5.94000041e-04, 6.00000028e-04), 55: (3.29999981e-04, 3.30000010e-04, 6.00000028e-04),
    80: (1.23168007e-04, 1.80000003e-04, 6.00000028e-04), 81: (1.17237098e-04, 1.74000015e-04, 4.79252340e-04), 90: (7.62829950e-05, 1.19999982e-04, 2.18162357e-04),
    99: (6.01644751e-05, 6.59999787e-05, 7.36731236e-05)}


def check_schedules():
    for i, k in enumerate(("cosine", "linear", "wsd", "constant")):
        r = train(f"{DATA} -e tiny.bin -b 1 -t 16 -v 0 -m 0 -s 0 -l 6e-4 -u 10 -q 0.1 -x 100 -k {k}")
        fine(r, f"-k {k}", 100)
        c.check(r.rows.get("LR scheduler") == k, f"-k {k}: row", r.rows.get("LR scheduler"))
        got = {s["step"] - 1: s["lr"] for s in r.steps}
        if k == "constant":
            c.check(set(got.values()) == {"6.00e-04"}, "-k constant: no warmup, no decay, as llm.c", got)
        else:
            c.check(all(got.get(step) == f"{values[i]:.2e}" for step, values in GOLDEN_LR.items()), f"-k {k}: learning rates", got)


def check_optimizer():
    """-c decays matrices only; -w 1 keeps masters; -l; the model files of both versions."""
    for w, c_, l in ((0, 0.5, 0.1), (1, 0.0, 0.1)):
        folder = f"decay{w}"
        r = train(f"{SHORT} -e small_f32.bin --dtype float32 -o {folder} -x 1 -n 1 -c {c_} -l {l} -m 0 -w {w}")
        if not fine(r, f"-c {c_}", 1):
            continue
        version, after = read_model(f"{work}/{folder}/model_00000001.bin", SMALL)
        c.check(version == 3, "float32 writes version 3", version)
        for name in ("wpe", "qkvw", "attprojw", "fcw", "fcprojw", "ln1w", "ln2w", "qkvb"):  # no gradient: the final layernorm's weight is 0
            factor = 1 - l * c_ if name.endswith("w") and not name.startswith("ln") or name == "wpe" else 1.0
            c.check(all(abs(y - x * factor) <= 1e-7 * abs(x) for x, y in zip(lookup_small[name], after[name])), f"-c {c_}: {name} times {factor}")
        c.check(abs(after["wte"][0] - lookup_small["wte"][0]) > 1e-3, "-l: what has a gradient moves")
        c.check(not any(after["wte"][V * SMALL.C:]), "padded rows stay zero")


def check_precision_flags():
    """-r, -ge, -f, -w, -z, -lg and the flags of several processes change rows, not results."""
    losses = {}
    for name, flags, row in [
        ("plain", "", ("use_master_weights", "disabled")), ("r0", "-r 0", ("recompute", "0")), ("r2", "-r 2", ("recompute", "2")), ("w1", "-w 1", ("use_master_weights", "enabled")),
        ("ge1", "-ge 1", ("gelu_fusion", "1")), ("ge2", "-ge 2", ("gelu_fusion", "2")), ("ge-1", "-ge -1", ("gelu_fusion", "0")), ("z1", "-z 1", ("zero_stage", "1")),
        ("z2", "-z 2", ("zero_stage", "0")), ("z3", "-z 3", ("zero_stage", "0")), ("f0", "-f 0", ("precision", "BF16")), ("lg", "-lg 1", ("precision", "BF16")),
        ("mpi", "-pn 1 -pr 0 -pg 8 -pi mpi", ("num_processes", "1")), ("tcp", "-pn 1 -pi tcp -ps 127.0.0.1", ("num_processes", "1")), ("fs", f"-pi fs -pf {tmp}", ("num_processes", "1")),
        ("pm", "-pm mpi -pp /tmp", ("num_processes", "1")),
    ]:
        r = train(f"{SHORT} -e real.bin -x 3 -l 0.001 --dtype bfloat16 {flags}")
        fine(r, f"flags '{flags}'", 3)
        losses[name] = r.losses
        c.check(r.rows.get(row[0]) == row[1], f"flags '{flags}': row", f"{row[0]} {r.rows.get(row[0])!r}, should be {row[1]!r}{r}")
        message = "| Disabling Zero Optimization, Zero Stage2 and Stage3 are not yet supported  |"
        disabled = "| Zero Optimization is disabled                                              |"
        c.check((message in r.lines) == (name in ("z2", "z3")) and (disabled in r.lines) == (not name.startswith("z")), f"flags '{flags}': ZeRO row", str(r))
        if name == "lg":
            c.check(re.search(r"^ {18}compute .* MHz .* W ", r.out, re.M) or re.search(r"-lg|gpu-info-every|NVML", r.err), "-lg prints a line about the GPU, or says why not", str(r))
    for name in losses:
        exact = name not in ("ge1", "ge2", "w1")
        c.check(losses[name] == losses["plain"] if exact else near(losses[name], losses["plain"], 0.02), f"{name}: same losses", f"{losses[name]}, without {losses['plain']}")
    f32 = [train(f"{SHORT} -e real_f32.bin -x 2 --dtype float32 -f {f}") for f in (0, 1)]
    c.check(near(f32[0].losses, f32[1].losses, 0.01) and all(r.rows.get("precision") in ("FP32", "TF32") for r in f32) and f32[0].rows.get("precision") == "FP32", "-f in float32", f32[0].rows.get("precision"))


def check_aliases():
    r = train("-ix 'dev/data/fineweb10B/fineweb_train_*.bin' -jj 'dev/data/fineweb10B/fineweb_val_*.bin' -e tiny.bin -e small.bin -b 9 -b 2 -tt 64 -v 1 -v 0 -s 5 -s 0 -x 7 -x 2 -g 7 -gx 8")
    fine(r, "aliases and repeated flags", 2)
    for row, value in (("train data pattern", "dev/data/fineweb10B/fineweb_train_*.bin"), ("micro batch size B", "2"), ("sequence length T", "64"), ("max_steps", "2"), ("genT", "8"),
                       ("weight init method", "small.bin")):
        c.check(r.rows.get(row) == value, f"the last of a repeated flag counts: {row}", r.rows.get(row))


def check_skip():
    """-sl, -sg: after 128 steps an outlier is skipped."""
    plain = [rng.randrange(90, 110) for _ in range(16 * 140 + 1)]
    loader = LlmcLoader([list(range(16 * 140 + 1))], 1, 16)
    batches = [loader.next() for _ in range(140)]
    at = batches[134][0]
    tokens = plain[:at + 1] + [0] * 16 + plain[at + 17:]
    shard(f"{work}/outlier.bin", tokens)
    losses = [lookup_loss([[tokens[t] for t in batch]]) for batch in batches]
    window = losses[7:135]
    mean = sum(window) / 128
    z = (window[-1] - mean) / math.sqrt(sum(x * x for x in window) / 128 - mean * mean)
    flags = "-i outlier.bin -j outlier.bin -e tiny.bin -b 1 -t 16 -v 0 -m 0 -s 0 -l 0 --data-order llmc"
    norm_scores = []
    for text in ("loss", "grad"):
        if text == "loss":
            flag, step = "-sl 4", 135
        else:  # between the two largest scores that the first run printed
            flag, step = f"-sg {(norm_scores[-1][0] + norm_scores[-2][0]) / 2:.3f}", norm_scores[-1][1]
        r = train(f"{flags} -x 140 {flag}")
        if not fine(r, flag, 140):
            return
        c.check(near(r.losses, losses), f"{flag}: losses", str(r))
        z_printed = [s["z"] for s in r.steps]
        c.check(all(x in ("+nan", "-nan") for x in z_printed[:128]) and abs(float(z_printed[134]) - z) < 0.02, f"{flag}: z-scores from step 128 on", f"{z_printed[134]}, should be {z:.2f}")
        norm_scores = sorted((float(s["norm_z"]), s["step"]) for s in r.steps[128:])
        skips = [i for i, line in enumerate(r.lines) if line.startswith("skipping")]
        c.check(len(skips) == 1 and re.fullmatch(rf"skipping update due to {text} z-score of \d+\.\d{{6}}", r.lines[skips[0]]) and r.lines[skips[0] + 1].startswith(f"step  {step}/140"),
                f"{flag}: the line, before that of step {step}", [r.lines[i:i + 2] for i in skips])


def check_edges():
    """-v 0, -m 0, -x 1, -x 0, -s 0: no crash, no nan."""
    for flags, events in [("-v 0 -m 2 -x 2", ["step 1", "step 2", "val"]), ("-v 1 -m 0 -x 2", ["step 1", "step 2"]), ("-v 0 -m 0 -x 1", ["step 1"]), ("-v 5 -m 1 -x 0", ["val"]),
                          ("-v 0 -m 0 -x 0 -s 1", ["sample"]), ("-v 0 -m 1 -x 1 -s 9 -g 1", ["step 1", "val", "sample"])]:
        r = train(f"{DATA} -e small.bin -b 2 -t 64 {'' if '-s' in flags else '-s 0'} {flags}")
        c.check(r.code == 0 and r.events == events, flags, f"{r.events}, should be {events}{r}")
        c.check(not re.search(r"\bnan\b|\binf\b", re.sub(r"\([+-]nanz\)", "", r.out)), f"{flags}: no nan", str(r))
    r = train(f"{SHORT} -e small.bin -x 1 -s 1 -g 70")
    c.check(r.code == 0 and len(r.samples) == 1, "-g beyond -t", str(r))
    other = os.path.join(tmp, "no tokenizer")
    os.makedirs(other, exist_ok=True)
    r = train(f"-i ../llm.c/outlier.bin -j ../llm.c/outlier.bin -e ../llm.c/small.bin -b 1 -t 64 -v 0 -m 0 -x 0 -s 1 -g 5 -h 1", cwd=other)
    c.check(r.code == 0 and r.samples == [" ".join(str(t) for t in sampled_tokens(4)) + " "], "without a tokenizer the ids are printed", str(r))
    c.check(r.rows.get("run hellaswag") == "no" and "HellaSwag eval not found at dev/data/hellaswag/hellaswag_val.bin, skipping its evaluation" in r.lines and r.evals == [], "-h 1 without the file", str(r))


def check_keep():
    """-n, -nk, -nm: which checkpoints stay."""
    for flags, x, steps in [("-n 2", 6, [2, 4, 6]), ("-n 2 -nk 2", 8, [6, 8]), ("-n 2 -nk 1 -nm 4", 10, [4, 8, 10]), ("-n 3 -nk 2 -nm 6", 10, [6, 9, 10]), ("-n 5", 3, [3]), ("", 3, [])]:
        folder = "keep_" + re.sub(r"[^0-9nkm]+", "", flags)
        r = train(f"{SHORT} -e tiny.bin -o {folder} -m 0 -x {x} {flags}")
        fine(r, flags, x)
        c.check("created directory: " + folder in r.lines, "created directory", str(r))
        c.check(checkpoint_files(folder) == (steps, expected_files(steps)), f"{flags} -x {x}: files", checkpoint_files(folder))
        written = [int(m) for m in re.findall(r"^Writing checkpoint at step (\d+)$", r.out, re.M)]
        deleted = [int(m) for m in re.findall(r"^Deleting checkpoint at step (\d+)$", r.out, re.M)]
        c.check(sorted(set(written) - set(deleted)) == steps, f"{flags} -x {x}: lines", f"{written}, {deleted}")
        done = [os.stat(os.path.join(work, folder, f)) for s in steps for f in (f"model_{s:08d}.bin", f"state_{s:08d}_00000.bin", f"DONE_{s:08d}")]
        c.check(all(done[i].st_mtime_ns <= done[i + 1].st_mtime_ns <= done[i + 2].st_mtime_ns and done[i + 2].st_size == 0 for i in range(0, len(done), 3)), f"{flags}: model, state, then an empty DONE")


def check_restart_loop():
    """A script's loop that starts the program again until its last DONE is there, killed once: the losses are those of a run in one piece, and so is the log."""
    flags = f"{DATA} -e real.bin -b 2 -t 64 -d 256 -v 2 -m 2 -s 0 -l 0.001 -q 0 -u 2 -c 0.1 -r 0 -n 2 -x 7 -w 1 -z 1"
    whole = train(f"{flags} -o whole")
    fine(whole, "in one piece", 7)
    check_log(whole, "whole")
    with subprocess.Popen(f"exec {shlex.quote(program)} {flags} -o loop_log -y 1", shell=True, cwd=work, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        for line in first.stdout:
            if line.startswith("step    5/7"):
                first.send_signal(signal.SIGKILL)
                break
    script = f'''out_dir=loop_log
    done_file="$out_dir/DONE_00000007"
    for i in 1 2 3; do
        if [ -f "$done_file" ]; then echo "File $done_file exists. Exiting the loop."; break; fi
        {shlex.quote(program)} {flags} -o $out_dir -y 1
    done'''
    code, out = run(script, cwd=work, env=ENV)
    r = Run("restart loop", code, out, "")
    c.check(code == 0 and "exists. Exiting the loop." in out, "the loop ends when DONE is there", str(r))
    start = re.search(r"^resuming from step ([246]) in loop_log$", out, re.M)
    if start:
        n, events = int(start.group(1)), ["val"]
        for step in range(n + 1, 8):
            events += [f"step {step}"] + (["val", f"writing {step}"] if step % 2 == 0 or step == 7 else [])
        c.check(r.events == events, "resumed: validation again, no checkpoint of the resumed step", f"{r.events}, should be {events}")
        c.check(r.rows.get("resume") == "1" and r.rows.get("weight init method") == "intermediate checkpoint", "resumed: rows", r.rows)
        c.check(r.losses == whole.losses[n:] and r.vals == whole.vals[n // 2:], "resumed losses", f"{r.losses}, in one piece {whole.losses}")
    else:
        c.skip("resumed losses", "the first run ended before it could be killed")
    c.check(log("loop_log") == log("whole"), "main.log of a killed and resumed run", f"{log('loop_log')}\nin one piece\n{log('whole')}")
    c.check(get(f"{work}/loop_log/model_00000007.bin") == get(f"{work}/whole/model_00000007.bin"), "resumed weights")
    shutil.copytree(f"{work}/whole", f"{work}/other_batch")
    for step in (6, 7):
        os.remove(f"{work}/other_batch/DONE_{step:08d}")
    other = train(f"{flags} -o other_batch -y 1 -b 1 -d 256")  # our state knows what it was made with
    average = re.search(r"total average iteration time: (\d+\.\d+) ms", other.out)
    if fine(other, "resumed with another -b", 3) and average:
        first, times = other.steps[0], [s["ms"] for s in other.steps[1:]]
        c.check(abs(first["tok"] * first["ms"] / 256e3 - 1) < 0.02, "tok/s after a resume starts at its own speed", first)
        c.check(abs(float(average.group(1)) - sum(times) / len(times)) < 0.02, "the average time is of this process", f"{average.group(1)}, {times}")
    c.check(other.code == 0 and re.search(r"^resume: --batch[-_]size was 2, is 1$", other.out, re.M) and near(other.losses, whole.losses[4:], 0.02), "another -b is said, and reads the same tokens", str(other))
    again = train(f"{flags} -o loop_log -y 1 -x 5")
    c.check(again.code == 0 and again.steps == [], "a resumed step beyond -x ends at once", str(again))
    before = log("whole")
    put(f"{work}/fresh/main.log", b"s:0 tel:9.0000\nfrom a friend\n")
    r = train(f"{flags} -o fresh -y 1 -x 1 -n 0")
    c.check(r.code == 0 and log("fresh").startswith("s:0 tel:9.0000\nfrom a friend\n"), "-y 1 without a checkpoint starts afresh and keeps the log", log("fresh"))
    for step in (6, 7):  # back to step 4: its log is cut there, no step twice
        os.remove(f"{work}/whole/DONE_{step:08d}")
    r = train(f"{flags} -o whole -y 1")
    fine(r, "resumed from an older step", 3)
    c.check(log("whole") == before, "main.log after a resume from an older step: no step twice", log("whole"))
    twin = train(f"{flags} -o twins -x 2")
    fine(twin, "twins", 2)
    states = [get(f"{work}/{d}/state_00000002_00000.bin") for d in ("twins", "whole")]
    differ = [i for i, (a, b) in enumerate(zip(*states)) if a != b]
    c.check(get(f"{work}/twins/model_00000002.bin") == get(f"{work}/whole/model_00000002.bin"), "two runs write the same model")
    c.check(len(states[0]) == len(states[1]) and 0 < len(differ) < 64, "two runs write the same state but for folder, -x and checksums",
            f"{len(differ)} bytes differ, from {differ[:4]}")


SCRIPTS = {  # the flags that llm.c's training scripts give, sizes made small
    "124M": "-b 4 -t 64 -d 512 -r 1 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 2 -n 3 -v 2 -s 4 -h 1",
    "350M": "-b 2 -t 64 -d 256 -r 1 -z 1 -c 0.1 -l 0.0003 -q 0.0 -u 2 -n 2 -v 2 -s 4 -h 1 -x 4",
    "774M": "-b 2 -t 64 -d 256 -r 0 -z 1 -c 0.1 -l 0.0003 -q 0.1 -u 2 -n 2 -v 2 -s 3 -h 1 -x 3 -ge 0 -y 1",
    "1558M": "-b 2 -t 64 -d 256 -r 2 -z 1 -c 0.1 -k cosine -l 0.0006 -q 0.1 -u 2 -n 2 -v 2 -s 5 -h 1 -sl 7.0 -sg 7.0 -nk 2 -nm 4 -ge 1 -y 1 -x 5 -m 3",
    "gpt3": "-b 4 -t 64 -d 256 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.1 -u 2 -n 5 -v 3 -s 5 -h 0 -x 3 -m 1",
    "multi node": "-b 4 -t 64 -d 256 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.1 -u 1 -n 1 -y 0 -v 2 -s 2 -h 0 -x 2 -pn 1 -pr 0 -pg 8 -pi fs -pf . -ps ''",
}


def check_scripts():
    for name, flags in SCRIPTS.items():
        folder = "log_" + name.replace(" ", "_")
        r = train(f"{DATA} -o {folder} -e real.bin {flags}")
        if not fine(r, f"script {name}"):
            continue
        steps = len(r.steps)
        x = re.search(r"-x (\d+)", flags)
        d = int(re.search(r"-d (\d+)", flags).group(1))
        c.check(steps == (int(x.group(1)) if x else sum(map(len, train_shards)) // d), f"script {name}: steps", f"{steps}{r}")
        c.check(r.losses[-1] < r.losses[0] + 0.1 and all(math.isfinite(x) for x in r.losses), f"script {name}: losses", r.losses)
        c.check(f"DONE_{steps:08d}" in files(folder) and "main.log" in files(folder), f"script {name}: files", files(folder))
        c.check(r.rows["output log dir"] == folder and r.rows["weight decay"] == "1.000000e-01", f"script {name}: rows", r.rows)


DESCRIPTORS = {"d6": (6, 384, 6, 1024), "d12": (12, 768, 12, 1024), "d24": (24, 1024, 16, 1024), "d36": (36, 1280, 20, 1024), "d48": (48, 1600, 25, 1024), "d60": (60, 1920, 30, 1024),
               "d72": (72, 2880, 30, 1024), "d84": (84, 3456, 36, 1024), "gpt2:d12": (12, 768, 12, 1024), "gpt3:c384": (6, 384, 6, 2048), "gpt3:c768": (12, 768, 12, 2048),
               "gpt3:c1024": (24, 1024, 16, 2048), "gpt3:c1536": (24, 1536, 16, 2048), "gpt3:c2048": (24, 2048, 16, 2048), "gpt3:c2560": (32, 2560, 32, 2048), "gpt3:c4096": (32, 4096, 32, 2048),
               "gpt3:c12288": (96, 12288, 96, 2048)}  # L, C, NH, maxT

FILE_BYTES = {"d6": 60716032, "d12": 248952832, "d24": 709743616, "d36": 1548181504, "d48": 3115373824, "d60": 5508519424, "d72": 14633776384, "d84": 24441316864, "gpt3:c384": 61502464,
              "gpt3:c768": 250525696, "gpt3:c1024": 711840768, "gpt3:c1536": 1520745472, "gpt3:c2048": 2631640064, "gpt3:c2560": 5303348224, "gpt3:c4096": 13317194752,
              "gpt3:c12288": 349209674752}  # of model version 5


def check_descriptors():
    """-e with a descriptor: all sizes (told by the refusal of a sequence that is too long), the initial weights of d6, the refusals."""
    other = os.path.join(tmp, "gpt2 tokens")
    tokenizer_file(f"{other}/gpt2_tokenizer.bin", 1, [f"<{i}>".encode() for i in range(50257)], 0)
    shard(f"{other}/dev/data/tinyshakespeare/tiny_shakespeare_train.bin", [i * 7 % 50257 for i in range(4100)])
    shard(f"{other}/dev/data/tinyshakespeare/tiny_shakespeare_val.bin", [i * 5 % 50257 for i in range(4100)])
    for name, (L, C, NH, max_t) in DESCRIPTORS.items():
        r = train(f"-e {name} -b 1 -t 4096", cwd=other)
        c.check(r.code == 1 and f"L {L}, C {C}, NH {NH}, V 50257, Vp 50304, maxT {max_t}," in r.err, f"-e {name}: sizes", str(r))
    for name, bytes_ in FILE_BYTES.items():
        L, C, NH, max_t = DESCRIPTORS[name]
        path = os.path.join(other, "sparse.bin")
        for extra in (0, 1):  # the trainer's own count of parameters: one byte more is refused
            put(path, header(20240326, 5, max_t, 50257, L, NH, C, 50304))
            try:
                os.truncate(path, bytes_ + extra)
            except OSError as e:
                c.skip(f"{name}: file size", f"no sparse file of {bytes_} bytes here: {e}")
                break
            r = train("-e sparse.bin -b 1 -t 4096", cwd=other)
            found = r.code == 1 and f"L {L}, C {C}, NH {NH}," in r.err if not extra else r.code == 1 and "sparse.bin" in r.err and "1 " in r.err
            c.check(found, f"{name}: {bytes_}{' + 1' * extra} bytes of parameters", str(r))
    r = train("-e d48 -b 65536 -t 1024", cwd=other)
    c.check(r.code == 1 and "2^30" in r.err and "HINT:" in r.err, "more rows than 32 bits count are refused", str(r))
    for name in ("gpt3:c5140", "d13", "gpt3:c512", "gpt4", "x12", "d12foo", "gpt2:", "d"):
        r = train(f"-e {name} -b 1 -t 64", cwd=other)
        c.check(r.code == 1 and f"'{name}'" in r.err and "HINT:" in r.err and "gpt3:c12288" in r.err, f"-e {name}: refused with the list", str(r))
    r = train("-e d6 -o init -b 1 -t 64 -x 0 -n 1 -m 0 -s 9 -g 3", cwd=other)
    if fine(r, "-e d6"):
        for row, value in (("weight init method", "d6"), ("max_sequence_length T", "1024"), ("vocab_size V", "50257"), ("padded_vocab_size Vp", "50304"), ("num_layers L", "6"),
                           ("num_heads NH", "6"), ("channels C", "384"), ("num_parameters", "30357504")):
            c.check(r.rows.get(row) == value, f"-e d6: {row}", r.rows.get(row))
        path = os.path.join(other, "init", "model_00000000.bin")
        c.check(os.path.getsize(path) == 60716032, "-e d6: file size", os.path.getsize(path))
        with open(path, "rb") as f:
            for name, at, values in (("wte", 0, (0.0385382995, 0.0297456831, 0.0180143435, -0.0421104282)), ("last of wte", 50257 * 384 - 1, (-0.0191783588,)), ("padding", 50257 * 384, (0, 0)),
                                     ("wpe", 19316736, (-0.00599673158, 0.0455095582, 0.0517182872, 0.000672199763)), ("ln1w", 19709952, (1.0, 1.0)), ("qkvw", 19714560, (-0.0236073807, 0.00809073728)),
                                     ("attprojw", 22375680, (0.00692613423, -0.00470263464)), ("fcw", 23267328, (0.0580950715, 0.00124859484)), ("fcprojw", 26815488, (0.00849304441, 0.00852636155)),
                                     ("second qkvw", 19714560 + 3 * 384 * 384, (0.0167667922, -0.00392153114))):
                f.seek(1024 + 2 * at)
                bits = struct.unpack(f"<{len(values)}H", f.read(2 * len(values)))
                c.check(bits == tuple(bf16_bits(x) for x in values), f"-e d6: llm.c's initial {name}, rounded", [hex(b) for b in bits])
        c.check(bf16_bits(0.0385382995) == 0x3d1e and bf16_bits(0.0297456831) == 0x3cf4, "golden bfloat16 of wte")
        c.check(len(r.samples) == 1 and re.fullmatch(r"<\d+><\d+>", r.samples[0]), "version 1 tokenizer prints the sample", r.samples)


def check_refusals():
    """llm.c stops with usage, an assertion or a crash; here it is one message with the values and a hint, exit code 1 or 2."""
    put(f"{work}/cut.bin", get(f"{work}/small.bin")[:-2])
    put(f"{work}/long.bin", get(f"{work}/small.bin") + b"\0")
    put(f"{work}/foreign.bin", get(f"{work}/outlier.bin"))
    put(f"{work}/v4.bin", struct.pack("<2i", 20240326, 4) + get(f"{work}/small.bin")[8:])
    for flags, words in [
        ("-b", ["-b"]), ("-b 2 -t", ["-t"]), ("extra", ["extra"]), ("-bxx 2", ["-bxx"]), ("-lx 1", ["-lx"]), ("-nx 1", ["-nx"]), ("-sx 1", ["-sx"]), ("-px 1", ["-px"]), ("-p 1", ["-p"]),
        ("-b four", ["four"]), ("-d 1e6", ["1e6"]), ("-d 100", ["100", "128"]), ("-b 0", ["0"]), ("-t 0", ["0"]), ("-u -1", ["-1"]), ("-r 4", ["4"]), ("-ge 3", ["3"]), ("-z 4", ["4"]), ("-y 1", ["-o", "output-dir"]),
        ("-k cosin", ["cosin", "cosine", "wsd"]), ("-pi ssh", ["ssh", "mpi"]), ("-pr 1 -pi fs", ["1"]), ("-pn 2 -pi tcp", ["-pr"]), ("-b 65536 -t 65536", ["65536"]), ("-t 128", ["128", "64"]), ("-i nothing_*.bin", ["nothing_*.bin"]),
        ("-e missing.bin", ["missing.bin"]), ("-e cut.bin", ["cut.bin"]), ("-e long.bin", ["long.bin"]), ("-e foreign.bin", ["foreign.bin"]), ("-e v4.bin", ["v4.bin", "4"]), ("-o small.bin", ["small.bin"]),
        ("-i small.bin", ["small.bin"]), ("-l nan", ["nan"]), ("-b 99999999999", ["99999999999"]), (f"-pf {'x' * 300}", ["300"]), ("-e real.bin -g 0", ["0"]),
    ]:
        r = train(f"{SHORT} -e small.bin -x 1 {flags}")
        message = r.err.strip().splitlines()
        c.check(r.code in (1, 2) and "HINT:" in r.err and any(w in r.err for w in words) and len(message) <= 8 and not r.steps, f"refused: {flags}", str(r))
    r = train(f"{SHORT} -e small.bin -x 1 -n 1 -m 0")
    c.check(r.code == 0 and "WARNING" in r.err and not r.events[1:], "-n without -o writes nothing, as llm.c, but says so", str(r))


def old_run(folder, step, P=1, B=2, master=True, zero=False, dims=SMALL):
    """A folder as llm.c's runs leave it, after `step` updates of the lookup model on batches of B*64*P tokens. Returns (loaders, m, v, masters or None)."""
    named = lookup_small if dims is SMALL else weights(dims, True)
    w = flat(dims, named)
    masters = array.array("f", w) if master else None
    for i in range(VP * dims.C, dims.N - 2 * dims.C if master else 0):  # all but the embedding and the final layernorm: between two bfloat16, as if rounded down
        masters[i] += masters[i] * 2**-10
    m = array.array("f", [0.0]) * dims.N
    v = array.array("f", [0.0]) * dims.N
    at = 0
    for name, layers, part in dims.tensors:  # moments where the lookup model has no gradient
        if name in ("fcw", "fcprojw"):
            for i in range(layers * part):
                m[at + i], v[at + i] = 2**-10 * (1 + i % 3), 2**-12 * (1 + i % 2)
        at += layers * part
    loaders = [LlmcLoader(train_shards, B, 64, P, rank) for rank in range(P)]
    for loader in loaders:
        for _ in range(step):
            loader.next()
    put(f"{work}/{folder}/model_{step:08d}.bin", model_bytes(dims, 5, named))
    for rank, loader in enumerate(loaders):
        arrays = [zero_shard(dims, x, P, rank) if zero and x is not None else x for x in (m, v, masters)]
        put(f"{work}/{folder}/state_{step:08d}_{rank:05d}.bin", state_bytes(step, P, rank, *arrays, loader))
    put(f"{work}/{folder}/DONE_{step:08d}", b"")
    put(f"{work}/{folder}/main.log", "".join(f"s:{s} trl:9.0000 lr:0.000300 norm:1.00\n" for s in range(step)).encode())
    return loaders, m, v, masters


def check_take_over():
    """-y 1 -o old_run --dtype float8 goes on with an llm.c run: tokens, moments, FP32 masters."""
    counts = [(len(s) - 1) // 128 for s in train_shards]
    order = LlmcLoader(train_shards, 2, 64).order
    ends = [counts[order[0]], counts[order[0]] + counts[order[1]], sum(counts)]
    c.check(len(set(counts)) == 3, "the shards have different numbers of samples (llm.c cannot resume these)", counts)
    for step, name in ((1, "in the first shard"), (ends[0], "at its end"), (ends[0] + 1, "in the second shard"), (ends[1] + 2, "in the third shard"), (ends[2] + 1, "in the second epoch")):
        folder = f"old_run{step}"
        (loader,), m, v, masters = old_run(folder, step)
        expected = [lookup_loss([loader.next()]) for _ in range(12)]
        r = train(f"{SHORT} -y 1 -o {folder} --dtype float8 -l 0 -x {step + 12} -m 0 -n {step + 7}")
        fine(r, f"llm.c's run, {name}", 12)
        c.check(r.rows.get("use_master_weights") == "enabled" and r.rows.get("precision") == "FP8", "llm.c's run: masters are kept without -w", f"{r.rows.get('use_master_weights')} {r.rows.get('precision')}")
        c.check([s["step"] for s in r.steps] == list(range(step + 1, step + 13)), "llm.c's run: steps go on", [s["step"] for s in r.steps])
        c.check(near(r.losses, expected), f"llm.c's run, {name}: its token stream", f"{r.losses}\nshould be\n{[round(x, 6) for x in expected]}")
        c.check(log(folder).count(" trl:") == step + 12 and "s:0 trl:9.0000" in log(folder), "llm.c's run: its log goes on", log(folder))
        done, names = checkpoint_files(folder)
        c.check(done == [step, step + 7, step + 12], "llm.c's run: checkpoints beside it", done)
        state = get(f"{work}/{folder}/state_{step + 7:08d}_00000.bin") if step + 7 in done else b""
        c.check(masters.tobytes() in state, "llm.c's run: FP32 masters unrounded after 7 steps of -l 0", len(state))
        os.remove(f"{work}/{folder}/DONE_{step + 12:08d}")  # the same command once more, now from a checkpoint of ours
        again = train(f"{SHORT} -y 1 -o {folder} --dtype float8 -l 0 -x {step + 12} -m 0 -n {step + 7}")
        c.check(again.code == 0 and again.losses == r.losses[7:] and again.rows.get("use_master_weights") == "enabled", f"llm.c's run, {name}: the same command goes on with our own checkpoint of it",
                f"{again.losses}, should be {r.losses[7:]}{again}")
    # the moments: one update of tensors without a gradient, in float32, where the model file holds the masters
    two = f"{DATA} -b 1 -t 64 -d 128 -v 0 -s 0"
    for dims, P in ((SMALL, 1), (ODD, 1), (ODD, 2)):  # ODD: heads of 15, which the program pads; P 2: shards of ZeRO-1
        _, m, v, masters = old_run("old_moments", 5, P=P, B=2 // P, zero=P > 1, dims=dims)
        r = train(f"{SHORT if P == 1 else two} -y 1 -o old_moments --dtype float32 -l 0.5 -x 6 -m 0 -n 6")
        name = f"llm.c's run: moments, C {dims.C}, {P} processes"
        if fine(r, name, 1):
            _, after = read_model(f"{work}/old_moments/model_00000006.bin", dims)
            at = 0
            for tensor, layers, part in dims.tensors:
                if tensor in ("fcw", "fcprojw", "wpe"):
                    for i in range(0, layers * part, 37):
                        m_hat, v_hat = 0.9 * m[at + i] / (1 - 0.9**6), 0.95 * v[at + i] / (1 - 0.95**6)
                        due = masters[at + i] - 0.5 * m_hat / (math.sqrt(v_hat) + 1e-8)
                        if abs(after[tensor][i] - due) > 1e-6 * max(1, abs(due)):
                            c.check(False, f"{name}: update {tensor}[{i}] from its moments and masters", f"{after[tensor][i]}, should be {due}")
                            break
                    else:
                        c.check(True, "")
                at += layers * part
        shutil.rmtree(f"{work}/old_moments")
    for zero in (False, True):  # two processes
        folder = f"old_two{int(zero)}"
        loaders, m, v, masters = old_run(folder, 3, P=2, B=1, zero=zero)
        expected = [lookup_loss([loader.next() for loader in loaders]) for _ in range(10)]
        r = train(f"{DATA} -b 1 -t 64 -d 128 -v 0 -s 0 -y 1 -o {folder} --dtype float8 -l 0 -x 13 -m 0 -n 9")
        fine(r, "llm.c's run of two processes", 10)
        c.check(near(r.losses, expected), f"llm.c's run of two processes{', ZeRO-1' * zero}: its token stream", f"{r.losses}\nshould be\n{[round(x, 6) for x in expected]}{r}")
        if os.path.exists(f"{work}/{folder}/DONE_00000013"):
            os.remove(f"{work}/{folder}/DONE_00000013")
        again = train(f"{DATA} -b 1 -t 64 -d 128 -v 0 -s 0 -y 1 -o {folder} --dtype float8 -l 0 -x 13 -m 0 -n 9 -w 1 --data-order llmc")
        c.check(again.code == 0 and again.losses == r.losses[6:], f"llm.c's run of two processes{', ZeRO-1' * zero}: our checkpoint of it resumed", str(again))
        state = get(f"{work}/{folder}/state_00000009_00000.bin") if os.path.exists(f"{work}/{folder}/state_00000009_00000.bin") else b""
        c.check(masters.tobytes() in state, f"llm.c's run of two processes{', ZeRO-1' * zero}: masters", len(state))
    loaders, *_ = old_run("old_accum", 4, B=1)  # 4 batches are 2 updates of 2 micro-steps
    for name in ("model_%08d.bin", "state_%08d_00000.bin", "DONE_%08d"):
        os.rename(f"{work}/old_accum/{name % 4}", f"{work}/old_accum/{name % 2}")
    path = f"{work}/old_accum/state_00000002_00000.bin"
    put(path, get(path)[:40] + struct.pack("<i", 2) + get(path)[44:])
    expected = [lookup_loss([loaders[0].next() for _ in range(2)]) for _ in range(6)]
    r = train(f"{DATA} -b 1 -t 64 -d 128 -v 0 -s 0 -y 1 -o old_accum --dtype float8 -l 0 -x 8 -m 0")
    c.check(r.code == 0 and near(r.losses, expected), "llm.c's run with accumulation: its token stream", f"{r.losses}\nshould be\n{expected}{r}")
    old_run("old_overfit", 5)  # llm.c does not shuffle with -a 1, and its state then has no loader part
    path = f"{work}/old_overfit/state_00000005_00000.bin"
    put(path, get(path)[:20] + struct.pack("<i", 0) + get(path)[24:1024 + 12 * SMALL.N])
    r = train(f"{SHORT} -y 1 -o old_overfit --dtype float8 -l 0 -x 7 -m 0 -a 1")
    c.check(r.code == 0 and near(r.losses, [val_loss(val_shards[0], 128, 1)] * 2), "llm.c's run of -a 1 goes on", str(r))
    # what llm.c misreads, takes silently or dies of
    old_run("old_w0", 5)
    r = train(f"{SHORT} -y 1 -o old_w0 --dtype bfloat16 -l 0 -x 7 -m 0 -w 0")
    c.check(r.code == 0 and len(r.steps) == 2 and "masters" in r.out and r.rows.get("use_master_weights") == "disabled", "-w 0 on a state with masters: said, and read rightly", str(r))
    (loader,), *_ = old_run("old_plain", 5, master=False)
    expected = [lookup_loss([loader.next()]) for _ in range(2)]
    r = train(f"{SHORT} -y 1 -o old_plain --dtype float8 -l 0 -x 7 -m 0 -w 1")
    c.check(r.code == 0 and near(r.losses, expected) and r.rows.get("use_master_weights") == "enabled", "-w 1 on a state without masters starts them from the weights", str(r))
    for flags, words in (("-b 4 -d 256", ["state_00000005_00000.bin"]), ("-b 1 -d 128", ["state_00000005_00000.bin"]), ("-t 32", ["state_00000005_00000.bin"])):
        old_run("old_other", 5)
        r = train(f"{SHORT} -y 1 -o old_other --dtype float8 -l 0 -x 7 -m 0 {flags}")
        c.check(r.code == 1 and "HINT:" in r.err and all(w in r.err for w in words) and not r.steps, f"another batch ({flags}) than the state's is refused", str(r))
    old_run("old_cut", 5)
    path = f"{work}/old_cut/state_00000005_00000.bin"
    put(path, get(path)[:-4])
    r = train(f"{SHORT} -y 1 -o old_cut --dtype float8 -x 7 -m 0")
    c.check(r.code == 1 and "HINT:" in r.err and "old_cut" in r.out + r.err and not r.steps, "a state cut short is refused", str(r))
    old_run("old_model", 5)
    put(f"{work}/old_model/model_00000005.bin", get(f"{work}/tiny.bin"))
    r = train(f"{SHORT} -y 1 -o old_model --dtype float8 -x 7 -m 0")
    c.check(r.code == 1 and "HINT:" in r.err and not r.steps, "a state of another model is refused", str(r))
    old_run("old_missing", 5, P=2, B=1)
    os.remove(f"{work}/old_missing/state_00000005_00001.bin")
    r = train(f"{DATA} -b 1 -t 64 -d 128 -v 0 -s 0 -y 1 -o old_missing --dtype float8 -x 7 -m 0")
    c.check(r.code == 1 and "HINT:" in r.err and not r.steps, "a state without its second process is refused", str(r))


def check_nonfinite():
    """One NaN does not end a run: no update, no place in the window, no checkpoint of NaN."""
    w = weights(TINY, True)
    w["lnfb"] = [3e38] + [0.0] * (TINY.C - 1)
    put(f"{work}/nan.bin", model_bytes(TINY, 3, w))
    r = train(f"{SHORT} -e nan.bin --dtype float32 -x 3 -m 0 -o nan -n 1")
    c.check(r.code == 0 and len(r.steps) == 3 and r.out.count("not finite") == 3 and "HINT" not in r.err, "steps that are not finite are skipped and said", str(r))
    if r.code == 0:
        _, after = read_model(f"{work}/nan/model_00000003.bin", TINY)
        c.check(all(math.isfinite(x) for x in flat(TINY, after)), "weights stay finite")


# ---------------------------------------------------------------------------- where all of it is tested

TESTS = "dev/test/"
DEFECTS = {  # llm.c's latent defects by number: what holds here, and the tests: a function of this script, or FILE:TEST. Without tests: why it does not apply
    1: ("the bias gradient accumulates for every size; validation writes no gradient of the logits", [TESTS + "test_kernels_model.cu:bias_backward_matches_oracle_bf16",
        TESTS + "test_kernels_model.cu:classifier_matches_oracle_bf16", "test_gpt_fp8.cu:gpt_float32_gradients_match_finite_differences"]),
    2: ("shards beyond 2 GiB are read", [TESTS + "test_data.cu:dataloader_reads_beyond_4_gigabytes"]),
    3: ("a run over unequal shards is resumed", ["check_take_over", TESTS + "test_data.cu:dataloader_llmc_takes_over_and_resumes"]),
    4: ("a rank without questions has none", [TESTS + "test_eval.cu:eval_every_example_once"]),
    5: ("architectures are found; CUDA 13 compiles it", ["dev/check_make.py:no GPU: all that are supported", "Makefile:gpu-compile"]),
    6: ("a NaN is skipped and does not enter the window", ["check_nonfinite", TESTS + "test_rand.cu:outlier_detector_survives_nan"]),
    7: ("the sampler does not overflow", [TESTS + "test_rand.cu:sampler_edges"]),
    8: ("-v 0, -m 0, -x 1 work", ["check_edges"]),
    9: ("-w 0 on a state with masters reads it rightly", ["check_take_over", TESTS + "test_llmc_state.cu:llmc_state_reads_every_form"]),
    10: ("a state of another model, batch or T is refused or the difference said", ["check_take_over", "check_restart_loop", TESTS + "test_options.cu:options_text_and_diff"]),
    11: ("states hold no stray bytes; llm.c's are not read", ["check_restart_loop", "check_take_over"]),
    12: ("a collective's count is checked against its allocation", [TESTS + "test_nccl.cu:nccl_names_bad_calls", TESTS + "test_comm.cu:comm_all_reduce"]),
    13: ("a shard of the position embedding is cut from all positions, also when T is shorter: ranks with ZeRO-1 train as one", ["dev/check_ranks.py:check_data_parallel"]),
    14: ("weights are gathered after the update: comm_fork waits for the main stream (only a GPU would show it missing; here the order is read, not seen)", []),
    15: ("all ranks round alike: the noise's key holds no rank, and weights are compared", [TESTS + "test_kernels_optimizer.cu:adamw_independent_of_geometry",
        TESTS + "test_kernels_optimizer.cu:adamw_shards_equal_the_whole", "dev/check_ranks.py:check_bits"]),
    16: ("no row beyond the last is touched", [TESTS + "test_kernels_model.cu:layernorm_forward_matches_oracle_bf16"]),
    17: ("every launch names its stream: launch<kernel>() cannot do without", ["check_sources"]),
    18: ("attention counts in 64 bits, and sizes beyond 32-bit rows are refused", ["check_descriptors"]),
    19: ("a file of an earlier run is neither joined nor waited for", [TESTS + "test_control.cu:control_stale_files"]),
    20: ("a quick restart on the same port works", [TESTS + "test_control.cu:control_basics"]),
    21: ("tok/s and the average time are of this process", ["check_restart_loop"]),
    22: ("gpt3:c5140 is refused with the list of what there is", ["check_descriptors"]),
    23: ("there is no FP16", []),
    24: ("embedding gradients need no scratch but lists counted in int", [TESTS + "test_kernels_model.cu:encoder_groups_every_position_once"]),
    25: ("usage errors are a message, a HINT and an exit code", ["check_refusals", TESTS + "test_options.cu:options_refusals"]),
    26: ("what a state replaces is freed: the sanitizer build counts leaks", [TESTS + "test_data.cu:dataloader_llmc_takes_over_and_resumes"]),
    27: ("DONE is removed first", [TESTS + "test_checkpoint_files.cu:crash_at_any_system_call_leaves_a_good_checkpoint", TESTS + "test_checkpoint_files.cu:delete_removes_all_files_of_the_step"]),
    28: ("main.log is cut at the resumed step", ["check_restart_loop", TESTS + "test_checkpoint_files.cu:logger_resume_gives_the_log_of_an_uninterrupted_run"]),
}
GOLDEN = {  # golden values of llm.c's mathematics: what, the tests, and one of the values as it stands in the first test's file
    "generator of the initial values": ([TESTS + "test_rand.cu:rand_mt19937_golden"], "1608637542"),
    "initial values of d6 and gpt3:c384": ([TESTS + "test_rand.cu:rand_init_golden_small"], "0.0280552898"),
    "initial values of d12": ([TESTS + "test_rand.cu:rand_init_golden_d12"], "0.0248654913"),
    "initial values in the model": (["test_gpt_fp8.cu:gpt_initial_values_are_those_of_llmc", "check_descriptors"], "0.0385382995"),
    "schedules": ([TESTS + "test_rand.cu:schedulers_golden", "check_schedules"], "5.99835534e-04"),
    "noise": ([TESTS + "test_kernels_optimizer.cu:noise_golden_values"], "384584876"),
    "xorshift and the sampler's coins": ([TESTS + "test_rand.cu:rand_xorshift_golden", "check_loop"], "0.31086516"),
    "sampler": ([TESTS + "test_rand.cu:sampler_choices_are_llmcs", TESTS + "test_rand.cu:sampler_edges"], "-120.0f"),
    "largest z-score": ([TESTS + "test_rand.cu:outlier_detector_extremes"], "sqrt(127.0)"),
    "permutations and order of the data": ([TESTS + "test_data.cu:dataloader_llmc_golden", TESTS + "test_data.cu:dataloader_llmc_stream_is_llmcs", "check_order"], "1, 3, 9, 7, 6"),
    "file sizes of models": ([TESTS + "test_formats.cu:model_file_sizes_of_gpt2", "check_descriptors"], "3115373824"),
    "operations and peaks": ([TESTS + "test_llmc_golden.cu:mfu_flops_are_llmcs", TESTS + "test_llmc_golden.cu:mfu_peaks_are_llmcs"], "803478528"),
}


def check_sources():
    """The tests that the tables name exist."""
    def exists(test):
        if ":" not in test:
            return test in CHECKS
        path, name = test.split(":", 1)
        text = read(path) if os.path.exists(os.path.join(ROOT, path)) else ""
        return f'{{"{name}",' in text if path.endswith(".cu") else name in text
    for number, (what, tests) in DEFECTS.items():
        missing = [t for t in tests if not exists(t)]
        c.check(not missing, f"defect {number} ({what})", f"no such test: {missing}")
    c.check(sorted(DEFECTS) == list(range(1, 29)), "all 28 defects are in the table")
    for what, (tests, value) in GOLDEN.items():
        missing = [t for t in tests if not exists(t)]
        c.check(not missing and value in read(tests[0].split(":")[0]), f"golden values: {what}", f"no such test: {missing}, or not {value} there")
    sources = [f for f in ["train_gpt_fp8.cu"] + ["llmc/" + f for f in os.listdir(os.path.join(ROOT, "llmc"))] if os.path.isfile(os.path.join(ROOT, f))]
    launches = {f: re.findall(r"<<<[^>]*>>>", strip_c(read(f))) for f in sources}
    c.check(sum(map(len, launches.values())) == 1 and all("stream" in x for found in launches.values() for x in found), "the one place that launches kernels passes a stream", launches)


def check_letters():
    """Every flag of llm.c was given above."""
    letters = ("i j e o lg n nk nm y b t d x k l u q c sl sg v m s g h a f w ge z r pn pr pg pi ps pf").split()
    missing = [x for x in letters if x not in letters_used]
    c.check(not missing, "every flag of llm.c was tried", missing)


CHECKS = {f.__name__: f for f in (check_defaults, check_columns, check_loop, check_order, check_schedules, check_optimizer, check_precision_flags, check_aliases, check_skip, check_edges,
                                  check_keep, check_restart_loop, check_scripts, check_descriptors, check_refusals, check_take_over, check_nonfinite, check_sources, check_letters)}

if __name__ == "__main__":
    try:
        for check in CHECKS.values():
            try:
                check()
            except Exception as e:  # one broken check must not hide the others
                c.check(False, check.__name__, f"{type(e).__name__}: {e}, line {e.__traceback__.tb_next.tb_lineno}")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    c.end()
