#!/usr/bin/env python3
"""check_reference.py [--required | --measure] - the PyTorch reference is right, and the committed fixtures are what it makes

Needs PyTorch and numpy: takes python3, else /usr/bin/python3, and skips if neither has them (--required, what `make reference` gives: fails). The reference is held
against judges that share no line with it: formats against a search in tables made from their definition (and ml_dtypes where it is installed), the network
against PyTorch's own transformer layer, float64 gradients against finite differences, the places of rounding against a forward and backward pass written out in
numpy, AdamW against torch.optim's, the recipes against their rules stated a second time, block by block and bit by bit, products against exact sums. Then the
fixtures are made again in a temporary folder and compared: integers, texts, codes and scales exactly, floats by BOUNDS. --measure prints what these were
measured by, and checks nothing.
"""
import math
import os
import subprocess
import sys
import tempfile

from checking import Checks, ROOT

c = Checks()
MAKER = os.path.join(ROOT, "dev", "reference", "make_fixtures.py")


def why_not(python):
    """What this Python lacks for the reference, or ""."""
    r = subprocess.run([python, "-B", MAKER, "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if r.returncode == 0:
        return ""
    return ([line for line in r.stderr.splitlines() if line and not line.startswith("HINT")] or [f"{python}: exit code {r.returncode}"])[-1]


lacks = why_not(sys.executable)
if lacks:
    other = "/usr/bin/python3"
    if os.path.exists(other) and os.path.realpath(sys.executable) != os.path.realpath(other):
        also = why_not(other)
        if not also:
            os.execv(other, [other] + sys.argv)
        lacks += "; " + also
    lacks += " (make reference installs PyTorch)"
    if "--required" in sys.argv:
        c.check(False, "PyTorch", lacks)
    else:
        c.skip("check_reference", lacks)
    c.end()

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "dev", "reference"))
import numpy as np  # noqa: E402
import torch  # noqa: E402
import gpt_reference as ref  # noqa: E402
import make_fixtures as make  # noqa: E402

torch.set_num_threads(1)
FORMATS = (ref.E4M3, ref.E5M2)

# ---------------------------------------------------------------------------- formats


def table(f):
    """All finite magnitudes in the order of their codes, from the definition: exponent field e, mantissa m of M bits, 2^(e - bias) (1 + m/2^M), e = 0: no hidden one."""
    bits, bias, last = {"E4M3": (3, 7, (15, 6)), "E5M2": (2, 15, (30, 3))}[f.name]
    values = []
    for e in range(1 << (7 - bits)):
        for m in range(1 << bits):
            if (e, m) <= last:
                values.append((m / 2**bits) * 2.0**(1 - bias) if e == 0 else (1 + m / 2**bits) * 2.0**(e - bias))
    return np.array(values)


def search_codes(x, f):
    """Codes of float32 x by search for the nearest value in double; of two equally near ones the even code; NaN: 0x7f."""
    values = table(f)
    a = np.minimum(np.abs(np.where(np.isnan(x), np.float32(0), x)).astype(np.float64), values[-1])
    high = np.searchsorted(values, a).clip(1)
    below, above = a - values[high - 1], values[high] - a
    code = np.where((above < below) | ((above == below) & (high % 2 == 0)), high, high - 1)
    return np.where(np.isnan(x), 0x7f, code | np.signbit(x) * 0x80).astype(np.uint8)


def encode(x, f):
    return ref.fp8_encode(torch.from_numpy(x), f).numpy()


def check_formats():
    all_bf16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    random = np.random.RandomState(0)
    for f in FORMATS:
        values = table(f)
        c.check(values[-1] == f.max and len(values) == f.max_code + 1, f"{f.name}: largest value", f"{values[-1]}, {len(values)} codes")
        codes = np.concatenate([np.arange(len(values)), 0x80 + np.arange(len(values))]).astype(np.uint8)
        decoded = ref.fp8_decode(torch.from_numpy(codes), f).numpy()
        c.check(np.array_equal(decoded, np.concatenate([values, -values])), f"{f.name}: decode")
        c.check(all(math.isnan(ref.FP8_VALUES[f][code]) for code in (*range(len(values), 0x80), *range(0x80 + len(values), 0x100))), f"{f.name}: the other codes are NaN")
        ties = np.concatenate([(values[1:] + values[:-1]) / 2, [f.max + (values[-1] - values[-2]) / 2]]).astype(np.float32)
        near = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9)), values.astype(np.float32)])
        scaled = (2.0**random.uniform(-30, 18, 200000)).astype(np.float32)
        for name, x in (("all BF16", all_bf16), ("ties and their neighbours", np.concatenate([near, -near])), ("random float32", scaled)):
            found, due = encode(x, f), search_codes(x, f)
            bad = np.flatnonzero(found != due)
            c.check(len(bad) == 0, f"{f.name} codes of {name}", len(bad) and f"{len(bad)}, first {x[bad[0]]!r}: 0x{found[bad[0]]:02x}, due 0x{due[bad[0]]:02x}")
        try:
            import ml_dtypes
        except ImportError:
            continue
        fits = np.abs(all_bf16) <= f.max  # what it does beyond does not saturate
        theirs = all_bf16[fits].astype(ml_dtypes.float8_e4m3fn if f is ref.E4M3 else ml_dtypes.float8_e5m2).view(np.uint8)
        c.check(np.array_equal(encode(all_bf16, f)[fits], theirs), f"{f.name} codes: ml_dtypes")

    # BF16: the upper half of the float32, plus 1 if the lower half is more than a half, or a half and the upper half odd
    x = np.concatenate([all_bf16, random.randint(0, 2**31, 200000).astype(np.uint32).view(np.float32), (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)])
    x = x[np.isfinite(x)]
    upper, lower = x.view(np.uint32) >> 16, x.view(np.uint32) & 0xffff
    due = (upper + ((lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1)))) << 16
    c.check(np.array_equal(ref.bf16(torch.from_numpy(x)).numpy().view(np.uint32), due), "bf16: nearest, ties to even")


