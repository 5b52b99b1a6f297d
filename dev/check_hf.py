#!/usr/bin/env python3
"""check_hf.py - dev/eval/hf_gpt2.py: a made-up HuggingFace GPT-2 becomes a .bin and comes back, to the last bit; wrong inputs get one clear message

The safetensors files and the expected .bin are made here by loops of their own. Everything runs without numpy and, where there is one, with it: the same
bytes. Where the libraries can be imported: safetensors reads what export writes, and writes what import reads; transformers with torch loads the export and its
loss on a shard of tokens is what this program validates. No network.
"""
import atexit
import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from checking import Checks, ROOT, run

TOOL = os.path.join(ROOT, "dev/eval/hf_gpt2.py")
ITEM = {"F32": 4, "BF16": 2, "F16": 2}
FORMAT = {"F32": "I", "BF16": "H", "F16": "H"}
L, NH, C, T, V = 2, 4, 32, 16, 200

c = Checks()
tmp = tempfile.mkdtemp(prefix="check_hf.")
atexit.register(shutil.rmtree, tmp, True)
bare = os.path.join(tmp, "bare")  # a folder with which `import numpy` fails
os.mkdir(bare)
with open(os.path.join(bare, "numpy.py"), "w", encoding="utf-8") as file:
    file.write("raise ImportError('hidden by check_hf.py')\n")
PYTHONS = {"without numpy": dict(os.environ, PYTHONPATH=bare)}
have = {name: importlib.util.find_spec(name) is not None for name in ("numpy", "safetensors", "torch", "transformers")}
if have["numpy"]:
    PYTHONS["with numpy"] = dict(os.environ)
else:
    c.skip("the conversions with numpy", "no numpy here")


def place(name):
    return os.path.join(tmp, name)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode("utf-8"))


def tool(arguments, env=None):
    return run([sys.executable, TOOL] + arguments, cwd=tmp, env=env or PYTHONS["without numpy"], timeout=120)


# ---------------------------------------------------------------------------- a model, as lists of bit patterns

def hf_shapes():
    shapes = {"wte.weight": [V, C], "wpe.weight": [T, C], "ln_f.weight": [C], "ln_f.bias": [C]}
    for i in range(L):
        for name, shape in (("ln_1.weight", [C]), ("ln_1.bias", [C]), ("attn.c_attn.weight", [C, 3 * C]), ("attn.c_attn.bias", [3 * C]), ("attn.c_proj.weight", [C, C]),
                            ("attn.c_proj.bias", [C]), ("ln_2.weight", [C]), ("ln_2.bias", [C]), ("mlp.c_fc.weight", [C, 4 * C]), ("mlp.c_fc.bias", [4 * C]),
                            ("mlp.c_proj.weight", [4 * C, C]), ("mlp.c_proj.bias", [C])):
            shapes[f"h.{i}.{name}"] = shape
    return shapes


SHAPES = hf_shapes()


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def make_model(dtype, seed, special=True):
    """{name: bit patterns}: random numbers of a fresh network's size; if special every kind of number that there is among them."""
    r = random.Random(seed)
    model = {}
    for name, shape in SHAPES.items():
        gain = 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0
        values = [bits_of(gain + r.gauss(0.0, 0.1 if len(shape) == 2 else 0.02)) for _ in range(math.prod(shape))]
        if special:
            for at in range(0, len(values), 7):
                values[at] = r.getrandbits(32)
            for at, bits in enumerate((0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xff81ffff, 0x3f808000, 0x3f818000, 0x7f7fffff)):
                values[(at * 5) % len(values)] = bits
        if dtype != "F32":
            values = [v >> 16 for v in values]
        model[name] = values
    return model


