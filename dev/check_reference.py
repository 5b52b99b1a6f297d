#!/usr/bin/env python3
"""check_reference.py [--required] - the PyTorch reference is right, and the committed fixtures are what it makes

Needs PyTorch and numpy: takes python3, else /usr/bin/python3, and skips if neither has them (--required, what `make reference` gives: fails). The reference is held
against judges that share no line with it: formats against a search in tables made from their definition (and ml_dtypes where it is installed), the network
against PyTorch's own transformer layer, float64 gradients against finite differences, AdamW against torch.optim's. Then the fixtures are made again in
a temporary folder and compared: integers, texts, codes and scales exactly, floats by the bounds below.
"""
import math
import os
import subprocess
import sys
import tempfile

from checking import Checks, ROOT

c = Checks()
HAS_TORCH = [sys.executable, "-c", "import numpy, torch"]
if subprocess.run(HAS_TORCH, stderr=subprocess.DEVNULL).returncode:
    other = "/usr/bin/python3"
    if os.path.realpath(sys.executable) != os.path.realpath(other) and os.path.exists(other) and not subprocess.run([other] + HAS_TORCH[1:], stderr=subprocess.DEVNULL).returncode:
        os.execv(other, [other] + sys.argv)
    if "--required" in sys.argv:
        c.check(False, "PyTorch", "neither python3 nor /usr/bin/python3 can import torch and numpy")
    else:
        c.skip("check_reference", "no PyTorch and numpy here: make reference installs them")
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


def check_recipes():
    inf, nan = float("inf"), float("nan")
    for amax, largest, due in ((0, 448, 1), (inf, 448, 1), (nan, 57344, 1), (448, 448, 1), (1, 448, 448), (3, 57344, np.float32(57344) / np.float32(3)),
                               (2.0**-133, 448, 2.0**126), (448 * 2.0**-126, 448, 2.0**126), (448 * 2.0**-125, 448, 2.0**125), (3.3895e38, 448, np.float32(448) / np.float32(3.3895e38))):
        scale = ref.scale_from_amax(np.float32(amax), largest)
        c.check(scale == due and isinstance(scale, np.float32), f"scale of amax {amax}", f"{scale!r}, due {due!r}")

    # Which operand enters which product: a recipe that multiplies k by 2 and t by 3, x, w and dy by 5, 7 and 11, shows in the products
    factor = {"x": 5.0, "w": 7.0, "dy": 11.0}
    seen = []

    def marked(name, x):
        seen.append(name)
        return ref.Operand(x * 2 * factor[name.split("/")[0]], x * 3 * factor[name.split("/")[0]], None)
    g = torch.Generator().manual_seed(1)
    x, w, dy = (torch.randint(-3, 4, s, generator=g).float().requires_grad_(s != (4, 6)) for s in ((4, 8), (6, 8), (4, 6)))
    b = torch.zeros(6, requires_grad=True)
    y = ref.LowLinear.apply(x, w, b, "0/fc", marked)
    dx, dw, db = torch.autograd.grad(y, (x, w, b), dy)
    c.check(torch.equal(y, 4 * 35 * (x @ w.t())), "fprop reads x.k and W.k")
    c.check(torch.equal(dx, 6 * 77 * (dy @ w)), "dgrad reads dy.k and W.t")
    c.check(torch.equal(dw, ref.bf16(9 * 55 * (dy.t() @ x))), "wgrad reads dy.t and x.t")
    c.check(torch.equal(db, dy.sum(0)), "the bias gradient reads dy itself")
    c.check(seen == ["x/0/fc", "w/0/fc", "dy/0/fc"], "each operand is quantized once", str(seen))

# ---------------------------------------------------------------------------- the network and its gradients


