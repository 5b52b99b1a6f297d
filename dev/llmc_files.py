"""llmc_files.py - files in llm.c's formats made byte by byte, its order of the data, and what a trainer printed; for the dev/check_*.py scripts

Made from the formats' description (offsets and magics, no code). lookup: a model that says the same logits LOGIT[0..V-1] whatever it reads (the final
layernorm's weight is 0 and its bias (1, 0, 0 ...), wte[t][0] = LOGIT[t]): its losses can be computed from the tokens alone. Standard library only.
"""
import array
import math
import os
import random
import re
import struct

V, VP = 200, 256
LOGIT = [t / 32 for t in range(V)]  # exact in bfloat16
LSE = math.log(sum(math.exp(x) for x in LOGIT))
TABLE_RULE = "+" + "-" * 23 + "+" + "-" * 52 + "+"

# ---------------------------------------------------------------------------- files in llm.c's formats


def header(*values):
    return struct.pack("<256i", *values, *[0] * (256 - len(values)))


def put(path, data):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def random_tokens(rng, n):
    return [rng.randrange(V) for _ in range(n)]


def shard(path, tokens):
    put(path, header(20240520, 1, len(tokens)) + array.array("H", tokens).tobytes())


def tokenizer_file(path, version, tokens, eot):
    put(path, header(20240328, version, len(tokens), eot if version == 2 else 0) + b"".join(bytes([len(t)]) + t for t in tokens))


def questions_file(path, questions):
    """questions: (label, context, four completions), lists of tokens."""
    words, longest = [], 0
    for index, (label, context, completions) in enumerate(questions):
        body = [index, label, 4, len(context)] + context
        for completion in completions:
            body += [len(completion)] + completion
        size = 2 * (2 + len(body))
        longest = max(longest, size)
        words += [65535, size] + body
    put(path, header(20240522, 1, len(questions), longest) + array.array("H", words).tobytes())


def bf16_bits(x):
    """Rounded to nearest even."""
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    return (u + 0x7fff + (u >> 16 & 1)) >> 16


class Shape:
    def __init__(self, L, C, NH, max_t):
        self.L, self.C, self.NH, self.max_t = L, C, NH, max_t
        self.tensors = [("wte", 1, VP * C), ("wpe", 1, max_t * C), ("ln1w", L, C), ("ln1b", L, C), ("qkvw", L, 3 * C * C), ("qkvb", L, 3 * C), ("attprojw", L, C * C),
                        ("attprojb", L, C), ("ln2w", L, C), ("ln2b", L, C), ("fcw", L, 4 * C * C), ("fcb", L, 4 * C), ("fcprojw", L, 4 * C * C), ("fcprojb", L, C),
                        ("lnfw", 1, C), ("lnfb", 1, C)]  # name, layers, elements of one layer; in the order of the file
        self.N = sum(layers * part for _, layers, part in self.tensors)


def weights(shape, lookup, seed=1):
    """{name: floats exact in bfloat16}. lookup: the logits are LOGIT whatever is read; else small random numbers that can be trained."""
    rng = random.Random(seed)
    result = {}
    for name, layers, part in shape.tensors:
        n = layers * part
        if name in ("ln1w", "ln2w", "lnfw"):
            result[name] = [0.0 if lookup and name == "lnfw" else 1.0] * n
        elif name == "lnfb" and lookup:
            result[name] = [1.0] + [0.0] * (n - 1)
        elif name.endswith("b"):
            result[name] = [0.0] * n
        else:  # sums of uniforms with few digits: quick to make, exact in bfloat16
            result[name] = [(rng.getrandbits(7) - 64) / 1024 for _ in range(n)]
    wte = result["wte"]
    wte[V * shape.C:] = [0.0] * ((VP - V) * shape.C)
    if lookup:
        wte[0:V * shape.C:shape.C] = LOGIT
    return result


def flat(shape, w):
    return array.array("f", [x for name, _, _ in shape.tensors for x in w[name]])


def model_bytes(shape, version, w):
    values = flat(shape, w)
    data = values.tobytes() if version == 3 else array.array("H", [u >> 16 for u in array.array("I", values.tobytes())]).tobytes()  # exact: see weights
    return header(20240326, version, shape.max_t, V, shape.L, shape.NH, shape.C, VP) + data


def read_model(path, shape):
    """(version, {name: floats}) of a model file of this shape."""
    data = get(path)
    h = struct.unpack("<8i", data[:32])
    assert h[0] == 20240326 and h[2:] == (shape.max_t, V, shape.L, shape.NH, shape.C, VP), h
    body = data[1024:]
    values = array.array("f", body if h[1] == 3 else array.array("I", [x << 16 for x in array.array("H", body)]).tobytes())
    assert len(values) == shape.N, (len(values), shape.N)
    result, at = {}, 0
    for name, layers, part in shape.tensors:
        result[name] = values[at:at + layers * part]
        at += layers * part
    return h[1], result


# ---------------------------------------------------------------------------- llm.c's order of the data, made again from its description


class Mt19937:
    def __init__(self, seed):
        state = [seed]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xffffffff)
        self.random = random.Random()  # the same generator with another way to seed it
        self.random.setstate((3, tuple(state + [624]), None))

    def shuffle(self, x):
        for i in range(len(x) - 1, 0, -1):
            j = self.random.getrandbits(32) % (i + 1)
            x[i], x[j] = x[j], x[i]

    def bytes(self):
        """As the state file holds it; its first 8 bytes are never set there."""
        *state, used = self.random.getstate()[1]
        return b"\xcd" * 8 + struct.pack("<iI624I2I", 625 - used, used, *state, 0, 0x9908b0df)


