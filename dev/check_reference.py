#!/usr/bin/env python3
"""check_reference.py [--required | --measure] - the PyTorch reference is right, and the committed fixtures are what it makes

Needs PyTorch and numpy: takes python3, else /usr/bin/python3, and skips if neither has them (--required, what `make reference` gives: fails). The reference is held
against judges that share no line with it: formats against a search in tables made from their definition (and ml_dtypes where it is installed), the network
against PyTorch's own transformer layer, float64 gradients against finite differences, the places of rounding against a forward and backward pass written out in
numpy, AdamW against torch.optim's, what a recipe makes against the size of its formats' steps. Then the fixtures are made again in a temporary folder and
compared: integers, texts, codes and scales exactly, floats by BOUNDS. --measure prints what these were measured by, and checks nothing.
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
        return x * 2 * factor[name.split("/")[0]], x * 3 * factor[name.split("/")[0]]
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


def spread(s, shape):
    """(R, S) numbers of blocks -> one of each element."""
    return np.repeat(np.repeat(s.astype(np.float64), shape[0] // s.shape[0], 0), shape[1] // s.shape[1], 1)


def dequantized(q):
    values = table(q.format)[np.minimum(q.codes & 0x7f, q.format.max_code)] * spread(q.descale, q.codes.shape)
    return np.where(q.codes >= 0x80, -values, values)


def check_quantized(where, tensor, x, q, saturates=False):
    """Format of the role, descale the inverse of scale, and what the codes stand for is x to half a step of the format. saturates: x beyond the scale's range may be."""
    c.check(q.format is (ref.E5M2 if tensor.startswith("dy/") else ref.E4M3), f"{where} {tensor}: format", q.format.name)
    c.check(q.scale.dtype == np.float32 and np.array_equal(q.descale, np.float32(1) / q.scale), f"{where} {tensor}: descale is 1 / scale", f"{q.scale!r} {q.descale!r}")
    scale = spread(q.scale, x.shape)
    a = np.abs(x.astype(np.float64)) * scale
    if not saturates:
        c.check(np.all((a <= q.format.max * (1 + 2.0**-22)) | (scale == 1)), f"{where} {tensor}: nothing saturates", f"{np.nanmax(a)}")
    with np.errstate(divide="ignore", invalid="ignore"):
        step = 2.0**(np.floor(np.log2(a)).clip(q.format.min_exponent) - q.format.mantissa)
        off = np.abs(dequantized(q) - np.sign(x) * np.minimum(a, q.format.max) / scale) - (0.5 + 2.0**-18) * step / scale  # and the rounding of x scale, of 1 / scale
    c.check(not (off[np.isfinite(x)] > 0).any(), f"{where} {tensor}: values are x to half a step", f"{np.nanmax(np.where(np.isfinite(x), off, 0))} beyond it")


def toy_delayed(history, name, x):
    """The largest magnitude of steps before; a test's, in place of recipes to come."""
    f, x, step = ref.gradients_in_e5m2(name), ref.bf16(x), history["step"]
    largest = history.setdefault(name, {})
    before = max([amax for s, amax in largest.items() if s < step], default=0)
    largest[step] = max(largest.get(step, 0), x.abs().max().item())
    q = ref.quantize(x, f, np.array([[ref.scale_from_amax(np.float32(before), f.max)]]))
    return ref.Operand(name, x, q, q)


def toy_row(history, name, x):
    """One scale a row for k, one a column for t."""
    f, x = ref.gradients_in_e5m2(name), ref.bf16(x)
    k, t = (np.array([ref.scale_from_amax(a, f.max) for a in x.abs().amax(axis).numpy()]) for axis in (1, 0))
    return ref.Operand(name, x, ref.quantize(x, f, k[:, None]), ref.quantize(x, f, t[None, :]))


TOYS = (ref.Precision("delayed", torch.float32, True, toy_delayed), ref.Precision("row", torch.float32, True, toy_row))