def safetensors(model, dtype, prefix="transformer.", extra=(), names=None):
    """The bytes of a safetensors file. extra: more (name, dtype, shape, bytes)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    entries = [(prefix + n, dtype, SHAPES[n], struct.pack(f"<{len(v)}{FORMAT[dtype]}", *v)) for n, v in model.items() if names is None or n in names]
    for name, kind, shape, raw in sorted(entries) + list(extra):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


CONFIG = {"model_type": "gpt2", "n_layer": L, "n_head": NH, "n_embd": C, "n_positions": T, "n_ctx": T, "vocab_size": V, "activation_function": "gelu_new",
          "layer_norm_epsilon": 1e-05, "architectures": ["GPT2LMHeadModel"]}


def put_model(folder, data, config=None):
    put(place(f"{folder}/model.safetensors"), data)
    put(place(f"{folder}/config.json"), json.dumps(dict(CONFIG, **(config or {}))))


def bf16_of(bits):
    """The nearest BF16 of a float32, found by comparing the two neighbours; a NaN stays one."""
    if bits & 0x7fffffff > 0x7f800000:
        return bits >> 16 | 0x40
    below, rest = bits >> 16, bits & 0xffff
    return below + (1 if rest > 0x8000 or (rest == 0x8000 and below & 1) else 0)


def f32_of_f16(code):
    """By the definition of the format, through a Python float."""
    sign, exponent, mantissa = code >> 15, code >> 10 & 31, code & 1023
    if exponent == 31:
        return sign << 31 | 0x7f800000 | mantissa << 13
    x = mantissa * 2.0**-24 if exponent == 0 else (1024 + mantissa) * 2.0**(exponent - 25)
    return bits_of(-x if sign else x)


def expected_bin(model, source, target):
    """The .bin that import must write."""
    def values(name):
        v = model[name]
        if source == "F16":
            v = [f32_of_f16(x) for x in v]
        elif source == "BF16" and target == "F32":
            v = [x << 16 for x in v]
        if source != "BF16" and target == "BF16":
            v = [bf16_of(x) for x in v]
        shape = SHAPES[name]
        if len(shape) == 2 and name.startswith("h."):  # (in, out) there, (out, in) here
            v = [v[i * shape[1] + j] for j in range(shape[1]) for i in range(shape[0])]
        return v
    padded = -(-V // 128) * 128
    out = values("wte.weight") + [0] * ((padded - V) * C) + values("wpe.weight")
    for part in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight",
                 "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"):
        for i in range(L):
            out += values(f"h.{i}.{part}")
    out += values("ln_f.weight") + values("ln_f.bias")
    return struct.pack("<256i", 20240326, 3 if target == "F32" else 5, T, V, L, NH, C, padded, *[0] * 248) + struct.pack(f"<{len(out)}{FORMAT[target]}", *out)


def read_safetensors(data):
    """{name: (dtype, shape, bytes)} and the metadata."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", None)
    return {n: (h["dtype"], h["shape"], data[8 + length + h["data_offsets"][0]:8 + length + h["data_offsets"][1]]) for n, h in header.items()}, metadata


# ---------------------------------------------------------------------------- there and back

def check_round_trips():
    for python, env in PYTHONS.items():
        for source in ("F32", "BF16", "F16"):
            model = make_model(source, seed=1)
            put_model("hf", safetensors(model, source))
            for target in (None, "F32", "BF16"):
                name = f"import {source} as {target or 'stored'}, {python}"
                options = ["--dtype", {"F32": "float32", "BF16": "bfloat16"}[target]] if target else []
                code, out = tool(["import", "hf", "model.bin"] + options, env)
                kind = target or ("BF16" if source == "BF16" else "F32")
                c.check(code == 0, name, out)
                if code:
                    continue
                c.check(content(place("model.bin")) == expected_bin(model, source, kind), name, "other bytes than expected")
                code, out = tool(["export", "model.bin", "back"], env)
                c.check(code == 0, f"export after {name}", out)
                if source == kind and code == 0:
                    there, _ = read_safetensors(content(place("hf/model.safetensors")))
                    back, metadata = read_safetensors(content(place("back/model.safetensors")))
                    c.check(there == back and metadata == {"format": "pt"}, f"export after {name}", "the tensors are not those that were imported")
                code, out = tool(["import", "back", "again.bin"], env)
                c.check(code == 0 and content(place("again.bin")) == content(place("model.bin")), f"import of the export, {python}", f"not the same .bin: {out}")
                config = json.loads(content(place("back/config.json")))
                c.check(all(config.get(key) == value for key, value in CONFIG.items()), f"config.json of {name}", str(config))
    leftovers = [os.path.join(folder, f) for folder, _, files in os.walk(tmp) for f in files if f.endswith(".part")]
    c.check(not leftovers, "no temporary files are left", str(leftovers))