def tiny_gpt(precision="float64"):
    config = ref.Config(max_seq_len=18, vocab_size=11, num_layers=2, num_heads=2, channels=16, padded_vocab_size=16)
    random = np.random.RandomState(3)
    gpt = ref.GPT(config, ref.random_params(config, random), ref.PRECISIONS[precision])
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
    for precision in ref.PRECISIONS:
        raw = read(folder, f"{name}_{precision}_debug_state.bin")
        B, T = np.frombuffer(raw[:1024], "<i4")[2:4]
        integers, n = 1024 + 8 * B * T, B * T * config.vocab_size
        exact[precision, "debug state: header and tokens"] = raw[:integers]
        x = floats(raw, integers)
        values[precision, "logits"], loss = x[:n], x[n]
        values.update({(precision, "d" + k): v for k, v in split_params(config, x[n + 1:]).items()})
        raw = read(folder, f"{name}_{precision}_after{make.STEPS}.bin")
        exact[precision, "weights: header"] = raw[:1024]
        values.update({(precision, k + " after"): v for k, v in split_params(config, floats(raw, 1024)).items()})
        lines = [line.split() for line in read(folder, name + "_steps.txt").decode().splitlines() if line.startswith(precision + " ")]
        exact[precision, "steps"] = [line[:2] for line in lines]
        values[precision, "losses after"], values[precision, "norms after"] = (np.array([float(line[i]) for line in lines]) for i in (2, 3))
        c.check(abs(values[precision, "losses after"][0] - loss) <= 2.0**-23 * loss, f"{folder}: {precision} loss", f"{loss} in the debug state, not in {name}_steps.txt")
    exact["comments"] = [line for line in read(folder, name + "_steps.txt").decode().splitlines() if line.startswith("#")]
    return values, exact


def read_fp8(folder, name):
    """-> {tensor: (format, scale, descale, x float32 (rows, cols), codes)}"""
    raw = read(folder, name)
    magic, version, count, zero = np.frombuffer(raw[:16], "<i4")
    c.check((magic, version, zero) == (20261130, 1, 0), f"{name}: header", f"{magic} {version} {zero}")
    records, at = {}, 16
    for _ in range(count):
        tensor = raw[at:at + 32].rstrip(b"\0").decode()
        rows, cols, number = np.frombuffer(raw[at + 32:at + 44], "<i4")
        scale, descale = np.frombuffer(raw[at + 44:at + 52], "<f4")
        at += 52
        n = rows * cols
        x = (np.frombuffer(raw[at:at + 2 * n], "<u2").astype(np.uint32) << 16).view(np.float32).reshape(rows, cols)
        records[tensor] = (FORMATS[number], scale, descale, x, np.frombuffer(raw[at + 2 * n:at + 3 * n], np.uint8).reshape(rows, cols))
        at += 3 * n
    c.check(at == len(raw) and len(records) == count, f"{name}: length", f"{len(raw)} bytes, {at} due, {len(records)} names of {count}")
    return records


def mean_abs(x):
    return np.abs(x).mean() if np.size(x) else 0.0


# How far the same run may be off on another machine, whose BLAS adds in another order: mean |difference| over the reference's own mean error against
# float64, per tensor. Measured: 40 runs of the small fixture with the terms of every product in random orders (30 Nov 2026), the largest over all tensors, first
# step / after ten: float32 1.85 / 1.86, bfloat16 0.0009 / 0.89, float8 0.71 / 1.04 (one BF16 rounding that changes an amax changes a whole tensor's codes). Twice
# that, but ten times where it is a handful of flipped roundings. The mean, because AdamW carries an element whose gradient is noise up to lr a step away.
BOUNDS = {"float32": (3.7, 3.7), "bfloat16": (0.009, 1.8), "float8": (1.4, 2.1)}