def check_new_recipes(tmp):
    """Two recipes of other kinds, one function each: their files beside those of the others, as many scales as they have, a history of one run and of its steps."""
    ref.PRECISIONS.update({p.name: p for p in TOYS})
    for out in ("toys", "again"):
        make.main(["-o", os.path.join(tmp, out)])
    first, second = (os.path.join(tmp, out) for out in ("toys", "again"))
    c.check(sorted(os.listdir(first)) == sorted(os.listdir(os.path.join(tmp, "fixtures")) + [f.format(p.name) for p in TOYS for f in (
        "small_{}_debug_state.bin", "small_{}_after10.bin", "small_{}_fp8.bin", "edge_{}_fp8.bin")]), "a new precision adds its files", str(sorted(os.listdir(first))))
    for f in os.listdir(first):
        c.check(read(first, f) == read(second, f), f"{f} is the same in a second run")
        if f != "small_steps.txt" and os.path.exists(os.path.join(tmp, "fixtures", f)):
            c.check(read(first, f) == read(os.path.join(tmp, "fixtures"), f), f"{f} does not change with new precisions")
    compare_runs(read_run(first, "small"), read_run(second, "small"))
    for f in ("small_{}_fp8.bin", "edge_{}_fp8.bin"):
        for tensor, (x, k, t) in read_fp8(first, f.format("delayed")).items():
            c.check(k is t and k.scale.shape == (1, 1) and k.scale[0, 0] == 1, f"delayed {tensor}: the first step has no history", f"{k.scale}")
            check_quantized("delayed", tensor, x, k, saturates=True)
        for tensor, (x, k, t) in read_fp8(first, f.format("row")).items():
            c.check(k.scale.shape == (len(x), 1) and t.scale.shape == (1, x.shape[1]), f"row {tensor}: a scale a row, a column", f"{k.scale.shape} {t.scale.shape}")
            check_quantized("row k", tensor, x, k)
            check_quantized("row t", tensor, x, t)

    # delayed: two micro-steps a step, two steps, in two runs that do not know of each other
    scales = []
    for run in range(2):
        gpt, x, y = tiny_gpt("delayed")
        optimizer, seen = ref.AdamW(gpt, make.HYPER, 0), []
        for step in range(2):
            for tokens in (x, y):
                gpt.log = []
                grads = gpt.gradients(tokens, y)[2]
                seen.append({o.name: (o.k.scale[0, 0], np.float32(o.x.abs().max().item())) for o in gpt.log})
            optimizer.step(grads)
        scales.append(seen)
        for name in seen[0]:
            due = seen[0][name][1], seen[1][name][1]
            c.check(seen[0][name][0] == seen[1][name][0] == 1, f"delayed {name}: the first step's scale is 1 in all its micro-steps", f"{seen[0][name]} {seen[1][name]}")
            largest = np.float32(57344 if name.startswith("dy/") else 448)
            c.check(seen[2][name][0] == seen[3][name][0] == largest / max(due), f"delayed {name}: the second step's scale is of the first", f"{seen[2][name]} {seen[3][name]} {due}")
    c.check(scales[0] == scales[1], "a run's history is its own")
    for p in TOYS:
        del ref.PRECISIONS[p.name]

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
        for column, what in enumerate(("losses", "norms", "standard errors of losses", "standard errors of norms"), 2):
            values[precision, what + " after"] = np.array([float(line[column]) for line in lines])
        c.check(abs(values[precision, "losses after"][0] - loss) <= 2.0**-23 * loss, f"{folder}: {precision} loss", f"{loss} in the debug state, not in {name}_steps.txt")
    exact["comments"] = [line for line in read(folder, name + "_steps.txt").decode().splitlines() if line.startswith("#")]
    return values, exact


def read_fp8(folder, name):
    """-> {tensor: (x float32 (rows, cols), k, t)}, k and t Quantized without their values, one object where the file has one set."""
    raw, at = read(folder, name), 0

    def take(dtype, *shape):
        nonlocal at
        x = np.frombuffer(raw, dtype, int(np.prod(shape)), at).reshape(shape)
        at += x.nbytes
        return x
    magic, version, count, zero = take("<i4", 4)
    c.check((magic, version, zero) == (20261130, 2, 0), f"{name}: header", f"{magic} {version} {zero}")
    records = {}
    for _ in range(count):
        tensor = take("u1", 32).tobytes().rstrip(b"\0").decode()
        rows, cols, sets = take("<i4", 3)
        x = (take("<u2", rows, cols).astype(np.uint32) << 16).view(np.float32)
        found = []
        for _ in range(sets):
            number, *blocks = take("<i4", 3)
            found.append(ref.Quantized(FORMATS[number], take("<f4", *blocks), take("<f4", *blocks), take("u1", rows, cols), None))
        records[tensor] = (x, found[0], found[-1])
    c.check(at == len(raw) and len(records) == count, f"{name}: length", f"{len(raw)} bytes, {at} due, {len(records)} names of {count}")
    return records


def mean_abs(x):
    return np.abs(x).mean() if np.size(x) else 0.0


# How far the same run may be off on another machine, whose BLAS adds in another order: mean |difference| over the reference's own mean error against
# float64, per tensor. What --measure printed (30 Nov 2026, torch 1.13), the largest over all tensors and 40 runs, first step / after ten: float32 2.2 / 2.1,
# bfloat16 0.0009 / 0.73, float8 0.71 / 0.91 (one BF16 rounding that changes an amax changes a whole tensor's codes). Twice that, but ten times where it is
# a handful of flipped roundings. The mean, because AdamW carries an element whose gradient is noise up to lr a step away.
BOUNDS = {"float32": (4.4, 4.2), "bfloat16": (0.009, 1.5), "float8": (1.4, 1.8)}


