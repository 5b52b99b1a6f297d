#!/usr/bin/env python3
"""make_fixtures.py - writes a model, one micro-step and some optimizer steps of the PyTorch reference, in all precisions and FP8 recipes, in llm.c's file formats

    make_fixtures.py                                               the committed fixtures (NAME small), into dev/reference/fixtures
    make_fixtures.py -o DIR --name mid --layers 4 --heads 4 --channels 256 --seq-len 64 --vocab-size 1000 --batch-size 4
    make_fixtures.py -o DIR --name gpt2 --model gpt2_124M.bin --tokens tiny_shakespeare_val.bin --seq-len 64 --batch-size 4 --device cuda
    make_fixtures.py -o DIR --precisions float64,row               some precisions only

What it writes, byte by byte: README.md in this folder. The same arguments give the same files, but for the order in which a BLAS adds.
"""
import argparse
import math
import os
import sys

found = "no PyTorch"
try:
    import torch
    found = f"PyTorch {torch.__version__}"
    import numpy as np
    torch.nn.functional.gelu(torch.from_numpy(np.zeros(1)), approximate="tanh")  # what an old PyTorch lacks, and one built for another numpy cannot do
except Exception as e:  # whatever a broken installation raises
    sys.exit(f"{sys.executable}: {found}: {type(e).__name__}: {' '.join(str(e).split())}\n"
             "HINT: 1.13 or later is needed; make reference installs PyTorch and numpy for /usr/bin/python3 (Debian: python3-torch python3-numpy)")

from gpt_reference import E4M3, E5M2, PRECISIONS, RECIPES, VARIANTS, AdamW, Config, GPT, Hyper, bf16, fp8_decode, new_history, param_table, random_params, recipe_delayed