def check_fixtures(tmp):
    committed = make.FIXTURES
    names = sorted(os.listdir(committed)) if os.path.isdir(committed) else []
    made = sorted(os.listdir(tmp))
    c.check(names == made, "every fixture is made by make_fixtures.py, and committed", f"only committed: {sorted(set(names) - set(made))}, only made: {sorted(set(made) - set(names))}")
    if names != made:
        return
    size = sum(os.path.getsize(os.path.join(committed, f)) for f in names)
    c.check(size <= 2e6, "fixtures: 2 MB at most", f"{size} bytes")
    print(f"{sum(read(committed, f) == read(tmp, f) for f in names)} of {len(names)} files identical to the last bit, {size} bytes")

    (a, exact_a), (b, exact_b) = read_run(committed, "small"), read_run(tmp, "small")
    for key, due in exact_a.items():
        c.check(exact_b[key] == due, f"{key}", "differs from the committed fixture")
    for (precision, tensor), x in a.items():
        truth, y = a["float64", tensor], b[precision, tensor]
        if precision == "float64":
            # rounded to float32 (text: 9 digits) in the file; its own noise: float32's in proportion to the types
            off = np.abs(x - y) - 2.0**-23 * np.abs(x)
            c.check(off.max() <= 4 * 2.0**-29 * np.abs(a["float32", tensor] - x).max(), f"float64 {tensor}", f"differs by {np.abs(x - y).max():g}")
            continue
        bound = BOUNDS[precision][tensor.endswith("after")] * mean_abs(x - truth)
        c.check(mean_abs(x - y) <= bound, f"{precision} {tensor}", f"mean difference {mean_abs(x - y):g}, bound {bound:g}")
    for precision in ("bfloat16", "float8"):
        bits = np.concatenate([a[precision, p.name + " after"] for p in ref.param_table(make.read_model(os.path.join(committed, "small.bin"))[0])]).astype(np.float32)
        c.check((bits.view(np.uint32) & 0xffff == 0).all(), f"{precision}: weights are BF16")
    error = {p: [mean_abs(a[p, t] - a["float64", t]) for q, t in a if q == "float64" and not t.endswith("after")] for p in BOUNDS}
    ordered = [100 * f32 < low and low < f8 for f32, low, f8 in zip(*error.values())]
    c.check(all(ordered), "errors: float32 << bfloat16 < float8 in every tensor", f"{error}")