def check_stochastic_rounding():
    n = 200000
    for low in (0, 1, 0x1234, 0x8000, 0xffff):
        for sign in (0, 0x80000000):
            bits = np.full(n, sign | 0x3fc50000 | low, dtype=np.uint32)
            r = ref.stochastic_bf16(torch.from_numpy(bits.view(np.float32)), np.random.RandomState(low)).numpy().view(np.uint32)
            up, p = (r == (sign | 0x3fc60000)).sum(), low / 65536
            c.check(up + (r == (sign | 0x3fc50000)).sum() == n, f"stochastic rounding of lower half {low:#x}", "goes elsewhere than to the two neighbours")
            c.check(abs(up - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + (low != 0), f"stochastic rounding of lower half {low:#x}", f"up {up} of {n} times")


# ---------------------------------------------------------------------------- recipes: their rules, stated once more

E43, E52 = FORMATS
SIZES = {"tensor": (0, 0), "row": (1, 0), "vec128": (1, 128), "blk128": (128, 128), "vec32": (1, 32)}  # (outer, inner) elements of a scale; 0: all there are
RULES = {  # what x, w, dy are scaled by, their formats, whether scales are powers of two
    "current": (("tensor", "tensor", "tensor"), (E43, E43, E52), False),
    "delayed": (("tensor", "tensor", "tensor"), (E43, E43, E52), False),  # its first step
    "row": (("row", "row", "row"), (E43, E43, E43), False),
    "block": (("vec128", "blk128", "vec128"), (E43, E43, E43), False),
    "block_pow2": (("vec128", "blk128", "vec128"), (E43, E43, E43), True),
    "mx": (("vec32", "vec32", "vec32"), (E43, E43, E43), False),
    "mx_e5m2_dy": (("vec32", "vec32", "vec32"), (E43, E43, E52), False),
    "current_e4m3": (("tensor", "tensor", "tensor"), (E43, E43, E43), False),
    "current_e5m2_x": (("tensor", "tensor", "tensor"), (E52, E43, E43), False)}


def bits_of(x):
    return int(np.float32(x).view(np.uint32))


def due_scale(amax, largest):
    """In double: a quotient of two float32 that is rounded to double and then to float32 is rounded as if once."""
    if amax == 0 or not math.isfinite(amax):
        return 1.0
    with np.errstate(over="ignore"):
        return min(float(np.float32(largest / amax)), 2.0**126)


def due_exponent(amax, largest):
    if not math.isfinite(amax):
        return 255 if math.isnan(amax) else 254
    return next(e for e in range(255) if largest * 2.0**(e - 127) >= amax)


def due_order(x, by, f, powers):
    """Block, codes and what a GEMM reads (uint32) of one order, x (outer, inner) float32: the largest magnitude of each block as bits, its scale, the nearest codes."""
    (outer, inner), scale, words = x.shape, np.empty(x.shape), []
    block = tuple(b or n for b, n in zip(SIZES[by], x.shape))
    bits = x.view(np.uint32) & 0x7fffffff
    for o in range(0, outer, block[0]):
        for i in range(0, inner, block[1]):
            here = slice(o, o + block[0]), slice(i, i + block[1])
            amax = float(bits[here].max().view(np.float32))
            if by == "vec32":
                words.append(due_exponent(amax, f.max))
                scale[here] = 2.0**(127 - words[-1])
            else:
                due = due_scale(amax, f.max)
                scale[here] = due = 2.0**(math.frexp(due)[1] - 1) if powers else due
                words.append(bits_of(1.0 / due))
    with np.errstate(over="ignore", invalid="ignore"):
        return block, search_codes((x.astype(np.float64) * scale).astype(np.float32), f), np.array(words, np.uint32)  # the product is exact before it is rounded once


def due_operand(recipe, name, x):
    """Format and both orders."""
    by, formats, powers = (part[("x", "w", "dy").index(name.split("/")[0])] if isinstance(part, tuple) else part for part in RULES[recipe])
    return formats, [due_order(y, by, formats, powers) for y in (x, np.ascontiguousarray(x.T))]


def recipe_named(name):
    return ref.RECIPES.get(name, ref.recipe_current)


def check_rules():
    """Every recipe on tensors of many shapes, with tiles of all kinds, and on all BF16 in order, so that the largest of a block is each of them."""
    c.check(set(RULES) == {"current", *ref.RECIPES}, "every recipe is stated twice", f"{sorted(RULES)}")
    random = np.random.RandomState(5)
    sizes = (48, 48), (80, 144), (144, 80), (272, 128)
    tensors = [(f"{role}/0/{rows}x{cols}", make.tiles_tensor(rows, cols, wild, random)) for role in ("x", "w", "dy") for rows, cols in sizes for wild in (True, False)]
    every = torch.from_numpy((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).reshape(256, 256))
    tensors += [("w/0/every", every), ("dy/0/every", every), ("x/0/wide", make.tiles_tensor(48, 1600, True, random)), ("dy/0/zero", torch.zeros(48, 144)), ("w/0/zero", torch.zeros(144, 48))]
    for recipe in RULES:
        for tensor, x in tensors:
            o = recipe_named(recipe)(ref.new_history(), tensor, x)
            f, due = due_operand(recipe, tensor, x.numpy())
            c.check(np.array_equal(o.x.numpy(), x.numpy(), equal_nan=True), f"{recipe} {tensor}: BF16 values stay what they are")
            for order, q, (block, codes, words) in zip("kt", (o.k, o.t), due):
                c.check(q.format is f and q.block == block, f"{recipe} {tensor}.{order}: format and block", f"{q.format} {q.block}, due {block}")
                c.check(np.array_equal(make.scale_words(q).flatten(), words), f"{recipe} {tensor}.{order}: scales")
                c.check(np.array_equal(q.codes.numpy(), codes), f"{recipe} {tensor}.{order}: codes", f"{(q.codes.numpy() != codes).sum()} of {codes.size}")
    x = torch.from_numpy(random.standard_normal((16, 16)).astype(np.float32))
    for recipe in RULES:  # R1
        a, b = (recipe_named(recipe)(ref.new_history(), "x/0/fc", v) for v in (x, ref.bf16(x)))
        c.check(torch.equal(a.x, b.x) and torch.equal(a.k.codes, b.k.codes) and np.array_equal(a.k.scale, b.k.scale), f"{recipe}: BF16 first")

    for amax, f, e in ((0, E43, 0), (2.0**-133, E43, 0), (448 * 2.0**-127, E43, 0), (449 * 2.0**-127, E43, 1), (448, E43, 127), (450, E43, 128), (2, E43, 120), (1.5, E43, 119), (3.3895e38, E43, 247),
                       (math.inf, E43, 254), (math.nan, E43, 255), (57344, E52, 127), (1, E52, 112), (3.3895e38, E52, 240)):
        c.check(ref.mx_exponent(np.full((1, 1), amax, np.float32), f)[0, 0] == e, f"mx: exponent of amax {amax} in {f.name}", f"{ref.mx_exponent(np.full((1, 1), amax, np.float32), f)}, due {e}")
    for amax, f, due in ((0, E43, 1), (math.inf, E43, 1), (math.nan, E52, 1), (448, E43, 1), (1, E43, 448), (3, E52, np.float32(57344) / np.float32(3)), (2.0**-133, E43, 2.0**126),
                         (448 * 2.0**-126, E43, 2.0**126), (448 * 2.0**-125, E43, 2.0**125), (3.3895e38, E43, np.float32(448) / np.float32(3.3895e38))):
        scale = ref.scale_from_amax(amax, f)
        c.check(scale == due and scale.dtype == np.float32, f"scale of amax {amax} in {f.name}", f"{scale!r}, due {due!r}")


def due_product(a, b, mx):
    """By exact sums, element by element."""
    def parts(q):
        values = table(q.format)[np.minimum(q.codes.numpy() & 0x7f, q.format.max_code)]
        where = [np.arange(n) // m for n, m in zip(values.shape, q.block)]
        return np.where(q.codes.numpy() >= 0x80, -values, values), q.descale[np.ix_(*where)]
    (x, x_scale), (y, y_scale) = parts(a), parts(b)
    out = np.empty((len(x), len(y)), np.float32)
    for i in range(len(x)):
        for j in range(len(y)):
            if mx:
                out[i, j] = math.fsum(x[i] * y[j] * x_scale[i].astype(np.float64) * y_scale[j])
                continue
            for at in range(0, x.shape[1], a.block[1]):
                part = np.float32(math.fsum(x[i, at:at + a.block[1]] * y[j, at:at + a.block[1]])) * (x_scale[i, at] * y_scale[j, at])
                out[i, j] = part if at == 0 else out[i, j] + part
    return out


def check_products():
    random = np.random.RandomState(6)
    for recipe in RULES:
        x, w, dy = (recipe_named(recipe)(ref.new_history(), f"{role}/0/fc", torch.from_numpy(random.standard_normal(shape).astype(np.float32) * 2.0**random.randint(-6, 6, shape[::-1])[0][:, None]))
                    for role, shape in (("x", (144, 272)), ("w", (160, 272)), ("dy", (144, 160))))

        def cut(q, n):  # the first outer rows: block scales of weights have 128
            return q._replace(codes=q.codes[:n])
        for what, a, b in (("fprop", x.k, w.k), ("dgrad", dy.k, w.t), ("wgrad", dy.t, x.t)):
            a, b = cut(a, 7), cut(b, 9)
            found, due = ref.multiply(a, b).numpy(), due_product(a, b, recipe.startswith("mx"))
            c.check(found.dtype == np.float32 and np.array_equal(found, due), f"{recipe} {what}: exact sums", f"{np.abs(found - due).max()} off, {(found != due).sum()} of {due.size}")
    for recipe in RULES:
        x, w = make.tiles_tensor(48, 64, False, random), make.tiles_tensor(32, 64, False, random)
        x[2, 7] = math.nan
        y = ref.multiply(*(recipe_named(recipe)(ref.new_history(), name, v).k for name, v in (("x/0/fc", x), ("w/0/fc", w))))
        c.check(y[2].isnan().all() and not y[:2].isnan().any() and not y[3:].isnan().any(), f"{recipe}: NaN stays in its row of a product", f"{y.isnan().sum()} in {y[2].isnan().sum()}")

    # Which operand enters which product: k that is multiplied by 2 and t by 3, x, w and dy by 5, 7 and 11, show in the products
    factor = {"x": 5.0, "w": 7.0, "dy": 11.0}
    seen = []

    def marked(name, x):
        seen.append(name)
        return ref.Operand(name, x, x * 2 * factor[name.split("/")[0]], x.t() * 3 * factor[name.split("/")[0]])
    g = torch.Generator().manual_seed(1)
    x, w, dy = (torch.randint(-3, 4, s, generator=g).float().requires_grad_(s != (4, 6)) for s in ((4, 8), (6, 8), (4, 6)))
    y = ref.Product.apply(x, w, "0/fc", marked)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    c.check(torch.equal(y, 4 * 35 * (x @ w.t())), "fprop reads x.k and W.k")
    c.check(torch.equal(dx, 6 * 77 * (dy @ w)), "dgrad reads dy.k and W.t")
    c.check(torch.equal(dw, 9 * 55 * (dy.t() @ x)), "wgrad reads dy.t and x.t")
    c.check(seen == ["x/0/fc", "w/0/fc", "dy/0/fc"], "each operand is quantized once", str(seen))


def due_course(length, recent, margin, largest, events):
    """The scales of a tensor's uses, its history kept as bits, eagerly: at the end of a step, not at the next use. events: (word, bits of amax)."""
    past, now, scale, out = [], None, bits_of(1), []
    for word, bits in events:
        if word == "end":
            if now is not None:
                past.insert(0, now)
                del past[length:]
                h = past[0] if recent else max(past)
                if 0 < h < 0x7f800000:
                    with np.errstate(over="ignore"):
                        scale = bits_of(min(float(np.float32(largest / float(np.uint32(h).view(np.float32)))) / 2**margin, 2.0**126))
            now = None
        elif word == "skip":
            now = None
        else:
            used = scale if past else bits_of(due_scale(float(np.uint32(bits).view(np.float32)), largest))
            if word == "use":
                now, scale = bits if now is None else max(now, bits), used
            out.append(used)
    return out


def check_delayed(tmp):
    """Courses of steps: the committed file against the rule; all recipes' scales finite. In the model: accumulation, evaluation in between, steps that are dropped, tensors that are not used."""
    cases = []
    for line in read(make.FIXTURES, "edge_delayed.txt").decode().splitlines()[1:]:
        word, *rest = line.split()
        if word == "case":
            cases.append((rest, [], []))
        else:
            cases[-1][1].append((word, int(rest[0], 16) if rest else 0))
            cases[-1][2].extend([int(rest[1], 16)] if rest else [])
    for (name, length, which, margin, f), events, scales in cases:
        due = due_course(int(length), which == "recent", int(margin), 448 if f == "E4M3" else 57344, events)
        bad = [i for i, (a, b) in enumerate(zip(scales, due)) if a != b]
        c.check(not bad and len(scales) == len(due), f"delayed: {name} {length} {which} {margin} {f}", f"use {bad[:1]}, {len(bad)} of {len(due)}")
        c.check(all(0 < s < 0x7f800000 for s in scales), f"delayed: {name} {length}: scales are finite and positive")
    c.check({int(case[0][1]) for case in cases} >= {1, 16, 1024} and len(cases) > 20, "edge_delayed.txt has all lengths", f"{len(cases)} cases")
    c.check(len({tuple(scales) for case, _, scales in cases if case[0] == "mixed"}) == 3, "lengths 5 and 16 of the largest differ from each other, and from the most recent")
    c.check(read(tmp, "edge_delayed.txt") == read(make.FIXTURES, "edge_delayed.txt"), "edge_delayed.txt")
    c.check(read(tmp, "small_delayed_debug_state.bin") == read(tmp, "small_float8_debug_state.bin"), "delayed: the first step is float8's")

    def run(evaluations):
        gpt, x, y = tiny_gpt("delayed")
        optimizer, seen = ref.AdamW(gpt, make.HYPER, 0), []
        for step in range(5):
            for tokens in (x, y):
                gpt.log = []
                grads = gpt.gradients(tokens, y)[2]
                seen.append({o.name: (bits_of(o.k.scale[0, 0]), bits_of(o.x.abs().max().item())) for o in gpt.log})
                gpt.log = None
                for _ in range(evaluations):
                    before = {name: (s["scale"], s["amax"], list(s["past"])) for name, s in gpt.history.items() if "/" in name}
                    gpt.evaluate(y, x)
                    after = {name: (s["scale"], s["amax"], list(s["past"])) for name, s in gpt.history.items() if "/" in name}
                    c.check(before == after, "an evaluation in the midst of a step changes nothing")
            if step == 2:
                gpt.end_step(dropped=True)
            else:
                optimizer.step(grads)
            for _ in range(evaluations):
                gpt.evaluate(y, x)
        return seen
    seen = run(0)
    c.check(seen == run(1) == run(2), "delayed: a run's history is its own, and evaluations leave no trace in it")
    for name in seen[0]:
        events = [event for step in range(5) for event in (("use", seen[2 * step][name][1]), ("use", seen[2 * step + 1][name][1]), ("skip" if step == 2 else "end", 0))]
        due = due_course(16, False, 0, 57344 if name.startswith("dy/") else 448, events)
        c.check([s[name][0] for s in seen] == due, f"delayed {name}: micro-steps, a dropped step")
    c.check(len({s["x/1/fc"][0] for s in seen}) >= 4, "delayed: scales move", f"{[s['x/1/fc'] for s in seen]}")


def dequantized(q):
    values = table(q.format)[np.minimum(q.codes.numpy() & 0x7f, q.format.max_code)] * q.descale.astype(np.float64)[np.ix_(*(np.arange(n) // b for n, b in zip(q.codes.shape, q.block)))]
    return np.where(q.codes.numpy() >= 0x80, -values, values)


def check_overrides():
    """In the model: what each precision quantizes, and that the gradients are products of it."""
    config, params = make.read_model(os.path.join(make.FIXTURES, "small.bin"))
    tokens = np.frombuffer(read(make.FIXTURES, "small_float8_debug_state.bin")[1024:1024 + 4 * 64], "<i4").astype(np.int64)
    x, y = (torch.from_numpy(part.reshape(2, 16)) for part in np.split(tokens, 2))
    layers, linears = range(config.num_layers), ("qkv", "attproj", "fc", "fcproj")
    for name, p in {**ref.PRECISIONS, **ref.VARIANTS}.items():
        gpt = ref.GPT(config, params, p)
        gpt.log = []
        grads = gpt.gradients(x, y)[2]
        log = {o.name: o for o in gpt.log}
        due = [] if not p.recipe else [(1, linear) for linear in ("qkv", "fc", "fcproj")] if name == "mixed" else [(l, linear) for l in layers for linear in linears]
        due += [(2, "head")] if name == "head" else []
        c.check(set(log) == {f"{role}/{l}/{linear}" for role in ("x", "w", "dy") for l, linear in due} and len(gpt.log) == len(log), f"{name}: what is quantized", f"{sorted(log)}")
        for l, linear in due:
            a, b = (log[f"{role}/{l}/{linear}"] for role in ("dy", "x"))
            dy, inputs = (o.x.numpy().T.astype(np.float64) if name == "row_bf16_wgrad" else dequantized(o.t) for o in (a, b))
            dw = grads["wte"].numpy() if linear == "head" else grads[linear + "w"][l].numpy()
            # sums of N terms; BF16's rounding (2^-9, and as much again for a tie decided by noise)
            bound = len(dy.T) * 2.0**-24 * (np.abs(dy) @ np.abs(inputs).T) + (0 if linear == "head" else 2.0**-8 * np.abs(dw))
            rows = np.setdiff1d(np.arange(len(dw)), x.numpy()) if linear == "head" else np.arange(len(dw))  # the others have a gradient from the embedding as well
            c.check((np.abs(dw - dy @ inputs.T) <= bound)[rows].all(), f"{name}: d{linear}w of layer {l} is dy^T x of what wgrad reads")
            if linear != "head":
                raw = a.x.numpy().astype(np.float64)
                c.check((np.abs(grads[linear + "b"][l].numpy() - raw.sum(0)) <= len(raw) * 2.0**-24 * np.abs(raw).sum(0)).all(), f"{name}: d{linear}b of layer {l} is the sum of dy")
        c.check((grads["wte"][config.vocab_size:] == 0).all(), f"{name}: padded rows of dwte are 0")
    for pattern in ("l2.*", "fc", "l0.head"):
        try:
            ref.GPT(config, params, ref.VARIANTS["mixed"]._replace(bf16=("l0.*", pattern)))
            said = "nothing"
        except ValueError as e:
            said = str(e)
        c.check(f"no linear layer is named {pattern}" in said, f"a pattern that names no layer: {pattern}", said)
    for pattern, count in (("l0.*", 4), ("l1.fc", 1), ("*.attproj", 2), ("*", 8)):
        gpt = ref.GPT(config, params, ref.PRECISIONS["float8"]._replace(bf16=(pattern,)))
        gpt.log = []
        gpt.evaluate(x, y)
        c.check(len(gpt.log) == 16 - 2 * count, f"{pattern} keeps {count} layers in BF16", f"{len(gpt.log)} operands are quantized")


def check_xxh64():
    """Of byte i * 131 + i / 256 * 7 + 17: digests of another implementation (as in dev/test/test_formats.cu)."""
    data = bytes((i * 131 + (i >> 8) * 7 + 17) & 0xff for i in range(65537))
    for size, digest in ((0, 0xef46db3751d8e999), (1, 0xad10cd9780ac4ff7), (3, 0x40626d96276e4594), (4, 0x882207c122c76e23), (7, 0xcfc90033aa9dac4f), (8, 0x90fda2f089fa86de), (15, 0x59f95bad12d14c9d),
                         (31, 0x44cc9efe5d2d0233), (32, 0x0e1aab1d173cf196), (33, 0x5c820b4b4fe28fdc), (63, 0x1153d36cade87066), (100, 0x7f8375f3e09d8123), (65537, 0x92f8144353454746)):
        c.check(make.xxh64(data[:size]) == digest, f"xxh64 of {size} bytes", f"{make.xxh64(data[:size]):x}")

# ---------------------------------------------------------------------------- the network and its gradients


def tiny_gpt(precision="float64"):
    config = ref.Config(max_seq_len=18, vocab_size=11, num_layers=2, num_heads=2, channels=16, padded_vocab_size=16)
    random = np.random.RandomState(3)
    gpt = ref.GPT(config, ref.random_params(config, random), {**ref.PRECISIONS, **ref.VARIANTS}[precision])
    x, y = (torch.from_numpy(random.randint(0, 11, (2, 16), dtype=np.int64)) for _ in range(2))
    return gpt, x, y


def check_network():
    """Against torch's own pre-norm transformer layer, and GELU written out."""
    gpt, x, y = tiny_gpt()
    C, NH, p = gpt.config.channels, gpt.config.num_heads, gpt.params
    B, T = x.shape

    def gelu(h):
        return 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    theirs = {"norm1": "ln1", "self_attn.in_proj_": "qkv", "self_attn.out_proj": "attproj", "norm2": "ln2", "linear1": "fc", "linear2": "fcproj"}
    mask = torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)
    with torch.no_grad():
        r = p["wte"][x] + p["wpe"][:T]
        for l in range(gpt.config.num_layers):
            layer = torch.nn.TransformerEncoderLayer(C, NH, 4 * C, dropout=0.0, activation=gelu, norm_first=True, batch_first=True, dtype=torch.float64)
            state = {}
            for prefix, name in theirs.items():
                dot = "" if prefix.endswith("_") else "."
                state[prefix + dot + "weight"], state[prefix + dot + "bias"] = p[name + "w"][l], p[name + "b"][l]
            layer.load_state_dict(state)
            r = layer(r, src_mask=mask)
        mean, var = r.mean(-1, keepdim=True), r.var(-1, unbiased=False, keepdim=True)
        due = ((r - mean) / (var + 1e-5).sqrt() * p["lnfw"] + p["lnfb"]) @ p["wte"][:gpt.config.vocab_size].t()
        due_loss = -torch.log_softmax(due, -1).gather(-1, y[..., None]).mean()
        logits, loss = gpt.forward(x, y)
    error = (logits - due).abs().max().item()
    c.check(error < 2.0**-40 * due.abs().max().item(), "logits: torch's transformer layer", f"differ by {error:g}")
    c.check(abs(loss - due_loss) < 2.0**-40, "loss: log softmax", f"{loss} {due_loss}")


def check_gradients():
    """d/ds loss(p + s v) at s = 0 for a random direction v in each tensor, by central differences with steps h and h/2: their difference bounds what is left of h."""
    gpt, x, y = tiny_gpt()
    _, loss, grads = gpt.gradients(x, y)
    h = 2.0**-10
    random = np.random.RandomState(4)

    def loss_at(p, v, s):
        with torch.no_grad():
            p.add_(v, alpha=s)
            value = gpt.forward(x, y)[1].item()
            p.sub_(v, alpha=s)
        return value
    for name, p in gpt.params.items():
        v = torch.from_numpy(random.standard_normal(p.shape))
        wide, narrow = ((loss_at(p, v, s) - loss_at(p, v, -s)) / (2 * s) for s in (h, h / 2))
        due = (grads[name] * v).sum().item()
        bound = abs(wide - narrow) + 64 * 2.0**-52 * abs(loss.item()) / h
        c.check(abs(narrow - due) <= bound and bound < 1e-3 * max(abs(due), 0.01), f"gradient of {name}", f"{due:.12g}, finite differences {narrow:.12g}, bound {bound:.2g}")
    c.check((grads["wte"][gpt.config.vocab_size:] == 0).all() and (grads["wpe"][x.shape[1]:] == 0).all(), "padded and unused rows have gradient 0")


def by_hand(config, params, x, y, exact=None):
    """-> {name: values}, places: logits and gradients of bfloat16, its backward pass written out, in numpy's float64 with roundings to BF16 where the README says;
    at the place `exact` none."""
    p = {name: v.numpy().astype(np.float64) for name, v in params.items()}
    (B, T), C, NH, V, places = x.shape, config.channels, config.num_heads, config.vocab_size, []

    def low(place, v):
        places.append(place)
        if place == exact:
            return v
        bits = v.astype(np.float32).view(np.uint32)
        return ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(np.float32).astype(np.float64)

    def layernorm(r, w, b):
        rstd = 1 / np.sqrt(r.var(-1, keepdims=True) + 1e-5)
        norm = (r - r.mean(-1, keepdims=True)) * rstd
        return low("layernorm", norm * w + b), (norm, rstd)

    def layernorm_back(dy, w, saved):
        norm, rstd = saved
        g = dy * w
        return rstd * (g - g.mean(-1, keepdims=True) - norm * (g * norm).mean(-1, keepdims=True)), (dy * norm).sum(0), dy.sum(0)

    def heads(v):
        return v.reshape(B, T, NH, C // NH).transpose(0, 2, 1, 3)

    def rows(v):
        return v.transpose(0, 2, 1, 3).reshape(B * T, C)
    future = np.triu(np.ones((T, T), dtype=bool), 1)
    saved = []
    r = low("residual", (p["wte"][x] + p["wpe"][:T]).reshape(B * T, C))
    for l in range(config.num_layers):
        w = {name: v[l] for name, v in p.items() if name not in ("wte", "wpe", "lnfw", "lnfb")}
        a, ln1 = layernorm(r, w["ln1w"], w["ln1b"])
        q, k, v = (heads(z) for z in np.split(low("qkv", a @ w["qkvw"].T + w["qkvb"]), 3, 1))
        e = np.exp(np.where(future, -np.inf, q @ k.swapaxes(2, 3) / math.sqrt(C // NH)))
        soft = e / e.sum(-1, keepdims=True)
        probabilities = low("probabilities", soft)
        o = low("attention", rows(probabilities @ v))
        r = low("residual", r + low("branch", o @ w["attprojw"].T + w["attprojb"]))
        m, ln2 = layernorm(r, w["ln2w"], w["ln2b"])
        h = low("h", m @ w["fcw"].T + w["fcb"])
        tanh = np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
        g = low("gelu", 0.5 * h * (1 + tanh))
        r = low("residual", r + low("branch", g @ w["fcprojw"].T + w["fcprojb"]))
        slope = 0.5 * (1 + tanh) + 0.5 * h * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * h**2)
        saved.append((w, a, ln1, q, k, v, soft, probabilities, o, m, ln2, slope, g))
    f, lnf = layernorm(r, p["lnfw"], p["lnfb"])
    logits = low("logits", f @ p["wte"][:V].T)

    e = np.exp(logits - logits.max(-1, keepdims=True))
    dlogits = low("dlogits", (e / e.sum(-1, keepdims=True) - np.eye(V)[y.flatten()]) / (B * T))
    d = {name: np.zeros_like(v) for name, v in p.items()}
    d["wte"][:V] = dlogits.T @ f
    dr, d["lnfw"], d["lnfb"] = layernorm_back(low("dlayernorm", dlogits @ p["wte"][:V]), p["lnfw"], lnf)
    dr = low("dresidual", dr)
    for l in reversed(range(config.num_layers)):
        w, a, ln1, q, k, v, soft, probabilities, o, m, ln2, slope, g = saved[l]

        def linear_back(name, dy, operand):
            d[name + "w"][l], d[name + "b"][l] = low("dweight", dy.T @ operand), dy.sum(0)
            return dy @ w[name + "w"]
        dh = low("dh", low("dgelu", linear_back("fcproj", dr, g)) * slope)
        dx, d["ln2w"][l], d["ln2b"][l] = layernorm_back(low("dlayernorm", linear_back("fc", dh, m)), w["ln2w"], ln2)
        dr = low("dresidual", dr + dx)
        do = heads(low("dattention", linear_back("attproj", dr, o)))
        dsoft = do @ v.swapaxes(2, 3)
        ds = low("dscores", soft * (dsoft - (soft * dsoft).sum(-1, keepdims=True)) / math.sqrt(C // NH))
        dqkv = low("dqkv", np.concatenate([rows(ds @ k), rows(ds.swapaxes(2, 3) @ q), rows(probabilities.swapaxes(2, 3) @ do)], 1))
        dx, d["ln1w"][l], d["ln1b"][l] = layernorm_back(low("dlayernorm", linear_back("qkv", dqkv, a)), w["ln1w"], ln1)
        dr = low("dresidual", dr + dx)
    np.add.at(d["wte"], x.flatten(), dr)
    d["wpe"][:T] = dr.reshape(B, T, C).sum(0)
    return {"logits": logits.flatten(), **{"d" + name: v.flatten() for name, v in d.items()}}, sorted(set(places))


def check_rounding(tmp):
    """bfloat16's results are those of by_hand, but for the order of sums; and by_hand, with any one of its roundings left out, is found to differ."""
    values, _ = read_run(tmp, "small")
    config, params = make.read_model(os.path.join(tmp, "small.bin"))
    tokens = np.frombuffer(read(tmp, "small_bfloat16_debug_state.bin")[:1024 + 4 * 64], "<i4")
    B, T = tokens[2:4]
    x, y = (part.reshape(B, T) for part in np.split(tokens[256:], 2))

    def furthest(exact):
        hand, places = by_hand(config, params, x, y, exact)
        off = {t: mean_abs(v - values["bfloat16", t]) / mean_abs(values["bfloat16", t] - values["float64", t]) for t, v in hand.items()}
        tensor = max(off, key=off.get)
        return off[tensor], tensor, places
    off, tensor, places = furthest(None)
    bound = BOUNDS["bfloat16"][0]
    c.check(off <= bound, "bfloat16 is rounded where the README says", f"{tensor}: differs by {off:g} of its error, bound {bound:g}")
    c.check(len(places) == 18, "places of rounding", str(places))
    for place in places:
        off, tensor, _ = furthest(place)
        c.check(off > bound, f"without rounding {place} it is not", f"{tensor}: {off:g}")


def check_stochastic_steps():
    """The optimizer of BF16 weights: one of the two BF16 around the exact result, and not always the nearer one."""
    (low, x, y), (high, _, _) = tiny_gpt("bfloat16"), tiny_gpt("float32")
    grads = low.gradients(x, y)[2]
    ref.AdamW(low, make.HYPER, 0).step(grads)
    ref.AdamW(high, make.HYPER, 0).step(grads)
    new, due = (np.concatenate([p.detach().numpy().flatten() for p in gpt.params.values()]) for gpt in (low, high))
    unit = 2.0**(np.floor(np.log2(np.maximum(np.abs(due), 2.0**-126))) - 7)
    off = np.abs(new - due) / unit
    c.check((new.view(np.uint32) & 0xffff == 0).all(), "bfloat16: weights are BF16")
    c.check(off.max() <= 1 and 0.1 < (off > 0.5).mean() < 0.4, "bfloat16: weights are rounded stochastically", f"{off.max()} steps away, {(off > 0.5).mean():.3f} not the nearest")


def check_adamw():
    ours, x, y = tiny_gpt()
    other, _, _ = tiny_gpt()
    h = make.HYPER._replace(lr=0.01)
    decayed = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")
    decay, plain = ([p for name, p in other.params.items() if (name in decayed) == which] for which in (True, False))
    theirs = torch.optim.AdamW([{"params": decay, "weight_decay": h.weight_decay}, {"params": plain, "weight_decay": 0.0}], lr=h.lr, betas=(h.beta1, h.beta2), eps=h.eps)
    optimizer = ref.AdamW(ours, h, 0)
    norms = []
    for _ in range(6):
        norms.append(optimizer.step(ours.gradients(x, y)[2]))
        grads = other.gradients(x, y)[2]
        norm = torch.cat([g.flatten() for g in grads.values()]).norm().item()
        for name, p in other.params.items():
            p.grad = grads[name] * min(1.0, h.clip / norm)
        theirs.step()
        c.check(abs(norms[-1] - norm) < 1e-9 * norm, "gradient norm", f"{norms[-1]} {norm}")
    # the gradient of the keys' bias is 0 (softmax does not see it): its noise is what AdamW scales up, so it is judged by eps, the noise's own measure
    error = max((ours.params[n] - other.params[n]).abs().max().item() for n in ours.params)
    c.check(error < 1e-8, "AdamW: torch.optim's", f"weights differ by {error:g}")
    c.check(norms[0] > h.clip, "AdamW: clipping is at work", f"{norms}")

# ---------------------------------------------------------------------------- the fixtures


def read(folder, name):
    with open(os.path.join(folder, name), "rb") as f:
        return f.read()


def floats(raw, offset):
    return np.frombuffer(raw[offset:], "<f4").astype(np.float64)


def split_params(config, x):
    sizes = [int(np.prod(p.shape)) for p in ref.param_table(config)]
    return {p.name: part for p, part in zip(ref.param_table(config), np.split(x, np.cumsum(sizes)[:-1]))}


def read_run(folder, name):
    """-> {(precision, tensor): values}, {file or line: bytes that must be equal}"""
    config, _ = make.read_model(os.path.join(folder, name + ".bin"))
    values, exact = {}, {name + ".bin": read(folder, name + ".bin")}
    for precision in [*ref.PRECISIONS, *ref.VARIANTS]:
        raw = read(folder, f"{name}_{precision}_debug_state.bin")
        B, T = np.frombuffer(raw[:1024], "<i4")[2:4]
        integers, n = 1024 + 8 * B * T, B * T * config.vocab_size
        exact[precision, "debug state: header and tokens"] = raw[:integers]
        x = floats(raw, integers)
        values[precision, "logits"], loss = x[:n], x[n]
        values.update({(precision, "d" + k): v for k, v in split_params(config, x[n + 1:]).items()})
        if precision in ref.PRECISIONS:
            raw = read(folder, f"{name}_{precision}_after{make.STEPS}.bin")
            exact[precision, "weights: header"] = raw[:1024]
            values.update({(precision, k + " after"): v for k, v in split_params(config, floats(raw, 1024)).items()})
        lines = [line.split() for line in read(folder, name + "_steps.txt").decode().splitlines() if line.startswith(precision + " ")]
        exact[precision, "steps"] = [line[:2] for line in lines]
        for column, what in enumerate(("losses", "norms", "standard errors of losses", "standard errors of norms"), 2):
            values[precision, what + " after"] = np.array([float(line[column]) for line in lines])
        c.check(abs(values[precision, "losses after"][0] - loss) <= 2.0**-23 * loss, f"{folder}: {precision} loss", f"{loss} in the debug state, not in {name}_steps.txt")
    exact["comments"] = [line for line in read(folder, name + "_steps.txt").decode().splitlines() if line.startswith("#")]
    return values, exact


def taker(folder, name):
    """-> take(dtype, *shape) reads on in a file; left() bytes that have not been read."""
    raw, at = read(folder, name), 0

    def take(dtype, *shape):
        nonlocal at
        x = np.frombuffer(raw, dtype, int(np.prod(shape)), at).reshape(shape)
        at += x.nbytes
        return x
    return take, lambda: len(raw) - at


def read_name(take):
    return take("u1", 32).tobytes().rstrip(b"\0").decode()


def read_fp8(folder, name):
    """-> {tensor: (x float32 (rows, cols), format, scale, descale, codes)}"""
    take, left = taker(folder, name)
    magic, version, count, zero = take("<i4", 4)
    c.check((magic, version, zero) == (20261130, 2, 0), f"{name}: header", f"{magic} {version} {zero}")
    records = {}
    for _ in range(count):
        tensor, (rows, cols, sets) = read_name(take), take("<i4", 3)
        x = (take("<u2", rows, cols).astype(np.uint32) << 16).view(np.float32)
        number, *blocks = take("<i4", 3)
        c.check([sets, *blocks] == [1, 1, 1], f"{name} {tensor}: one scale", f"{sets} {blocks}")
        records[tensor] = (x, FORMATS[number], take("<f4", 1)[0], take("<f4", 1)[0], take("u1", rows, cols))
    c.check(left() == 0 and len(records) == count, f"{name}: length", f"{left()} bytes left, {len(records)} names of {count}")
    return records


def read_codes(folder, name):
    """-> {tensor: (shape, [(format, block, words, digest, codes or None) of k, of t])}"""
    take, left = taker(folder, name)
    magic, version, count, zero = take("<i4", 4)
    c.check((magic, version, zero) == (20261201, 1, 0), f"{name}: header", f"{magic} {version} {zero}")
    records = {}
    for _ in range(count):
        tensor, shape, orders = read_name(take), tuple(take("<i4", 2)), []
        for size in (shape, shape[::-1]):
            number, outer, inner, whole = take("<i4", 4)
            words = take("<u4", -(-size[0] // outer) * -(-size[1] // inner))
            orders.append((FORMATS[number], (outer, inner), words, int(take("<u8", 1)[0]), take("u1", *size) if whole else None))
        records[tensor] = shape, orders
    c.check(left() == 0 and len(records) == count, f"{name}: length", f"{left()} bytes left, {len(records)} names of {count}")
    return records


def mean_abs(x):
    return np.abs(x).mean() if np.size(x) else 0.0


# How far the same run may be off on another machine, whose BLAS adds in another order: mean |difference| over the reference's own mean error against
# float64, per tensor. What --measure printed (30 Nov 2026, torch 1.13), the largest over all tensors and 40 runs, first step / after ten: float32 2.2 / 2.1,
# bfloat16 0.0009 / 0.73, float8 0.71 / 0.91 (one BF16 rounding that changes an amax changes a whole tensor's codes). Twice that, but ten times where it is
# a handful of flipped roundings. The mean, because AdamW carries an element whose gradient is noise up to lr a step away.
BOUNDS = {"float32": (4.4, 4.2), "bfloat16": (0.009, 1.5), "float8": (1.4, 1.8)}


def kind(precision):
    return "float8" if precision in ref.VARIANTS else precision


def compare_runs(committed, made):
    """What read_run gives of two runs."""
    (a, exact_a), (b, exact_b) = committed, made
    for key, due in exact_a.items():
        c.check(exact_b[key] == due, f"{key}", "differs from the committed fixture")
    for (precision, tensor), x in a.items():
        truth, y = a["float64", tensor][:len(x)], b[precision, tensor]
        if precision == "float64":
            # rounded to float32 (text: 9 digits) in the file; its own noise: float32's in proportion to the types
            off = np.abs(x - y) - 2.0**-23 * np.abs(x)
            c.check(off.max() <= 4 * 2.0**-29 * np.abs(a["float32", tensor] - x).max(), f"float64 {tensor}", f"differs by {np.abs(x - y).max():g}")
            continue
        bound = BOUNDS[kind(precision)][tensor.endswith("after")] * mean_abs(x - truth)
        c.check(mean_abs(x - y) <= bound, f"{precision} {tensor}", f"mean difference {mean_abs(x - y):g}, bound {bound:g}")


def measure(runs):
    """Prints what BOUNDS are made of: the committed fixtures against `runs` runs, each of which adds the terms of every product in another order."""
    random = torch.Generator().manual_seed(1)
    orders = {}

    def shuffled(a, b):
        n = a.shape[-1]
        if n not in orders:
            orders[n] = torch.randperm(n, generator=random)
        return torch.matmul(a[..., orders[n]], b[..., orders[n], :])

    class Shuffled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return shuffled(a, b)

        @staticmethod
        def backward(ctx, d):
            a, b = ctx.saved_tensors
            return shuffled(d, b.transpose(-2, -1)), shuffled(a.transpose(-2, -1), d)
    torch.Tensor.__matmul__ = lambda a, b: Shuffled.apply(a, b)
    a, _ = read_run(make.FIXTURES, "small")
    most = {}
    for _ in range(runs):
        orders.clear()
        with tempfile.TemporaryDirectory(prefix="check_reference.") as tmp:
            make.main(["-o", tmp])
            b, _ = read_run(tmp, "small")
        for (precision, tensor), x in a.items():
            error = mean_abs(x - a["float64", tensor][:len(x)])
            if error > 0:
                key = kind(precision), tensor.endswith("after")
                most[key] = max(most.get(key, 0), mean_abs(x - b[precision, tensor]) / error)
    for precision in BOUNDS:
        print(f"{precision}: {most[precision, False]:.2g} first step, {most[precision, True]:.2g} after ten")


def check_fixtures(tmp):
    committed = make.FIXTURES
    names = sorted(os.listdir(committed)) if os.path.isdir(committed) else []
    made = sorted(os.listdir(tmp))
    c.check(names == made, "every fixture is made by make_fixtures.py, and committed", f"only committed: {sorted(set(names) - set(made))}, only made: {sorted(set(made) - set(names))}")
    if names != made:
        return
    size = sum(os.path.getsize(os.path.join(committed, f)) for f in names)
    c.check(size <= 3e6, "fixtures: 3 MB at most", f"{size} bytes")
    print(f"{sum(read(committed, f) == read(tmp, f) for f in names)} of {len(names)} files identical to the last bit, {size} bytes")

    a, exact = read_run(committed, "small")
    compare_runs((a, exact), read_run(tmp, "small"))
    error = {p: [mean_abs(a[p, t] - a["float64", t]) for q, t in a if q == "float64" and not t.endswith("after")] for p in BOUNDS}
    ordered = [100 * f32 < low and low < f8 for f32, low, f8 in zip(*error.values())]
    origin = make.read_model(os.path.join(committed, "small.bin"))[1]
    for name, w in origin.items():  # what an error in the reference itself would leave behind: it would widen its own bounds
        moved = mean_abs(a["float64", name + " after"] - w.numpy().flatten())
        for p in BOUNDS:
            off = mean_abs(a[p, name + " after"] - a["float64", name + " after"])
            c.check(off <= 0.5 * moved, f"{p} {name} moves as in float64, less than half of the way off", f"{off:g} off, moved {moved:g}")
    c.check(all(ordered), "errors: float32 << bfloat16 < float8 in every tensor", f"{error}")
    for variant in ref.VARIANTS:  # 0.33 to 1.11 times float8's when this was written
        of = [mean_abs(a[variant, t] - a["float64", t]) for p, t in a if p == "float64" and not t.endswith("after")]
        off = [not 2 * low < e < 1.5 * f8 for low, f8, e in zip(error["bfloat16"], error["float8"], of)]
        c.check(not any(off), f"errors: bfloat16 << {variant}, not far above float8, in every tensor", f"{of}")


def check_fp8_files(tmp):
    """Codes and scales in the files are the rule's of the inputs there; those made again are the same where the inputs must be (edge), and of the same kind elsewhere."""
    committed = make.FIXTURES
    for where in ("small", "edge"):
        name = f"{where}_float8_fp8.bin"
        records, again = read_fp8(committed, name), read_fp8(tmp, name)
        c.check(list(records) == list(again), f"{name}: tensors", f"{list(records)} {list(again)}")
        for tensor, (x, f, scale, descale, codes) in records.items():
            due_format, ((_, due_codes, words), _) = due_operand("current", tensor, x)
            c.check(f is due_format and bits_of(descale) == words[0] and np.float32(1) / scale == descale and np.array_equal(codes, due_codes), f"{name} {tensor}: codes and scale")
            c.check(scale == due_scale(float((x.view(np.uint32) & 0x7fffffff).max().view(np.float32)), f.max), f"{name} {tensor}: scale", f"{scale}")
            c.check(tensor in again and again[tensor][1] is f and again[tensor][0].shape == x.shape, f"{name} {tensor}: format and shape")
        for recipe in ref.RECIPES:
            name = f"{where}_{recipe}_codes.bin"
            of_recipe = read_codes(committed, name)
            c.check(list(of_recipe) == list(records), f"{name}: the tensors of {where}_float8_fp8.bin, in their order")
            for tensor, (shape, orders) in of_recipe.items():
                x = records[tensor][0]
                due_format, due = due_operand(recipe, tensor, x)
                c.check(shape == x.shape, f"{name} {tensor}: shape")
                for order, (f, block, words, digest, codes), (due_block, due_codes, due_words) in zip("kt", orders, due):
                    c.check(f is due_format and block == due_block and np.array_equal(words, due_words), f"{name} {tensor}.{order}: format, blocks and scales")
                    c.check(digest == make.xxh64(due_codes.tobytes()), f"{name} {tensor}.{order}: digest of the codes")
                    c.check((codes is not None) == tensor.endswith("/0/qkv") and (codes is None or np.array_equal(codes, due_codes)), f"{name} {tensor}.{order}: the codes")
            if where == "edge":
                c.check(read(committed, name) == read(tmp, name), name)
            else:
                c.check(list(read_codes(tmp, name)) == list(records), f"{name} made again: tensors")
    c.check(read(committed, "edge_float8_fp8.bin") == read(tmp, "edge_float8_fp8.bin"), "edge_float8_fp8.bin")
    edge = [codes for _, f, _, _, codes in read_fp8(committed, "edge_float8_fp8.bin").values() if f is ref.E4M3]
    c.check(set(range(0x7f)) <= set(np.concatenate([codes.flatten() for codes in edge]) & 0x7f), "edge_float8_fp8.bin meets every code")
    c.check(len(read_fp8(committed, "small_float8_fp8.bin")) == 12 * 2, "small_float8_fp8.bin: three tensors a linear layer")


def check_arguments(tmp):
    """Other sizes, --model and --tokens; bad input gives one message and exit code 1."""
    shard, model = os.path.join(tmp, "tokens.bin"), os.path.join(tmp, "v5.bin")
    tokens = np.arange(100, dtype="<u2") % 90
    with open(shard, "wb") as f:
        f.write(make.header256(20240520, 1, len(tokens)) + tokens.tobytes())
    config, params = make.read_model(os.path.join(make.FIXTURES, "small.bin"))
    with open(model, "wb") as f:
        f.write(make.header256(20240326, 5, *config) + b"".join(make.bf16_bits(params[p.name]).tobytes() for p in ref.param_table(config)))
    out = os.path.join(tmp, "other")
    make.main(["-o", out, "--name", "v5", "--model", model, "--tokens", shard, "--batch-size", "3", "--precisions", "float8,float64"])
    c.check(read(out, "v5.bin") == read(make.FIXTURES, "small.bin"), "--model of a v5 file keeps its weights")
    raw = read(out, "v5_float8_debug_state.bin")
    x, y = np.frombuffer(raw[1024:1024 + 4 * 48], "<i4"), np.frombuffer(raw[1024 + 4 * 48:1024 + 8 * 48], "<i4")
    c.check(np.array_equal(x, tokens[:48]) and np.array_equal(y, tokens[1:49]), "--tokens gives inputs and the tokens that follow")
    make.main(["-o", out, "--name", "wide", "--layers", "1", "--heads", "3", "--channels", "48", "--seq-len", "32", "--max-seq-len", "32", "--vocab-size", "200", "--batch-size", "1",
               "--precisions", "delayed"])
    c.check(os.path.getsize(os.path.join(out, "wide.bin")) == 1024 + 4 * (256 * 48 + 32 * 48 + 12 * 48 * 48 + 13 * 48 + 2 * 48), "other sizes")
    written = sorted(f for f in os.listdir(out) if f.startswith("wide"))
    c.check(written == ["wide.bin", "wide_delayed_debug_state.bin", "wide_steps.txt"], "--precisions writes those alone", str(written))
    again = os.path.join(tmp, "again")
    make.main(["-o", again, "--precisions", "delayed,mixed"])
    for f in os.listdir(again):
        c.check(f == "small_steps.txt" or read(again, f) == read(os.path.join(tmp, "fixtures"), f), f"{f} is the same in a second run, of other precisions")

    with open(model, "ab") as f:
        f.write(b"x")
    for arguments, message in (
            (["--model", model], "bytes, but its header asks for"), (["--model", shard], "not a model file"), (["--model", os.path.join(tmp, "absent")], "absent"),
            (["--tokens", model], "not a token shard"), (["--tokens", shard, "--batch-size", "9"], "145 are needed"), (["--tokens", shard, "--vocab-size", "30"], "vocabulary is 30"),
            (["--precisions", "float64,fp8"], "no precision 'fp8'"),
            (["--channels", "40"], "impossible"), (["--heads", "3"], "impossible"), (["--seq-len", "17"], "impossible"), (["--max-seq-len", "8"], "has 8 positions")):
        try:
            make.main(["-o", out] + arguments)
            said = "nothing"
        except SystemExit as e:
            said = str(e.code)
        c.check(message in said and "HINT" in said, f"make_fixtures {' '.join(arguments)}", f"says {said}")


def check_probe(tmp):
    """A PyTorch that lacks what is needed: one message that names it, and the check skips, or fails where it is required."""
    stub = os.path.join(tmp, "stub", "torch")
    os.makedirs(stub)
    with open(os.path.join(stub, "__init__.py"), "w") as f:
        f.write("__version__ = '1.11.0'\nfrom types import SimpleNamespace as N\nfrom_numpy = list\nnn = N(functional=N(gelu=lambda x: x))\n")
    for command, code, word in ((["-B", MAKER], 1, "HINT"), ([__file__], 0, "skip check_reference"), ([__file__, "--required"], 1, "FAIL PyTorch")):
        r = subprocess.run([sys.executable] + command, env=dict(os.environ, PYTHONPATH=os.path.dirname(stub)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        c.check(r.returncode == code and word in r.stdout and "PyTorch 1.11.0: TypeError" in r.stdout and "Traceback" not in r.stdout, f"{command[1:]} with an old PyTorch", r.stdout)


if "--measure" in sys.argv:
    measure(40)
    sys.exit()
with tempfile.TemporaryDirectory(prefix="check_reference.") as folder:
    print(f"PyTorch {torch.__version__}, numpy {np.__version__}")
    fixtures = os.path.join(folder, "fixtures")
    make.main(["-o", fixtures])
    for check in (check_formats, check_stochastic_rounding, check_xxh64, check_rules, check_products, check_network, check_gradients, check_adamw, check_stochastic_steps, check_overrides):
        check()
    check_rounding(fixtures)
    check_fixtures(fixtures)
    check_fp8_files(fixtures)
    check_delayed(fixtures)
    check_arguments(folder)
    check_probe(folder)
c.end()