def check_variations():
    """Names without prefix, lm_head and mask buffers present, a bare file with --heads, shards with an index, mixed types, a tokenizer beside the export."""
    model = make_model("F32", seed=2)
    want = expected_bin(model, "F32", "F32")
    wte = struct.pack(f"<{V * C}I", *model["wte.weight"])
    buffers = [("h.0.attn.bias", "U8", [1, 1, T, T], bytes(T * T)), ("h.1.attn.masked_bias", "F32", [], struct.pack("<f", -1e4)), ("lm_head.weight", "F32", [V, C], wte)]
    put_model("plain", safetensors(model, "F32", prefix="", extra=buffers))
    put(place("bare/model.safetensors"), safetensors(model, "F32"))
    half = sorted(SHAPES)[:9]
    put(place("sharded/model-00001-of-00002.safetensors"), safetensors(model, "F32", names=half))
    put(place("sharded/model-00002-of-00002.safetensors"), safetensors(model, "F32", names=set(SHAPES) - set(half)))
    where = {"transformer." + n: f"model-0000{1 if n in half else 2}-of-00002.safetensors" for n in SHAPES}
    put(place("sharded/model.safetensors.index.json"), json.dumps({"metadata": {}, "weight_map": where}))
    put(place("sharded/config.json"), json.dumps({key: value for key, value in CONFIG.items() if key != "model_type"}))
    put_model("head", safetensors(model, "F32", names=set(SHAPES) - {"wte.weight"}, extra=[("lm_head.weight", "F32", [V, C], wte)]))
    put_model("compiled", safetensors(model, "F32", prefix="_orig_mod.transformer.", extra=[("_orig_mod.lm_head.weight", "F32", [V, C], wte)]))
    put_model("half", b"")
    os.rename(place("half/model.safetensors"), place("half/model.fp16.safetensors"))
    refused("a folder with another .safetensors file only", ["import", "half", "variation.bin"], ["only model.fp16.safetensors", "name the file: half/model.fp16.safetensors"])
    put(place("half/model.fp16.safetensors"), safetensors(model, "F32"))
    for name, arguments in (("wte saved as lm_head", ["head"]), ("names of torch.compile", ["compiled"]), ("a file with config.json beside it", ["half/model.fp16.safetensors"]),
                            ("without prefix, with lm_head and masks", ["plain"]), ("a folder by its file", ["plain/model.safetensors"]), ("no config.json, --heads", ["bare", "--heads", str(NH)]),
                            ("shards", ["sharded"]), ("shards by their index", ["sharded/model.safetensors.index.json"])):
        code, out = tool(["import", arguments[0], "variation.bin"] + arguments[1:])
        c.check(code == 0 and content(place("variation.bin")) == want, f"import: {name}", out)
    put(place("tokenizer/vocab.json"), "{}")
    put(place("tokenizer/merges.txt"), "#version: 0.2\n")
    code, out = tool(["export", "variation.bin", "with_tokenizer", "--tokenizer-from", "tokenizer"])
    c.check(code == 0 and sorted(os.listdir(place("with_tokenizer"))) == ["config.json", "merges.txt", "model.safetensors", "vocab.json"], "export with a tokenizer", out)
    dirty = bytearray(want)
    dirty[1024 + V * C * 4 + 5] = 1
    put(place("dirty.bin"), bytes(dirty))
    code, out = tool(["export", "dirty.bin", "cut"])
    c.check(code == 0 and f"rows {V} to 255" in out, "export notes that padding was not zero", out)


# ---------------------------------------------------------------------------- what is refused