def kind(precision):
    return "float8" if ref.PRECISIONS[precision].recipe else "bfloat16" if ref.PRECISIONS[precision].low else precision


def compare_runs(committed, made):
    """What read_run gives of two runs."""
    (a, exact_a), (b, exact_b) = committed, made
    for key, due in exact_a.items():
        c.check(exact_b[key] == due, f"{key}", "differs from the committed fixture")
    for (precision, tensor), x in a.items():
        truth, y = a["float64", tensor], b[precision, tensor]
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
            error = mean_abs(x - a["float64", tensor])
            if error > 0:
                key = precision, tensor.endswith("after")
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
    c.check(size <= 2e6, "fixtures: 2 MB at most", f"{size} bytes")
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


def check_fp8_files(tmp):
    committed = make.FIXTURES
    for name in ("small_float8_fp8.bin", "edge_float8_fp8.bin"):
        records, again = read_fp8(committed, name), read_fp8(tmp, name)
        c.check(list(records) == list(again), f"{name}: tensors", f"{list(records)} {list(again)}")
        for tensor, (x, q, t) in records.items():
            c.check(q is t and q.scale.shape == (1, 1), f"{name} {tensor}: one scale", f"{q.scale.shape}")
            check_quantized(name, tensor, x, q)
            amax = np.abs(x).max()
            if 2.0**-100 < amax < math.inf:  # else the scale has a limit: check_recipes
                c.check((q.codes & 0x7f).max() == q.format.max_code and abs(float(q.scale[0, 0]) * float(amax) - q.format.max) <= 2.0**-24 * q.format.max,
                        f"{name} {tensor}: the largest magnitude becomes the largest number", f"{amax} times {q.scale}, code {(q.codes & 0x7f).max():#x}")
            r = ref.recipe_current({}, tensor, torch.from_numpy(x)).k
            c.check(r.format is q.format and np.array_equal(r.scale, q.scale) and np.array_equal(r.descale, q.descale), f"{name} {tensor}: scale", f"{q.scale} {q.descale} committed, {r.scale} {r.descale} found")
            c.check(np.array_equal(r.codes.numpy(), q.codes), f"{name} {tensor}: codes of the committed input")
            c.check(not np.isfinite(x).all() or np.array_equal(r.value.numpy(), dequantized(q).astype(np.float32)), f"{name} {tensor}: what is multiplied is what the codes say")
            with np.errstate(invalid="ignore"):
                c.check(np.array_equal(search_codes(x * q.scale, q.format), q.codes), f"{name} {tensor}: codes by search")
            c.check(tensor in again and again[tensor][1].format is q.format and again[tensor][0].shape == x.shape, f"{name} {tensor}: format and shape")
    c.check(read(committed, "edge_float8_fp8.bin") == read(tmp, "edge_float8_fp8.bin"), "edge_float8_fp8.bin")
    edge = [q.codes for _, q, _ in read_fp8(committed, "edge_float8_fp8.bin").values() if q.format is ref.E4M3]
    c.check(set(range(0x7f)) <= set(np.concatenate(edge).flatten() & 0x7f), "edge_float8_fp8.bin meets every code")

    # what the file says was multiplied gives the gradients of the debug state: dW = dy^T x rounded to BF16, db the column sums of the unquantized dy
    records = read_fp8(committed, "small_float8_fp8.bin")
    values, _ = read_run(committed, "small")
    config, _ = make.read_model(os.path.join(committed, "small.bin"))
    c.check(len(records) == 12 * config.num_layers, "small_float8_fp8.bin: three tensors a linear layer", f"{len(records)}")
    for linear in ("qkv", "attproj", "fc", "fcproj"):
        for l in range(config.num_layers):
            x, dy = dequantized(records[f"x/{l}/{linear}"][2]), dequantized(records[f"dy/{l}/{linear}"][2])
            dw = np.split(values["float8", f"d{linear}w"], config.num_layers)[l].reshape(dy.shape[1], x.shape[1])
            bound = 2.0**-8 * np.abs(dw) + len(x) * 2.0**-24 * (np.abs(dy).T @ np.abs(x))  # BF16's rounding (2^-9, and as much again for a tie decided by noise), sums of N terms
            c.check((np.abs(dw - dy.T @ x) <= bound).all(), f"d{linear}w of layer {l} is dy^T x of the quantized operands")
            raw = records[f"dy/{l}/{linear}"][0].astype(np.float64)
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
    for check in (check_formats, check_stochastic_rounding, check_recipes, check_network, check_gradients, check_adamw, check_stochastic_steps):
        check()
    check_rounding(fixtures)
    check_fixtures(fixtures)
    check_fp8_files(fixtures)
    check_new_recipes(folder)
    check_arguments(folder)
    check_probe(folder)
c.end()