def check_fp8_files(tmp):
    committed = make.FIXTURES
    for name in ("small_fp8.bin", "edge_fp8.bin"):
        records, again = read_fp8(committed, name), read_fp8(tmp, name)
        c.check(list(records) == list(again), f"{name}: tensors", f"{list(records)} {list(again)}")
        for tensor, (f, scale, descale, x, codes) in records.items():
            r = ref.recipe_current(tensor, torch.from_numpy(x)).record
            c.check((r.format, r.scale, r.descale) == (f, scale, descale), f"{name} {tensor}: scale", f"{scale!r} {descale!r} committed, {r.scale!r} {r.descale!r} found")
            c.check(np.array_equal(r.codes.numpy(), codes), f"{name} {tensor}: codes of the committed input")
            with np.errstate(invalid="ignore"):
                c.check(np.array_equal(search_codes(x * scale, f), codes), f"{name} {tensor}: codes by search")
            c.check(tensor in again and again[tensor][0] is f and again[tensor][3].shape == x.shape, f"{name} {tensor}: format and shape")
    c.check(read(committed, "edge_fp8.bin") == read(tmp, "edge_fp8.bin"), "edge_fp8.bin")
    edge = [codes for f, _, _, _, codes in read_fp8(committed, "edge_fp8.bin").values() if f is ref.E4M3]
    c.check(set(range(0x7f)) <= set(np.concatenate(edge).flatten() & 0x7f), "edge_fp8.bin meets every code")

    # what the file says was multiplied gives the gradients of the debug state: dW = dy^T x rounded to BF16, db the column sums of the unquantized dy
    records = read_fp8(committed, "small_fp8.bin")
    values, _ = read_run(committed, "small")
    config, _ = make.read_model(os.path.join(committed, "small.bin"))
    c.check(len(records) == 12 * config.num_layers, "small_fp8.bin: three tensors a linear layer", f"{len(records)}")

    def dequantized(tensor):
        f, _, descale, _, codes = records[tensor]
        values = table(f)[codes & 0x7f] * float(descale)
        return np.where(codes >= 0x80, -values, values)
    for linear in ("qkv", "attproj", "fc", "fcproj"):
        for l in range(config.num_layers):
            x, dy = dequantized(f"x/{l}/{linear}"), dequantized(f"dy/{l}/{linear}")
            dw = np.split(values["float8", f"d{linear}w"], config.num_layers)[l].reshape(dy.shape[1], x.shape[1])
            bound = 2.0**-8 * np.abs(dw) + len(x) * 2.0**-24 * (np.abs(dy).T @ np.abs(x))  # BF16's rounding (2^-9, and as much again for a tie decided by noise), sums of N terms
            c.check((np.abs(dw - dy.T @ x) <= bound).all(), f"d{linear}w of layer {l} is dy^T x of the quantized operands")
            raw = records[f"dy/{l}/{linear}"][3].astype(np.float64)
            db = np.split(values["float8", f"d{linear}b"], config.num_layers)[l]
            c.check((np.abs(db - raw.sum(0)) <= len(raw) * 2.0**-24 * np.abs(raw).sum(0)).all(), f"d{linear}b of layer {l} is the sum of dy")


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
    make.main(["-o", out, "--name", "v5", "--model", model, "--tokens", shard, "--batch-size", "3"])
    c.check(read(out, "v5.bin") == read(make.FIXTURES, "small.bin"), "--model of a v5 file keeps its weights")
    raw = read(out, "v5_float8_debug_state.bin")
    x, y = np.frombuffer(raw[1024:1024 + 4 * 48], "<i4"), np.frombuffer(raw[1024 + 4 * 48:1024 + 8 * 48], "<i4")
    c.check(np.array_equal(x, tokens[:48]) and np.array_equal(y, tokens[1:49]), "--tokens gives inputs and the tokens that follow")
    make.main(["-o", out, "--name", "wide", "--layers", "1", "--heads", "3", "--channels", "48", "--seq-len", "32", "--max-seq-len", "32", "--vocab-size", "200", "--batch-size", "1"])
    c.check(os.path.getsize(os.path.join(out, "wide.bin")) == 1024 + 4 * (256 * 48 + 32 * 48 + 12 * 48 * 48 + 13 * 48 + 2 * 48), "other sizes")

    with open(model, "ab") as f:
        f.write(b"x")
    for arguments, message in (
            (["--model", model], "bytes, but its header asks for"), (["--model", shard], "not a model file"), (["--model", os.path.join(tmp, "absent")], "absent"),
            (["--tokens", model], "not a token shard"), (["--tokens", shard, "--batch-size", "9"], "145 are needed"), (["--tokens", shard, "--vocab-size", "30"], "vocabulary is 30"),
            (["--channels", "40"], "impossible"), (["--heads", "3"], "impossible"), (["--seq-len", "17"], "impossible"), (["--max-seq-len", "8"], "has 8 positions")):
        try:
            make.main(["-o", out] + arguments)
            said = "nothing"
        except SystemExit as e:
            said = str(e.code)
        c.check(message in said and "HINT" in said, f"make_fixtures {' '.join(arguments)}", f"says {said}")


with tempfile.TemporaryDirectory(prefix="check_reference.") as folder:
    print(f"PyTorch {torch.__version__}, numpy {np.__version__}")
    fixtures = os.path.join(folder, "fixtures")
    make.main(["-o", fixtures])
    for check in (check_formats, check_stochastic_rounding, check_recipes, check_network, check_gradients, check_adamw):
        check()
    check_fixtures(fixtures)
    check_fp8_files(fixtures)
    check_arguments(folder)
c.end()
