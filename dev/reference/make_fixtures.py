#!/usr/bin/env python3
"""make_fixtures.py - writes a model, one micro-step and ten optimizer steps of the PyTorch reference, in four precisions, in llm.c's file formats

    make_fixtures.py                                               the committed fixtures (NAME small), into dev/reference/fixtures
    make_fixtures.py -o DIR --name mid --layers 4 --heads 4 --channels 256 --seq-len 64 --vocab-size 1000 --batch-size 4
    make_fixtures.py -o DIR --name gpt2 --model gpt2_124M.bin --tokens tiny_shakespeare_val.bin --seq-len 64 --batch-size 4 --device cuda

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

from gpt_reference import E4M3, E5M2, PRECISIONS, AdamW, Config, GPT, Hyper, bf16, fp8_decode, param_table, random_params

HYPER = Hyper(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
STEPS = 10
DRAWS = 8  # runs of stochastic rounding: what is written of their ten steps is the mean
MODEL_MAGIC, DEBUG_MAGIC, TOKENS_MAGIC, FP8_MAGIC = 20240326, 20240327, 20240520, 20261130
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
    with open(path, "wb") as f:
        f.write(np.array([FP8_MAGIC, 2, len(operands), 0], "<i4").tobytes())
        for o in operands:
            sets = [o.k] if o.t is o.k else [o.k, o.t]
            f.write(o.name.encode().ljust(32, b"\0") + np.array([*o.x.shape, len(sets)], "<i4").tobytes() + bf16_bits(o.x).tobytes())
            for q in sets:
                f.write(np.array([q.format.number, *q.scale.shape], "<i4").tobytes() + q.scale.astype("<f4").tobytes() + q.descale.astype("<f4").tobytes())
                f.write(q.codes.cpu().numpy().tobytes())

# ---------------------------------------------------------------------------- edge cases of the scale rule and of the conversion


def edge_tensors(f, random):
    """(name, values) of 16 x 16 tensors, exact in BF16."""
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


def edge_operands(recipe):
    random = np.random.RandomState(1)
    history = {"step": 0}
    return [recipe(history, f"{role}/0/{name}", x) for role, f in (("x", E4M3), ("dy", E5M2)) for name, x in edge_tensors(f, random)]

# ---------------------------------------------------------------------------- one configuration


def run_precision(prefix, c, params, x, y, precision, args):
    """Writes the debug state, the weights after STEPS steps and, of FP8, the quantized tensors; -> (loss, norm and the standard errors of both) of each step."""
    device_x, device_y = x.to(args.device), y.to(args.device)
    draws = DRAWS if precision.low else 1
    results, weights = np.zeros((draws, STEPS, 2)), {name: 0.0 for name in params}
    for draw in range(draws):
        gpt = GPT(c, params, precision, args.device)
        optimizer = AdamW(gpt, HYPER, args.seed + draw)
        for step in range(STEPS):
            first = draw == 0 and step == 0
            gpt.log = [] if first and precision.recipe else None
            logits, loss, grads = gpt.gradients(device_x, device_y)
            if first:
                write_debug_state(f"{prefix}_{precision.name}_debug_state.bin", c, x, y, logits, loss, grads)
                if precision.recipe:
                    write_fp8(f"{prefix}_{precision.name}_fp8.bin", gpt.log)
            results[draw, step] = loss.item(), optimizer.step(grads)
        weights = {name: weights[name] + p.detach().double() / draws for name, p in gpt.params.items()}
    write_model(f"{prefix}_{precision.name}_after{STEPS}.bin", c, weights)
    luck = results.std(0, ddof=1) / math.sqrt(draws) if draws > 1 else 0 * results[0]
    return np.concatenate([results.mean(0), luck], 1)


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
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    return p.parse_args(argv)


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
    random = np.random.RandomState(args.seed)
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
    lines = [f"# ten AdamW steps on the batch of {args.name}_*_debug_state.bin: precision, step, loss before it, gradient norm before clipping, standard errors",
             f"# lr {h.lr:g} beta1 {h.beta1:g} beta2 {h.beta2:g} eps {h.eps:g} weight_decay {h.weight_decay:g} clip {h.clip:.1f} draws {DRAWS}"]
    for precision in PRECISIONS.values():
        for step, (loss, norm, loss_luck, norm_luck) in enumerate(run_precision(prefix, c, params, x, y, precision, args), 1):
            lines.append(f"{precision.name} {step} {loss:.9g} {norm:.9g} {loss_luck:.9g} {norm_luck:.9g}")
        if precision.recipe:
            write_fp8(os.path.join(args.output, f"edge_{precision.name}_fp8.bin"), edge_operands(precision.recipe))
    with open(prefix + "_steps.txt", "w") as f:
        f.write("\n".join(lines) + "\n")


def main(argv):
    try:
        write_all(parse_arguments(argv))
    except OSError as e:
        fail(f"{e.filename}: {e.strerror}", "check the path")


if __name__ == "__main__":
    main(sys.argv[1:])