class LlmcLoader:
    """One rank's training batches: lists of B*T + 1 tokens."""
    def __init__(self, shards, B, T, P=1, rank=0):
        self.shards, self.B, self.T, self.P, self.rank = shards, B, T, P, rank
        self.mt = Mt19937(42 + rank)
        self.order = list(range(len(shards)))
        self.slot = len(shards) - 1
        self.open_next()

    def open_next(self):
        if self.slot == len(self.shards) - 1:
            self.slot = -1
            self.mt.shuffle(self.order)
        self.slot += 1
        self.samples = list(range((len(self.shards[self.order[self.slot]]) - 1) // (self.P * self.B * self.T)))
        self.mt.shuffle(self.samples)
        self.sample = 0

    def next(self):
        if self.sample == len(self.samples):
            self.open_next()
        start = (self.samples[self.sample] * self.P + self.rank) * self.B * self.T
        self.sample += 1
        return self.shards[self.order[self.slot]][start:start + self.B * self.T + 1]


def lookup_loss(batches):
    """Of the lookup model, over lists of B*T + 1 tokens in a row."""
    targets = [t for batch in batches for t in batch[1:]]
    return LSE - sum(LOGIT[t] for t in targets) / len(targets)


def state_bytes(step, P, rank, m, v, master, loader):
    """An optimizer state of llm.c, version 1. m, v, master: arrays of floats (master None: there are none); loader: LlmcLoader."""
    h = bytearray(header(20240527, 1, P, rank, int(master is not None), 1))
    struct.pack_into("<i", h, 40, step)
    struct.pack_into("<QQ", h, 80, 13371337 + rank, 13371337 + rank)
    struct.pack_into("<QQ", h, 120, loader.slot, loader.sample)
    data = bytes(h) + m.tobytes() + v.tobytes() + (master.tobytes() if master is not None else b"")
    data += struct.pack("<Q", len(loader.order)) + array.array("i", loader.order).tobytes()
    return data + struct.pack("<Q", len(loader.samples)) + array.array("i", loader.samples).tobytes() + loader.mt.bytes()


def zero_shard(shape, values, P, rank):
    """What rank of P holds of an array under ZeRO stage 1."""
    result, at = array.array("f"), 0
    for _, layers, part in shape.tensors:
        for _ in range(layers):
            result += values[at + rank * part // P:at + (rank + 1) * part // P]
            at += part
    return result


# ---------------------------------------------------------------------------- what it printed

STEP = re.compile(r"step ( *\d+)/(\d+) \| loss (-?\d+\.\d{6}| *-?nan) \(([+-](?:\d+\.\d\d|nan))z\)\| norm ( *\d+\.\d{4}| *-?nan) \(([+-](?:\d+\.\d\d|nan))z\)\| "
                  r"lr (\d\.\d\de[+-]\d\d) \| (\d+\.\d\d) ms \| (?:-?\d+\.\d%|n/a) bf16 MFU \| (\d+) tok/s")


class Run:
    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err
        self.lines = [line.rsplit("\r", 1)[-1] for line in out.split("\n")]
        self.steps, self.vals, self.evals, self.samples, self.events = [], [], [], [], []
        sample = None
        for line in self.lines:
            step, val, hella = STEP.fullmatch(line), re.fullmatch(r"val loss (-?\d+\.\d{6})", line), re.fullmatch(r"HellaSwag: (\d+)/(\d+) = (\d\.\d{6})", line)
            if sample is not None:
                if line == "---" and sample:
                    self.samples.append("\n".join(sample[1:]))
                    sample = None
                else:
                    sample.append(line)
            elif step:
                s = step.groups()
                self.steps.append({"step": int(s[0]), "of": int(s[1]), "loss": float(s[2]), "z": s[3], "norm": float(s[4]), "norm_z": s[5], "lr": s[6], "ms": float(s[7]), "tok": int(s[8]), "line": line})
                self.events.append(f"step {int(s[0])}")
            elif val:
                self.vals.append(float(val.group(1)))
                self.events.append("val")
            elif hella:
                self.evals.append(hella.groups())
                self.events.append("eval")
            elif line == "generating:":
                sample = []
                self.events.append("sample")
            elif re.fullmatch(r"(Writing checkpoint|Deleting checkpoint) at step \d+", line):
                self.events.append(line.split()[0].lower() + " " + line.split()[-1])
        self.losses = [s["loss"] for s in self.steps]
        self.rows, self.blocks, block = {}, [], []  # of the parameter table
        for line in self.lines:
            row = re.fullmatch(r"\| (.{21,}?) +\| (.{50,}) \|", line) if line.startswith("| ") else None
            if line == TABLE_RULE:
                self.blocks.append(block)
                block = []
            elif row and line[:24] == f"| {row.group(1).rstrip():<21} " and row.group(2) == f"{row.group(2).rstrip():<50}":
                block.append((row.group(1).rstrip(), row.group(2).rstrip()))
                self.rows.setdefault(*block[-1])

    def __str__(self):
        return f"\n  command: {self.command}\n  exit code {self.code}\n  stderr: {self.err[-1500:]}\n  stdout ends: {self.out[-1500:]}"