HYPER = Hyper(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
STEPS, VARIANT_STEPS = 10, 3
DRAWS = 8  # runs of stochastic rounding: what is written of their steps is the mean
MODEL_MAGIC, DEBUG_MAGIC, TOKENS_MAGIC, FP8_MAGIC, CODES_MAGIC = 20240326, 20240327, 20240520, 20261130, 20261201
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


def fail(message, hint):
    sys.exit(f"{message}\nHINT: {hint}")

# ---------------------------------------------------------------------------- files


def header256(*words):
    h = np.zeros(256, "<i4")
    h[:len(words)] = words
    return h.tobytes()


def f32_bytes(x):
    return x.detach().cpu().to(torch.float32).numpy().astype("<f4").tobytes()


def bf16_bits(x):
    """uint16 of float32 values that are exact in BF16."""
    return (x.detach().cpu().contiguous().numpy().view(np.uint32) >> 16).astype("<u2")


def write_model(path, c, params):
    with open(path, "wb") as f:
        f.write(header256(MODEL_MAGIC, 3, *c))
        for p in param_table(c):
            f.write(f32_bytes(params[p.name]))


def read_model(path):
    """-> Config, dict of float32 tensors, of an llm.c model v3 (float32) or v5 (BF16)."""
    hint = "give a model v3 or v5 as llm.c or this project writes them"
    with open(path, "rb") as f:
        h = np.frombuffer(f.read(1024), "<i4")
        data = f.read()
    if len(h) < 256 or h[0] != MODEL_MAGIC or h[1] not in (3, 5):
        fail(f"{path}: not a model file: magic and version {h[:2].tolist()}, expected {MODEL_MAGIC} and 3 or 5", hint)
    c = Config(*(int(i) for i in h[2:8]))
    if min(c) < 1 or c.channels % c.num_heads or c.vocab_size > c.padded_vocab_size:
        fail(f"{path}: impossible sizes: {c}", hint)
    width = 4 if h[1] == 3 else 2
    sizes = [int(np.prod(p.shape)) for p in param_table(c)]
    if len(data) != width * sum(sizes):
        fail(f"{path}: {1024 + len(data)} bytes, but its header asks for {1024 + width * sum(sizes)}", "it is cut short or has something after its end")
    x = np.frombuffer(data, "<f4") if width == 4 else (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    parts = np.split(x.astype(np.float32), np.cumsum(sizes)[:-1])
    return c, {p.name: torch.from_numpy(part.reshape(p.shape)) for p, part in zip(param_table(c), parts)}


def read_tokens(path, count, vocab_size):
    """The first count tokens of a shard, as int64."""
    with open(path, "rb") as f:
        h = np.frombuffer(f.read(1024), "<i4")
        tokens = np.frombuffer(f.read(2 * count), "<u2").astype(np.int64)
    if len(h) < 256 or h[0] != TOKENS_MAGIC or h[1] != 1:
        fail(f"{path}: not a token shard: magic and version {h[:2].tolist()}, expected {TOKENS_MAGIC} and 1", "give a .bin of data/ or of llm.c's dev/data")
    if len(tokens) < count:
        fail(f"{path}: {len(tokens)} tokens, {count} are needed", "lower --batch-size or --seq-len")
    if tokens.max() >= vocab_size:
        fail(f"{path}: token {tokens.max()} among the first {count}, but the model's vocabulary is {vocab_size}", "use the shard's tokenizer and the model's together")
    return tokens


def write_debug_state(path, c, x, y, logits, loss, grads):
    B, T = x.shape
    with open(path, "wb") as f:
        f.write(header256(DEBUG_MAGIC, 2, B, T) + x.numpy().astype("<i4").tobytes() + y.numpy().astype("<i4").tobytes() + f32_bytes(logits) + f32_bytes(loss))
        for p in param_table(c):
            f.write(f32_bytes(grads[p.name]))


def write_fp8(path, operands):
    """Inputs, codes and scales of tensors that have one scale, the same in both orders."""
    with open(path, "wb") as f:
        f.write(np.array([FP8_MAGIC, 2, len(operands), 0], "<i4").tobytes())
        for o in operands:
            f.write(o.name.encode().ljust(32, b"\0") + np.array([*o.x.shape, 1], "<i4").tobytes() + bf16_bits(o.x).tobytes())
            f.write(np.array([o.k.format.number, 1, 1], "<i4").tobytes() + o.k.scale.astype("<f4").tobytes() + o.k.descale.astype("<f4").tobytes())
            f.write(o.k.codes.cpu().numpy().tobytes())


def scale_words(q):
    """uint32: what a GEMM reads of each block, the bits of a float32, or the byte of a power of two."""
    return q.descale.astype("<f4").view("<u4") if q.e is None else q.e.astype("<u4")


def write_codes(path, operands):
    """What another recipe makes of the inputs of a write_fp8 file: scales, and the codes' checksums; of one linear layer the codes as well."""
    with open(path, "wb") as f:
        f.write(np.array([CODES_MAGIC, 1, len(operands), 0], "<i4").tobytes())
        for o in operands:
            f.write(o.name.encode().ljust(32, b"\0") + np.array(o.x.shape, "<i4").tobytes())
            for q in (o.k, o.t):
                codes, whole = q.codes.cpu().numpy().tobytes(), o.name.endswith("/0/qkv")
                f.write(np.array([q.format.number, *q.block, whole], "<i4").tobytes() + scale_words(q).tobytes() + np.array([xxh64(codes)], "<u8").tobytes() + whole * codes)


def xxh64(data):
    """The published XXH64 of bytes, seed 0, as llmc/xxh64.h has it."""
    p1, p2, p3, p4, p5, mask = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63, 0x27d4eb2f165667c5, (1 << 64) - 1

    def rotate(x, n):
        return (x << n | x >> (64 - n)) & mask

    def mix(lane, word):
        return rotate((lane + word * p2) & mask, 31) * p1 & mask
    x, at = p5, len(data) // 32 * 32
    if at:
        a, b, c, d = (p1 + p2) & mask, p2, 0, -p1 & mask
        words = np.frombuffer(data[:at], "<u8").tolist()
        for i in range(0, len(words), 4):
            a, b, c, d = mix(a, words[i]), mix(b, words[i + 1]), mix(c, words[i + 2]), mix(d, words[i + 3])
        x = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18)
        for lane in (a, b, c, d):
            x = ((x ^ mix(0, lane)) * p1 + p4) & mask
    x = (x + len(data)) & mask
    for size, prime, turn, times, plus in ((8, None, 27, p1, p4), (4, p1, 23, p2, p3), (1, p5, 11, p1, 0)):
        while len(data) - at >= size:
            word = int.from_bytes(data[at:at + size], "little")
            x = (rotate(x ^ (word * prime & mask if prime else mix(0, word)), turn) * times + plus) & mask
            at += size
    x = (x ^ x >> 33) * p2 & mask
    x = (x ^ x >> 29) * p3 & mask
    return x ^ x >> 32

# ---------------------------------------------------------------------------- edge cases of the scale rule and of the conversion


def edge_tensors(f, random):
    """(name, values) of 16 x 16 tensors, exact in BF16: one scale is enough to go wrong."""
    normal = torch.from_numpy(random.standard_normal(256).astype(np.float32))
    spread = normal.sign() * torch.from_numpy(2.0**random.randint(-30, 1, 256)).float() * (1 + torch.from_numpy(random.randint(0, 128, 256) / 128.0).float())
    small = torch.from_numpy((random.randint(-127, 128, 256) * 2.0**-133).astype(np.float32))  # BF16 denormals

    def with_first(x, value):
        return torch.cat([torch.tensor([value]), x[1:]])

    def eighth(x):  # with the scale 1/8
        return 8 * torch.cat([values[-1:], x, -x, torch.zeros(255 - 2 * len(x))])

    values = fp8_decode(torch.arange(f.max_code + 1, dtype=torch.uint8), f)
    return [(name, bf16(x).view(16, 16)) for name, x in (
        ("zero", torch.cat([torch.zeros(128), -torch.zeros(128)])),
        ("normal", normal),
        ("one_huge", with_first(normal, 2.0**100)),                    # everything else is flushed to 0
        ("near_max", normal.clamp(-1, 1) * 3.3e38),
        ("max", with_first(normal * 1e37, 255 * 2.0**120)),            # the largest BF16
        ("denormal", small),                                           # the quotient would be infinite: the scale is at its limit
        ("denormal_one", torch.cat([torch.tensor([2.0**-133]), torch.zeros(255)])),
        ("scale_limit", with_first(small, f.max * 2.0**-127)),         # the quotient is 2^127: finite, but its inverse is not a normal number
        ("scale_below_limit", with_first(small, f.max * 2.0**-125)),
        ("flush", with_first(spread * 2.0**-8, 4.0)),                  # across and below the denormals of the format
        ("values", eighth(values)),                                    # every number of the format
        ("ties", eighth((values[1:] + values[:-1]) / 2)),              # halfway between every two neighbours
        ("power_of_two", with_first(normal.clamp(-0.99, 0.99), 1.0)),
        ("power_of_two_large", with_first(normal.clamp(-0.99, 0.99) * 2.0**40, -2.0**40)),
        ("infinity", with_first(normal * f.max, float("inf"))),        # amax infinite: scale 1, values beyond the largest saturate
        ("nan", with_first(normal * f.max, float("nan"))),
    )]


def tiles_tensor(rows, cols, wild, random):
    """Tiles of 16 x 16 of different sizes, the last rows, a row and a column zero: blocks that are partial, wholly zero, or flushed by their largest value. wild: three
    tiles have denormals, numbers near the largest and infinity, and NaN."""
    x = random.standard_normal((rows, cols)) * np.kron(2.0**random.randint(-14, 5, (rows // 16, cols // 16)), np.ones((16, 16)))
    if wild:
        x[:16, :16] *= 2.0**-131
        x[16:32, 16:32], x[20, 20] = 1e38 * np.clip(x[16:32, 16:32], -3, 3), np.inf
        x[32, 32] = np.nan
    x[rows // 16 * 16 - 16:], x[3], x[:, 5] = 0, 0, 0
    return bf16(torch.from_numpy(x.astype(np.float32)))


def edge_inputs():
    """(role/0/what, values)"""
    random = np.random.RandomState(1)
    small = [(f"{role}/0/{name}", x) for role, f in (("x", E4M3), ("dy", E5M2)) for name, x in edge_tensors(f, random)]
    sizes = (("x", 48, 144, True), ("w", 144, 80, False), ("w", 80, 144, True), ("dy", 144, 80, True))
    return small + [(f"{role}/0/{rows}x{cols}", tiles_tensor(rows, cols, wild, random)) for role, rows, cols, wild in sizes]


def quantize_all(recipe, inputs):
    history = new_history()
    return [recipe(history, name, x) for name, x in inputs]

# ---------------------------------------------------------------------------- edge cases of a history


def delayed_cases(random):
    """(name, length, most recent, margin, format, events). An event: (word, amax): use, eval, end (of a step), skip (a step)."""
    def steps(*amaxes):
        return [event for amax in amaxes for event in (("use", amax), ("end", 0))]
    nan, inf = math.nan, math.inf
    first = [("eval", 5), ("use", 3), ("eval", 1), ("use", 0.75), ("end", 0), ("eval", 100), ("use", 6), ("use", 1), ("eval", 8), ("end", 0), ("use", 1), ("end", 0), ("use", 1)]
    strange = [*steps(0, 0, 2, 0, 0, 0, inf, 1, 1, 1, nan, 3, 3, 3, 2.0**-133, 2.0**-133, 2.0**-133), ("use", inf), ("use", 1), ("end", 0), ("use", 16), ("use", nan), ("use", 1), ("end", 0),
               *steps(4, 4, 4, 4)]
    skipped = [("use", 2), ("skip", 0), ("use", 8), ("end", 0), ("use", 64), ("use", nan), ("skip", 0), ("use", 4), ("eval", 1), ("skip", 0), ("end", 0), ("end", 0),
               ("use", 1), ("end", 0), ("end", 0), ("use", 1), ("end", 0), ("use", 1), ("end", 0), ("use", 1)]
    mixed = []
    for _ in range(60):
        mixed += [("use", 2.0**random.randint(-20, 20) * (1 + random.randint(0, 128) / 128)) for _ in range(random.randint(0, 4))]
        mixed += random.randint(0, 3) * [("eval", 2.0**30)] + [("skip" if random.randint(0, 5) == 0 else "end", 0)]
    long = steps(1000, *(1022 * [1]), 7, 1, 1, 1, 1)  # 1000 is forgotten after 1024 steps
    limit = steps(E4M3.max * 2.0**-126, E4M3.max * 2.0**-126, E5M2.max * 2.0**-127, 255 * 2.0**120, 255 * 2.0**120)
    courses = (("first", first, (1, 16, 1024)), ("strange", strange, (1, 3)), ("skipped", skipped, (1, 3)), ("mixed", mixed, (1, 5, 16)))
    cases = [(name, length, recent, 0, E4M3, events) for name, events, lengths in courses for length in lengths for recent in (False, True)]
    return cases + [("long", 1024, False, 0, E4M3, long)] + [("limit", 2, False, margin, f, limit) for margin in (0, 1, 6) for f in (E4M3, E5M2)]


def write_delayed(path):
    """Courses of steps, and the scale of each use."""
    lines = ["# case NAME LENGTH max|recent MARGIN FORMAT, then the course of one tensor's steps: use|eval AMAX SCALE (bits of float32, BF16 values), end, skip"]
    for name, length, recent, margin, f, events in delayed_cases(np.random.RandomState(1)):
        lines.append(f"case {name} {length} {'recent' if recent else 'max'} {margin} {f.name}")
        history = new_history()
        for word, amax in events:
            if word in ("end", "skip"):
                history["dropped"].update([history["step"]] if word == "skip" else [])
                history["step"] += 1
                lines.append(word)
                continue
            history["evaluating"] = word == "eval"
            x = bf16(torch.full((16, 16), amax, dtype=torch.float32))
            q = recipe_delayed(history, "x/0/fc", x, {"x": f}, length, recent, margin).k
            lines.append(f"{word} {bf16_bits(x)[0, 0]:04x}0000 {q.scale.view(np.uint32)[0, 0]:08x}")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")

# ---------------------------------------------------------------------------- one configuration


def run_precision(prefix, c, params, x, y, precision, args):
    """Writes the debug state and, but for variants, the weights after all steps; -> (loss, norm and the standard errors of both) of each step, and of FP8 what the
    first micro-step quantized."""
    device_x, device_y = x.to(args.device), y.to(args.device)
    variant = precision.name in VARIANTS
    draws, steps = DRAWS if precision.low else 1, VARIANT_STEPS if variant else STEPS
    results, weights, log = np.zeros((draws, steps, 2)), {name: 0.0 for name in params}, []
    for draw in range(draws):
        gpt = GPT(c, params, precision, args.device)
        optimizer = AdamW(gpt, HYPER, args.seed + draw)
        for step in range(steps):
            first = draw == 0 and step == 0
            gpt.log = log if first else None
            logits, loss, grads = gpt.gradients(device_x, device_y)
            if first:
                write_debug_state(f"{prefix}_{precision.name}_debug_state.bin", c, x, y, logits, loss, grads)
            results[draw, step] = loss.item(), optimizer.step(grads)
        weights = {name: weights[name] + p.detach().double() / draws for name, p in gpt.params.items()}
    if not variant:
        write_model(f"{prefix}_{precision.name}_after{STEPS}.bin", c, weights)
    luck = results.std(0, ddof=1) / math.sqrt(draws) if draws > 1 else 0 * results[0]
    return np.concatenate([results.mean(0), luck], 1), log


def parse_arguments(argv):
    p = argparse.ArgumentParser(description="Writes the reference's results for one configuration. Without arguments: the committed fixtures.")
    p.add_argument("-o", "--output", default=FIXTURES, help="folder to write into")
    p.add_argument("--name", default="small", help="what the files' names begin with")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=2, help="their size, channels / heads, must be a multiple of 8")
    p.add_argument("--channels", type=int, default=32, help="a multiple of 16")
    p.add_argument("--max-seq-len", type=int, default=0, help="positions of the model (default: 1.5 times --seq-len)")
    p.add_argument("--vocab-size", type=int, default=90, help="padded to a multiple of 128 in the files")
    p.add_argument("--seq-len", type=int, default=16, help="tokens a sequence (T): a multiple of 16")
    p.add_argument("--batch-size", type=int, default=2, help="sequences (B)")
    p.add_argument("--seed", type=int, default=1, help="of weights, tokens and rounding")
    p.add_argument("--model", help="start from this llm.c model (v3 or v5, rounded to BF16) instead of a random one of the sizes above")
    p.add_argument("--tokens", help="take the first tokens of this shard instead of random ones")
    p.add_argument("--precisions", default=",".join([*PRECISIONS, *VARIANTS]), help="some of %(default)s, separated by commas")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    return p.parse_args(argv)


def precisions_from_arguments(args):
    known = {**PRECISIONS, **VARIANTS}
    for name in args.precisions.split(","):
        if name not in known:
            fail(f"--precisions {args.precisions}: there is no precision '{name}'", f"choose from {', '.join(known)}")
    return [p for p in known.values() if p.name in args.precisions.split(",")]


def model_from_arguments(args, random):
    if args.model:
        c, params = read_model(args.model)
        return c, {name: bf16(v) for name, v in params.items()}
    C, NH, T = args.channels, args.heads, args.seq_len
    if min(C, NH, T, args.layers, args.vocab_size, args.batch_size) < 1 or C % 16 or C % NH or C // NH % 8 or T % 16 or args.vocab_size > 65536:
        fail(f"--layers {args.layers} --heads {NH} --channels {C} --seq-len {T} --vocab-size {args.vocab_size} --batch-size {args.batch_size}: impossible",
             "all positive, channels and seq-len multiples of 16, channels / heads a multiple of 8, vocab-size at most 65536")
    c = Config(args.max_seq_len or T * 3 // 2, args.vocab_size, args.layers, NH, C, -(-args.vocab_size // 128) * 128)
    return c, random_params(c, random)


def write_all(args):
    if args.device == "cuda" and not torch.cuda.is_available():
        fail("--device cuda: this PyTorch finds no GPU", "leave it out: the CPU gives the same results but for the order of sums")
    random, precisions = np.random.RandomState(args.seed), precisions_from_arguments(args)
    c, params = model_from_arguments(args, random)
    B, T = args.batch_size, args.seq_len
    if T > c.max_seq_len:
        fail(f"--seq-len {T}: the model has {c.max_seq_len} positions", "lower --seq-len")
    tokens = read_tokens(args.tokens, B * T + 1, c.vocab_size) if args.tokens else random.randint(0, c.vocab_size, B * T + 1, dtype=np.int64)
    x, y = torch.from_numpy(tokens[:-1].copy()).view(B, T), torch.from_numpy(tokens[1:].copy()).view(B, T)

    os.makedirs(args.output, exist_ok=True)
    prefix = os.path.join(args.output, args.name)
    write_model(prefix + ".bin", c, params)
    h = HYPER
    lines = [f"# AdamW steps on the batch of {args.name}_*_debug_state.bin: precision, step, loss before it, gradient norm before clipping, standard errors",
             f"# lr {h.lr:g} beta1 {h.beta1:g} beta2 {h.beta2:g} eps {h.eps:g} weight_decay {h.weight_decay:g} clip {h.clip:.1f} draws {DRAWS}"]
    for precision in precisions:
        results, operands = run_precision(prefix, c, params, x, y, precision, args)
        for step, (loss, norm, loss_luck, norm_luck) in enumerate(results, 1):
            lines.append(f"{precision.name} {step} {loss:.9g} {norm:.9g} {loss_luck:.9g} {norm_luck:.9g}")
        if precision.name == "float8":  # whose inputs the other recipes get as well
            for where, inputs in ((prefix, [(o.name, o.x) for o in operands]), (os.path.join(args.output, "edge"), edge_inputs())):
                write_fp8(f"{where}_float8_fp8.bin", quantize_all(precision.recipe, inputs))
                for name, recipe in RECIPES.items():
                    write_codes(f"{where}_{name}_codes.bin", quantize_all(recipe, inputs))
            write_delayed(os.path.join(args.output, "edge_delayed.txt"))
    with open(prefix + "_steps.txt", "w") as f:
        f.write("\n".join(lines) + "\n")


def main(argv):
    try:
        write_all(parse_arguments(argv))
    except OSError as e:
        fail(f"{e.filename}: {e.strerror}", "check the path")


if __name__ == "__main__":
    main(sys.argv[1:])