def check_refusals():
    model = make_model("F32", seed=3)
    whole = safetensors(model, "F32")
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])

    def edited(change):
        h = json.loads(json.dumps(header))
        change(h)
        text = json.dumps(h).encode()
        return struct.pack("<Q", len(text)) + text + whole[8 + length:]
    put_model("good", whole)
    code, out = tool(["import", "good", "good.bin"])
    c.check(code == 0, "the model that all of these spoil", out)
    good = content(place("good.bin"))
    wte = struct.pack(f"<{V * C}I", *model["wte.weight"])
    first = "transformer.h.0.attn.c_attn.bias"
    shape = {name: {"shape": value["shape"][::-1]} for name, value in header.items() if name.endswith("c_fc.weight")}
    spoiled = [  # what, the file, what config.json says otherwise, words of the message
        ("cut", whole[:-5], {}, ["5 too few", "HINT"]),
        ("a byte more", whole + b"x", {}, ["1 too many"]),
        ("cut in its header", whole[:100], {}, ["is cut", "100 bytes"]),
        ("empty", b"", {}, ["not a safetensors file", "0 bytes"]),
        ("a PyTorch file", b"PK\3\4" + bytes(100), {}, ["PyTorch checkpoint", "safe_serialization"]),
        ("a git-lfs pointer", b"version https://git-lfs.github.com/spec/v1\n", {}, ["git-lfs"]),
        ("a .bin", good, {}, ["not a safetensors file"]),
        ("broken JSON", whole[:9] + b"}" + whole[10:], {}, ["header", "damaged"]),
        ("a name twice", struct.pack("<Q", 20) + b'{"a":[],"a":[]}     ', {}, ["twice"]),
        ("an entry without shape", edited(lambda h: h[first].pop("shape")), {}, [first, "damaged"]),
        ("a gap", edited(lambda h: h[first].update(data_offsets=[4, 388])), {}, ["begins at byte 4"]),
        ("offsets that do not fit the shape", edited(lambda h: h[first].update(shape=[95])), {}, [first, "384 bytes", "380"]),
        ("a tensor missing", safetensors(model, "F32", names=set(SHAPES) - {"h.1.ln_2.bias"}), {}, ["lacks tensor h.1.ln_2.bias", "HINT"]),
        ("wrong shape", edited(lambda h: [h[name].update(value) for name, value in shape.items()]), {}, ["h.0.mlp.c_fc.weight", f"[{4 * C}, {C}]", f"[{C}, {4 * C}]"]),
        ("another network", safetensors({}, "F32", extra=[("model.embed_tokens.weight", "F32", [1], bytes(4))]), {}, ["no GPT-2", "model.embed_tokens.weight"]),
        ("an unknown tensor", safetensors(model, "F32", extra=[("score.weight", "F32", [1], bytes(4))]), {}, ["score.weight"]),
        ("an untied head", safetensors(model, "F32", extra=[("lm_head.weight", "F32", [V, C], wte[:-4] + b"abcd")]), {}, ["lm_head.weight", "tied"]),
        ("a head of another type", safetensors(model, "F32", extra=[("lm_head.weight", "BF16", [V, C], wte[:2 * V * C])]), {}, ["lm_head.weight is of type BF16, wte.weight of F32"]),
        ("a head without embedding of positions", safetensors(model, "F32", names={"h.0.ln_1.weight"}, extra=[("lm_head.weight", "F32", [V, C], wte)]), {}, ["lacks tensor wte.weight"]),
        ("a billion layers", safetensors(model, "F32", extra=[("h.999999999.x.y", "F32", [1], bytes(4))]), {}, ["layer 999999999", "4096 layers"]),
        ("a layer beyond all numbers", safetensors(model, "F32", extra=[("h." + "9" * 5000 + ".x", "F32", [1], bytes(4))]), {}, ["has no place"]),
        ("a layer in raised digits", safetensors(model, "F32", extra=[("h.\u00b2.x.y", "F32", [1], bytes(4))]), {}, ["has no place"]),
        ("a truth for heads", whole, {"n_head": True}, ["n_head is true"]),
        ("a text for heads", whole, {"n_head": "4"}, ['n_head is "4"']),
        ("no heads", whole, {"n_head": 0}, ["n_head is 0"]),
        ("a fraction of layers", whole, {"n_layer": 2.0}, ["n_layer is 2.0"]),
        ("a text for the width", whole, {"n_embd": "32", "n_inner": 128}, ['n_embd is "32"']),
        ("a type that cannot be read", edited(lambda h: h["transformer.ln_f.weight"].update(dtype="F8_E4M3", shape=[4 * C])), {}, ["ln_f.weight"]),
        ("another model type", whole, {"model_type": "llama"}, ["llama", "GPT-2"]),
        ("another activation", whole, {"activation_function": "gelu"}, ["activation_function", "tanh"]),
        ("another epsilon", whole, {"layer_norm_epsilon": 1e-6}, ["layer_norm_epsilon"]),
        ("another inner width", whole, {"n_inner": 64}, ["n_inner"]),
        ("scores scaled by layer", whole, {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx"]),
        ("another depth in config.json", whole, {"n_layer": 3}, ["n_layer 3", "tensors say 2"]),
        ("heads that do not divide", whole, {"n_head": 5}, ["32 channels", "5 heads"]),
    ]
    for what, data, config, words in spoiled:
        put_model("bad", data, config)
        put(place("keep.bin"), b"old")
        refused(f"import of {what}", ["import", "bad", "keep.bin"], words)
        c.check(content(place("keep.bin")) == b"old", f"import of {what}", "the old file was touched")
    put(place("noconfig/model.safetensors"), whole)
    refused("no config.json", ["import", "noconfig", "keep.bin"], ["config.json", "--heads"])
    refused("--heads against config.json", ["import", "good", "keep.bin", "--heads", "8"], ["n_head 4"])
    put(place("badconfig/model.safetensors"), whole)
    put(place("badconfig/config.json"), "{")
    refused("a broken config.json", ["import", "badconfig", "keep.bin"], ["not readable JSON"])
    refused("nothing there", ["import", "nowhere", "keep.bin"], ["cannot open", "nowhere"])
    os.mkdir(place("empty"))
    refused("an empty folder", ["import", "empty", "keep.bin"], ["no model.safetensors"])
    put(place("torch/pytorch_model.bin"), b"PK\3\4")
    refused("a folder with a PyTorch file only", ["import", "torch", "keep.bin"], ["pytorch_model.bin", "safe_serialization"])
    put(place("lost/model.safetensors.index.json"), json.dumps({"weight_map": {"wte.weight": "../x.safetensors"}}))
    refused("an index that leaves its folder", ["import", "lost", "keep.bin"], ["weight_map"])
    put(place("lost/model.safetensors.index.json"), json.dumps({"weight_map": {"wte.weight": "x.safetensors"}}))
    refused("a shard that is not there", ["import", "lost", "keep.bin"], ["x.safetensors"])
    refused("no such folder to write into", ["import", "good", "none/x.bin"], ["cannot write"])
    for what, data, words in (("a cut .bin", good[:-3], ["3 too few"]), ("a .bin with a byte more", good + b"x", ["1 too many"]), ("a safetensors file", whole, ["import reads those"]),
                              ("version 2", good[:4] + b"\2" + good[5:], ["version 2"]), ("no heads", good[:20] + bytes(4) + good[24:], ["impossible"]), ("empty", b"", ["0 bytes"])):
        put(place("bad.bin"), data)
        refused(f"export of {what}", ["export", "bad.bin", "keep"], words)
        c.check(not os.path.exists(place("keep/model.safetensors")), f"export of {what}", "something was written")
    refused("export with an empty tokenizer", ["export", "good.bin", "keep", "--tokenizer-from", "empty"], ["no tokenizer"])
    refused("export over a file", ["export", "good.bin", "good.bin"], ["cannot make the folder"])


def check_interruption():
    """Ctrl-C while the model is read: from a pipe, so that the moment is sure."""
    os.makedirs(place("pipe"))
    os.mkfifo(place("pipe/model.safetensors"))
    put(place("keep.bin"), b"old")
    process = subprocess.Popen([sys.executable, TOOL, "import", "pipe", "keep.bin"], cwd=tmp, env=PYTHONS["without numpy"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=lambda: (signal.signal(signal.SIGINT, signal.SIG_DFL), signal.alarm(30)))
    with open(place("pipe/model.safetensors"), "wb"):  # waits for the reader
        process.send_signal(signal.SIGINT)
        out = process.communicate()[0]
    c.check(process.returncode == 1 and out == "ERROR: interrupted\nHINT:  the same command begins again\n" and content(place("keep.bin")) == b"old", "Ctrl-C", out)


def refused(name, arguments, words):
    code, out = tool(arguments)
    lines = out.strip().splitlines()
    c.check(code == 1 and len(lines) == 2 and lines[0].startswith("ERROR: ") and lines[1].startswith("HINT:") and all(w in out for w in words), name, f"exit {code}: {out}")


# ---------------------------------------------------------------------------- other people's libraries

def check_safetensors_library():
    if not have["safetensors"]:
        c.skip("safetensors reads the export and writes what import reads", "no safetensors library here")
        return
    from safetensors import deserialize
    for dtype in ("F32", "BF16"):
        model = make_model(dtype, seed=4)
        put_model("theirs", safetensors(model, dtype))
        code, out = tool(["import", "theirs", "theirs.bin"])
        code, out = tool(["export", "theirs.bin", "ours"]) if code == 0 else (code, out)
        c.check(code == 0, f"safetensors library, {dtype}", out)
        found = {name: (value["shape"], bytes(value["data"])) for name, value in deserialize(content(place("ours/model.safetensors")))}
        want = {"transformer." + name: (SHAPES[name], struct.pack(f"<{len(v)}{FORMAT[dtype]}", *v)) for name, v in model.items()}
        c.check(found == want, f"the safetensors library reads our {dtype} file", "other tensors")
        if dtype == "F32" and have["numpy"]:  # numpy knows no BF16
            import numpy
            from safetensors.numpy import save
            put(place("theirs/model.safetensors"), save({n: numpy.frombuffer(d, "<f4").reshape(s) for n, (s, d) in want.items()}, {"format": "pt"}))
            code, out = tool(["import", "theirs", "again.bin"])
            c.check(code == 0 and content(place("again.bin")) == content(place("theirs.bin")), "import of the safetensors library's file", out)


def check_transformers():
    """The loss of transformers' GPT-2 on the exported weights, in float32 and float64, against what this program validates with the same weights."""
    if not (have["torch"] and have["transformers"]):
        c.skip("transformers loads the export and has this program's loss", "no torch or no transformers here")
        return
    import torch
    import transformers
    put_model("fresh", safetensors(make_model("F32", seed=5, special=False), "F32"))
    code, out = tool(["import", "fresh", "fresh.bin"])
    code, out = tool(["export", "fresh.bin", "loadable"]) if code == 0 else (code, out)
    c.check(code == 0, "a model for transformers", out)
    model, report = transformers.GPT2LMHeadModel.from_pretrained(place("loadable"), output_loading_info=True)
    c.check(not report["unexpected_keys"] and not report["mismatched_keys"] and not [k for k in report["missing_keys"] if not k.endswith((".attn.bias", ".attn.masked_bias"))],
            "transformers loads every tensor", str(report))
    model.eval()
    B = 4
    r = random.Random(6)
    tokens = [r.randrange(V) for _ in range(4 * B * T + 1)]
    put(place("tokens.bin"), struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))
    x, y = torch.tensor(tokens[:-1]).view(-1, T), torch.tensor(tokens[1:]).view(-1, T)

    def loss():
        with torch.no_grad():
            logits = model(x).logits
            return torch.nn.functional.cross_entropy(logits.view(-1, V).double(), y.view(-1)).item()
    single = loss()
    model.double()
    double = loss()
    code, out = run(f"make -s train_gpt_fp8_cpu && cd '{tmp}' && '{ROOT}/train_gpt_fp8_cpu' -i tokens.bin -j tokens.bin -e fresh.bin -b {B} -t {T} -x 0 -m -1 -s 0 --dtype float32")
    found = re.search(r"val loss ([0-9.]+)", out)
    c.check(code == 0 and found, "the program validates the imported model", out[-1000:])
    if not found:
        return
    ours, bound = float(found.group(1)), 2 * max(abs(single - double), 0.5e-6)  # twice float32's own error, or what the printed digits hold
    print(f"loss on {len(tokens) - 1} tokens: transformers {single:.9f} (float32), {double:.9f} (float64); this program {ours:.6f}")
    c.check(abs(ours - double) <= bound, "this program's loss is that of transformers", f"{ours} against {double:.9f}, bound {bound:.2g}")


check_round_trips()
check_variations()
check_refusals()
check_interruption()
check_safetensors_library()
check_transformers()
c.end()
