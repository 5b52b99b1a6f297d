#!/usr/bin/env python3
"""hf_gpt2.py - GPT-2 checkpoints between HuggingFace (safetensors) and this program (llm.c's .bin)

    python3 dev/eval/hf_gpt2.py import MODEL out.bin [--dtype float32|bfloat16] [--heads N]
    python3 dev/eval/hf_gpt2.py export in.bin FOLDER [--tokenizer-from FOLDER]

MODEL is a folder (config.json with model.safetensors, or with model.safetensors.index.json and its shards), or one .safetensors file.
export writes model.safetensors and config.json, with which transformers.GPT2LMHeadModel.from_pretrained(FOLDER) loads the model.

Tensors    {"transformer." or nothing}wte.weight, wpe.weight, h.N.ln_1.weight ... ln_f.bias; torch.compile's "_orig_mod." is skipped. HuggingFace stores the
           four matrices of a block (in, out), the .bin (out, in): transposed. lm_head.weight is tied: it must equal wte, or stands for it where the file
           has it under this name only. Buffers h.N.attn.bias and .masked_bias say nothing and are skipped.
Vocabulary the .bin has rows of zeros up to a multiple of 128; export cuts them.
Types      import: as stored (F32 and F16 become float32, BF16 bfloat16), or --dtype: to bfloat16 by rounding to nearest, ties to even, NaN stays NaN.
           export: float32 (version 3) as F32, bfloat16 (version 5) as BF16. So import and export undo each other, to the last bit.
Safetensors  8 bytes: length of the header; header: JSON, {name: {dtype, shape, data_offsets [begin, end)}}; then the tensors without gaps. Little-endian.
Files are written as NAME.part and renamed when whole. Standard library only; numpy, where there is one, is faster and gives the same bytes.
Tests: dev/check_hf.py
"""
import argparse
import array
import functools
import json
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "data"))
from common import DISK_HINT, Progress, Refusal, file_size, read_json, run_maker, say, shown, whole_number, write_file  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

MODEL_MAGIC, HEADER_BYTES = 20240326, 1024
VERSIONS = {3: "F32", 5: "BF16"}
DTYPES = {"float32": "F32", "bfloat16": "BF16"}
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
PADDING = 128               # the vocabulary is padded to a multiple of this
PIECE = 1 << 22             # elements converted at a time where no transposition needs the whole tensor
MAX_LAYERS = 4096           # more is damage
MAX_JSON_BYTES = 100 << 20  # of a safetensors header; the format's own limit
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # names of the one GELU that this program computes
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


class Config:
    """The dimensions of a model, by the names of the .bin's header."""
    def __init__(self, max_seq_len, vocab_size, num_layers, num_heads, channels, padded_vocab_size):
        self.max_seq_len, self.vocab_size, self.num_layers = max_seq_len, vocab_size, num_layers
        self.num_heads, self.channels, self.padded_vocab_size = num_heads, channels, padded_vocab_size

    def __str__(self):
        return f"L {self.num_layers}, NH {self.num_heads}, C {self.channels}, T {self.max_seq_len}, V {self.vocab_size} (padded to {self.padded_vocab_size})"


def param_table(c):
    """The tensors of the .bin in their order: name in HuggingFace's terms ({} is the layer), shape (out, in) of one layer, per layer?, transposed there?"""
    n = c.channels
    return [("wte.weight", (c.vocab_size, n), False, False), ("wpe.weight", (c.max_seq_len, n), False, False),
            ("h.{}.ln_1.weight", (n,), True, False), ("h.{}.ln_1.bias", (n,), True, False),
            ("h.{}.attn.c_attn.weight", (3 * n, n), True, True), ("h.{}.attn.c_attn.bias", (3 * n,), True, False),
            ("h.{}.attn.c_proj.weight", (n, n), True, True), ("h.{}.attn.c_proj.bias", (n,), True, False),
            ("h.{}.ln_2.weight", (n,), True, False), ("h.{}.ln_2.bias", (n,), True, False),
            ("h.{}.mlp.c_fc.weight", (4 * n, n), True, True), ("h.{}.mlp.c_fc.bias", (4 * n,), True, False),
            ("h.{}.mlp.c_proj.weight", (n, 4 * n), True, True), ("h.{}.mlp.c_proj.bias", (n,), True, False),
            ("ln_f.weight", (n,), False, False), ("ln_f.bias", (n,), False, False)]


def tensors(c):
    """(name, shape (out, in), transposed in HuggingFace's?) of every tensor, in the .bin's order."""
    for name, shape, per_layer, transposed in param_table(c):
        for layer in range(c.num_layers if per_layer else 1):
            yield name.format(layer), shape, transposed


def count(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


# ---------------------------------------------------------------------------- numbers: little-endian bytes to bytes

@functools.lru_cache(maxsize=None)
def f16_table():
    """The float32 bits of every F16: the same number, and NaN for NaN."""
    table = []
    for code in range(1 << 16):
        sign, exponent, mantissa = (code >> 15) << 31, (code >> 10) & 31, code & 1023
        if exponent == 0:  # mantissa * 2^-24
            high = mantissa.bit_length() - 1
            bits = 0 if mantissa == 0 else (high + 103) << 23 | (mantissa << (23 - high)) & 0x7fffff
        else:
            bits = (255 if exponent == 31 else exponent + 112) << 23 | mantissa << 13
        table.append(sign | bits)
    return table


def f16_to_f32(data):
    table = f16_table()
    if numpy:
        return numpy.array(table, dtype="<u4")[numpy.frombuffer(data, "<u2")].tobytes()
    n = len(data) // 2
    return struct.pack(f"<{n}I", *[table[code] for code in struct.unpack(f"<{n}H", data)])


def bf16_to_f32(data):
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def f32_to_bf16(data):
    """Nearest, ties to even; a NaN keeps its sign and leading bits and becomes quiet."""
    if numpy:
        u = numpy.frombuffer(data, "<u4").astype(numpy.uint64)
        nan = (u & 0x7fffffff) > 0x7f800000
        return numpy.where(nan, u >> 16 | 0x40, (u + 0x7fff + (u >> 16 & 1)) >> 16).astype("<u2").tobytes()
    n = len(data) // 4
    return struct.pack(f"<{n}H", *[(u + 0x7fff + (u >> 16 & 1)) >> 16 if u & 0x7fffffff <= 0x7f800000 else u >> 16 | 0x40 for u in struct.unpack(f"<{n}I", data)])


def convert(data, source, target):
    if source == target:
        return data
    if source == "F16":
        data = f16_to_f32(data)
    elif source == "BF16":
        return bf16_to_f32(data)
    return data if target == "F32" else f32_to_bf16(data)


def transpose(data, rows, cols, item_bytes):
    """(rows, cols) row-major to (cols, rows)."""
    if numpy:
        return numpy.ascontiguousarray(numpy.frombuffer(data, f"<u{item_bytes}").reshape(rows, cols).T).tobytes()
    a = array.array({2: "H", 4: "I"}[item_bytes], data)  # moved, never read: the byte order does not matter
    out = array.array(a.typecode, bytes(len(data)))
    for j in range(cols):
        out[j * rows:(j + 1) * rows] = a[j::cols]
    return out.tobytes()


# ---------------------------------------------------------------------------- reading safetensors

def open_file(path, hint):
    try:
        return open(path, "rb")
    except OSError as error:
        raise Refusal(f"cannot open '{shown(path)}': {error.strerror}", hint)


def unique_keys(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


class Shard:
    """One safetensors file: names with dtype, shape and place, checked against the format and the file's size. Holds the file open."""
    def __init__(self, path):
        self.path = path
        self.file = open_file(path, "name a folder with config.json and model.safetensors, or a .safetensors file")
        size, head = file_size(path), self.file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if head[:4] == b"PK\3\4" or head[:2] == b"\x80\x02":
            raise Refusal(f"'{shown(path)}' is a PyTorch checkpoint, not a safetensors file", "save it with model.save_pretrained(FOLDER, safe_serialization=True)")
        if head[:4] == b"vers":
            raise Refusal(f"'{shown(path)}' is a git-lfs pointer, not the file it points to", "git lfs pull fetches the file itself")
        if len(head) < 8 or length > MAX_JSON_BYTES or self.file.read(1) != b"{":
            raise Refusal(f"'{shown(path)}' ({size:,} bytes) is not a safetensors file", "name a folder with config.json and model.safetensors, or a .safetensors file")
        if 8 + length > size:
            raise Refusal(f"'{shown(path)}' is cut: {size:,} bytes, its header alone needs {8 + length:,}", "copy or download it again")
        self.file.seek(8)
        try:
            header = json.loads(self.file.read(length).decode("utf-8"), object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"the header of '{shown(path)}' is damaged: {error}", "copy or download it again")
        header.pop("__metadata__", None)
        self.begin, end = 8 + length, 0
        self.tensors = {}
        for name, (dtype, shape, begin, tensor_end) in sorted(((name, self.entry(name, value)) for name, value in header.items()), key=lambda item: item[1][2:]):
            if begin != end or tensor_end < begin:
                raise Refusal(f"'{shown(path)}': tensor {name} begins at byte {begin} of the data, the one before ends at {end}", "the file is damaged: copy or download it again")
            end = tensor_end
            self.tensors[name] = (dtype, shape, begin)
        if self.begin + end != size:
            raise Refusal(f"'{shown(path)}' has {size:,} bytes, {abs(self.begin + end - size):,} too {'few' if size < self.begin + end else 'many'}: its header says {self.begin + end:,}",
                          "copy or download it again")

    def entry(self, name, value):
        try:
            dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
            if not all(type(x) is int and x >= 0 for x in shape + (begin, end)) or not isinstance(dtype, str):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise Refusal(f"'{shown(self.path)}': the entry of tensor {name} is damaged", "copy or download it again")
        if dtype in ITEM_BYTES and end - begin != count(shape) * ITEM_BYTES[dtype]:
            raise Refusal(f"'{shown(self.path)}': tensor {name} has {end - begin:,} bytes, {dtype} of shape {list(shape)} needs {count(shape) * ITEM_BYTES[dtype]:,}",
                          "the file is damaged: copy or download it again")
        return dtype, shape, begin, end


class Checkpoint:
    """A model in safetensors files: for each tensor (by the name in param_table) its shard, dtype, shape and place."""
    def __init__(self, path):
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        self.path, self.folder, self.tensors = path, folder, {}
        index = os.path.join(folder, "model.safetensors.index.json")
        single = path if not os.path.isdir(path) else os.path.join(folder, "model.safetensors")
        if path.endswith(".index.json") or (os.path.isdir(path) and not os.path.exists(single) and os.path.exists(index)):
            index = path if path.endswith(".index.json") else index
            places = (read_json(index) or {}).get("weight_map")
            if not isinstance(places, dict) or not places or not all(isinstance(name, str) and name == os.path.basename(name) for name in places.values()):
                raise Refusal(f"'{shown(index)}' has no readable weight_map", "copy or download it again")
            shards = {name: Shard(os.path.join(folder, name)) for name in sorted(set(places.values()))}
            for tensor, name in places.items():
                if tensor not in shards[name].tensors:
                    raise Refusal(f"'{shown(index)}' says that {tensor} is in {name}, which lacks it", "the shards are not of one checkpoint: download it again")
        elif os.path.exists(single) or not os.path.isdir(path):
            shards = {os.path.basename(single): Shard(single)}
        else:
            other = [name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5") if os.path.exists(os.path.join(folder, name))]
            named = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
            raise Refusal(f"'{shown(folder)}' holds no model.safetensors" + (f", only {', '.join((named or other)[:3])}" if named or other else ""),
                          f"name the file: {shown(os.path.join(folder, named[0]))}" if named else
                          "save the model with model.save_pretrained(FOLDER, safe_serialization=True)" if other else "name a folder with config.json and model.safetensors")
        for shard in shards.values():
            for name, (dtype, shape, begin) in shard.tensors.items():
                short = name.replace("_orig_mod.", "")
                short = short[len("transformer."):] if short.startswith("transformer.") else short
                if short in self.tensors:
                    raise Refusal(f"tensor {short} occurs twice in '{shown(path)}'", "the files are not of one checkpoint: download it again")
                self.tensors[short] = (shard, dtype, shape, begin)
        if "wte.weight" not in self.tensors and "wpe.weight" in self.tensors and "lm_head.weight" in self.tensors:
            self.tensors["wte.weight"] = self.tensors.pop("lm_head.weight")

    def shape(self, name):
        if name not in self.tensors:
            some = any(known in self.tensors for known in ("wte.weight", "wpe.weight", "ln_f.weight", "h.0.ln_1.weight"))
            if some:
                raise Refusal(f"'{shown(self.path)}' lacks tensor {name}", "the checkpoint is not complete: name its folder rather than one of its files, or download it again")
            raise Refusal(f"'{shown(self.path)}' holds no GPT-2: its {len(self.tensors)} tensors are {', '.join(sorted(self.tensors)[:3])} ...", "only GPT-2 models can be imported")
        return self.tensors[name][2]

    def read(self, name, first=0, elements=None):
        """Bytes of a tensor's elements from first on, all if not said."""
        shard, dtype, shape, begin = self.tensors[name]
        elements = count(shape) if elements is None else elements
        shard.file.seek(shard.begin + begin + first * ITEM_BYTES[dtype])
        data = shard.file.read(elements * ITEM_BYTES[dtype])
        if len(data) != elements * ITEM_BYTES[dtype]:
            raise Refusal(f"'{shown(shard.path)}' became shorter while it was read", "nothing may write there meanwhile")
        return data


def check_config_json(config, path):
    """Refuses a config.json of a network that is not the one that this program computes."""
    def refuse(key, wanted):
        raise Refusal(f"'{shown(path)}': {key} is {json.dumps(config.get(key))}; this program has {wanted}", "this model cannot be imported")
    for key in ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"):
        if key in config and (type(config[key]) is not int or config[key] < 1):
            raise Refusal(f"'{shown(path)}': {key} is {json.dumps(config[key])}, not a whole number above 0", "the file is damaged: copy or download it again")
    if config.get("model_type", "gpt2") != "gpt2":
        raise Refusal(f"'{shown(path)}' is of a {config['model_type']}, not of a GPT-2", "only GPT-2 models can be imported")
    if config.get("activation_function", "gelu_new") not in TANH_GELU:
        refuse("activation_function", "GELU in its tanh form (gelu_new)")
    if config.get("layer_norm_epsilon", 1e-5) != 1e-5:
        refuse("layer_norm_epsilon", "1e-05")
    if config.get("n_inner") not in (None, 4 * config.get("n_embd", 768)):
        refuse("n_inner", "4 * n_embd")
    for key, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False)):
        if config.get(key, value) != value:
            refuse(key, json.dumps(value))


def checkpoint_config(checkpoint, heads):
    """The model's dimensions: from its tensors, the number of heads from config.json (or from --heads). What config.json says must agree."""
    path = os.path.join(checkpoint.folder, "config.json")
    config = read_json(path)
    if config is None and os.path.exists(path):
        raise Refusal(f"'{shown(path)}' is not readable JSON", "copy or download it again")
    if config:
        check_config_json(config, path)
    layers = 1 + max([int(found[1]) for found in (re.match(r"h\.([0-9]{1,18})\.", name) for name in checkpoint.tensors) if found], default=-1)
    if layers > MAX_LAYERS:
        raise Refusal(f"'{shown(checkpoint.path)}' has a tensor of layer {layers - 1}; {MAX_LAYERS} layers are possible", "only GPT-2 models can be imported")
    wte, wpe = checkpoint.shape("wte.weight"), checkpoint.shape("wpe.weight")
    checkpoint.shape("h.0.attn.c_attn.weight")
    if len(wte) != 2 or len(wpe) != 2 or wte[1] != wpe[1] or 0 in wte + wpe:
        raise Refusal(f"wte.weight has shape {list(wte)}, wpe.weight {list(wpe)}: not a GPT-2", "only GPT-2 models can be imported")
    found = {"n_layer": layers, "n_embd": wte[1], "n_positions": wpe[0], "vocab_size": wte[0]}
    for key, value in found.items():
        if config and config.get(key, value) != value:
            raise Refusal(f"'{shown(path)}' says {key} {config[key]}, the tensors say {value}", "config.json and weights are not of one model")
    stated = (config or {}).get("n_head", 12 if config else None)  # 12: what a GPT-2 configuration leaves out
    if heads is None and stated is None:
        raise Refusal(f"'{shown(checkpoint.folder)}' has no config.json, and the weights do not tell the number of heads", "put config.json there, or say it: --heads N (GPT-2: channels / 64)")
    if heads is not None and stated is not None and heads != stated:
        raise Refusal(f"--heads {heads} contradicts '{shown(path)}', which says n_head {stated}", "leave --heads out")
    heads = stated if heads is None else heads
    if wte[1] % heads:
        raise Refusal(f"{wte[1]} channels cannot be divided among {heads} heads", "config.json and weights are not of one model")
    return Config(wpe[0], wte[0], layers, heads, wte[1], -(-wte[0] // PADDING) * PADDING)


def ignored(name):
    """Buffers of old checkpoints: the causal mask, and what is added where it hides."""
    return name.startswith("h.") and (name.endswith(".attn.bias") or name.endswith(".attn.masked_bias"))


def check_tensors(checkpoint, c):
    """Every tensor that a model of these dimensions has, in its shape, and no other."""
    wanted = {name: shape[::-1] if transposed else shape for name, shape, transposed in tensors(c)}
    for name, shape in wanted.items():
        if checkpoint.shape(name) != shape:
            raise Refusal(f"tensor {name} has shape {list(checkpoint.shape(name))}, a model with {c} needs {list(shape)}", "the model is not a GPT-2, or the file is damaged")
        if checkpoint.tensors[name][1] not in ITEM_BYTES:
            raise Refusal(f"tensor {name} is of type {checkpoint.tensors[name][1]}; {', '.join(ITEM_BYTES)} can be read", "save the model in one of these types")
    for name in sorted(checkpoint.tensors):
        if name not in wanted and name != "lm_head.weight" and not ignored(name):
            raise Refusal(f"tensor {name} has no place in a GPT-2 language model", "only GPT-2 models without additions can be imported")
    if "lm_head.weight" in checkpoint.tensors:
        kinds = [checkpoint.tensors[name][1] for name in ("lm_head.weight", "wte.weight")]
        if kinds[0] != kinds[1]:
            raise Refusal(f"lm_head.weight is of type {kinds[0]}, wte.weight of {kinds[1]}: whether they are tied cannot be told", "save the model in one type")
        same = checkpoint.tensors["lm_head.weight"][1:3] == checkpoint.tensors["wte.weight"][1:3]
        for first in range(0, count(wanted["wte.weight"]) if same else 0, PIECE):
            n = min(PIECE, count(wanted["wte.weight"]) - first)
            same = same and checkpoint.read("lm_head.weight", first, n) == checkpoint.read("wte.weight", first, n)
        if not same:
            raise Refusal("lm_head.weight is not wte.weight: its output layer is not tied with the token embedding", "such a model cannot be imported")


# ---------------------------------------------------------------------------- import

def write_here(path, pieces):
    try:
        write_file(path, pieces)
    except Refusal as refusal:
        hint = refusal.hint if refusal.hint != DISK_HINT else "check the path and its permissions, free some space, or choose another place; an older file of that name is intact"
        raise Refusal(str(refusal), hint)


def with_progress(name, pieces, total):
    progress, done = Progress(name, "MB"), 0
    for piece in pieces:
        yield piece
        done += len(piece)
        progress.show(done, done / total)
    progress.end()


def model_pieces(checkpoint, c, dtype):
    """The .bin's bytes after its header."""
    for name, shape, transposed in tensors(c):
        source = checkpoint.tensors[name][1]
        if transposed:
            yield transpose(convert(checkpoint.read(name), source, dtype), shape[1], shape[0], ITEM_BYTES[dtype])
        else:
            for first in range(0, count(shape), PIECE):
                yield convert(checkpoint.read(name, first, min(PIECE, count(shape) - first)), source, dtype)
        if name == "wte.weight":
            yield bytes((c.padded_vocab_size - c.vocab_size) * c.channels * ITEM_BYTES[dtype])


def model_elements(c):
    return sum(count(shape) for _, shape, _ in tensors(c)) + (c.padded_vocab_size - c.vocab_size) * c.channels


def import_model(arguments):
    checkpoint = Checkpoint(arguments.model)
    c = checkpoint_config(checkpoint, arguments.heads)
    check_tensors(checkpoint, c)
    stored = {checkpoint.tensors[name][1] for name, _, _ in tensors(c)}
    dtype = DTYPES[arguments.dtype] if arguments.dtype else "BF16" if stored == {"BF16"} else "F32"
    version = {"F32": 3, "BF16": 5}[dtype]
    header = struct.pack("<256i", MODEL_MAGIC, version, c.max_seq_len, c.vocab_size, c.num_layers, c.num_heads, c.channels, c.padded_vocab_size, *[0] * 248)
    total = model_elements(c) * ITEM_BYTES[dtype]

    def pieces():
        yield header
        yield from with_progress("import", model_pieces(checkpoint, c, dtype), total)
    write_here(arguments.out, pieces())
    say(f"wrote {shown(arguments.out)}: {c}; {'/'.join(sorted(stored))} as {'float32' if dtype == 'F32' else 'bfloat16'}, {file_size(arguments.out):,} bytes")


# ---------------------------------------------------------------------------- export

def read_model_header(path):
    """Config and dtype of a .bin, its size checked; the open file."""
    file = open_file(path, "name a model .bin in llm.c's format")
    head, size = file.read(HEADER_BYTES), file_size(path)
    words = struct.unpack("<8i", head[:32]) if len(head) >= 32 else (0,) * 8
    if words[0] != MODEL_MAGIC:
        what = "a safetensors file (import reads those)" if head[8:9] == b"{" else "something else"
        raise Refusal(f"'{shown(path)}' ({size:,} bytes) is not a model file but {what}", f"name a model .bin in llm.c's format (magic {MODEL_MAGIC})")
    if words[1] not in VERSIONS:
        raise Refusal(f"'{shown(path)}' has version {words[1]}; 3 (float32) and 5 (bfloat16) can be read", "export it again with a newer llm.c")
    c = Config(words[2], words[3], words[4], words[5], words[6], words[7])
    if min(words[2:]) < 1 or c.padded_vocab_size < c.vocab_size or c.channels % c.num_heads or max(words[2:]) > 1 << 24 or c.num_layers > MAX_LAYERS:
        raise Refusal(f"'{shown(path)}' has impossible dimensions: {c}", "the file is damaged: copy it again")
    due = HEADER_BYTES + model_elements(c) * ITEM_BYTES[VERSIONS[words[1]]]
    if size != due:
        raise Refusal(f"'{shown(path)}' has {size:,} bytes, {abs(size - due):,} too {'few' if size < due else 'many'} for {c}", "copy it again")
    return file, c, VERSIONS[words[1]]


def safetensors_header(c, dtype):
    """The file's bytes before the tensors: order and names as transformers' save_pretrained writes them, the tied lm_head left out."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, transposed in tensors(c):
        end = offset + count(shape) * ITEM_BYTES[dtype]
        header["transformer." + name] = {"dtype": dtype, "shape": list(shape[::-1] if transposed else shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text, offset


def export_pieces(file, c, dtype, path):
    item = ITEM_BYTES[dtype]

    def take(elements):
        data = file.read(elements * item)
        if len(data) != elements * item:
            raise Refusal(f"'{shown(path)}' became shorter while it was read", "nothing may write there meanwhile")
        return data
    for name, shape, transposed in tensors(c):
        if transposed:
            yield transpose(take(count(shape)), shape[0], shape[1], item)
        else:
            for first in range(0, count(shape), PIECE):
                yield take(min(PIECE, count(shape) - first))
        if name == "wte.weight" and any(take((c.padded_vocab_size - c.vocab_size) * c.channels)):
            say(f"note: rows {c.vocab_size} to {c.padded_vocab_size - 1} of wte, which pad the vocabulary, are not zero; they are cut, too")


def config_json(c, dtype):
    """What transformers needs to know. No dropout: the model was trained without. GPT-2's end of text is its last token."""
    end = c.vocab_size - 1 if c.vocab_size == 50257 else None
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_layer": c.num_layers, "n_head": c.num_heads,
            "n_embd": c.channels, "n_inner": None, "n_positions": c.max_seq_len, "n_ctx": c.max_seq_len, "vocab_size": c.vocab_size, "layer_norm_epsilon": 1e-05,
            "initializer_range": 0.02, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True, "bos_token_id": end, "eos_token_id": end,
            "torch_dtype": "float32" if dtype == "F32" else "bfloat16"}


def export_model(arguments):
    file, c, dtype = read_model_header(arguments.model)
    if c.padded_vocab_size != -(-c.vocab_size // PADDING) * PADDING:
        say(f"note: the vocabulary of {c.vocab_size} is padded to {c.padded_vocab_size}; import will pad it to a multiple of {PADDING}")
    given = []
    if arguments.tokenizer_from:
        given = [name for name in TOKENIZER_FILES if os.path.exists(os.path.join(arguments.tokenizer_from, name))]
        if not given:
            raise Refusal(f"'{shown(arguments.tokenizer_from)}' holds no tokenizer ({', '.join(TOKENIZER_FILES[:3])})", "name the folder of a HuggingFace GPT-2, or leave --tokenizer-from out")
    try:
        os.makedirs(arguments.folder, exist_ok=True)
    except OSError as error:
        raise Refusal(f"cannot make the folder '{shown(arguments.folder)}': {error.strerror}", "check the path and its permissions, or choose another folder")
    place = os.path.join(arguments.folder, "model.safetensors")
    config = os.path.join(arguments.folder, "config.json")
    if os.path.exists(config):
        os.remove(config)  # until the new weights are whole nothing loads old ones with a new description, or the other way round
    header, total = safetensors_header(c, dtype)

    def pieces():
        yield header
        yield from with_progress("export", export_pieces(file, c, dtype, arguments.model), total)
    write_here(place, pieces())
    for name in given:
        with open_file(os.path.join(arguments.tokenizer_from, name), "check its permissions") as source:
            write_here(os.path.join(arguments.folder, name), iter(lambda: source.read(1 << 20), b""))
    write_here(config, [(json.dumps(config_json(c, dtype), indent=1, sort_keys=True) + "\n").encode("ascii")])
    say(f"wrote {shown(place)}: {c}; {dtype}, {file_size(place):,} bytes; config.json" + "".join(", " + name for name in given))


# ---------------------------------------------------------------------------- command line

def parse_arguments(argv):
    parser = argparse.ArgumentParser(description="GPT-2 checkpoints between HuggingFace (safetensors) and this program (llm.c's .bin).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="import|export")
    reading = commands.add_parser("import", help="a HuggingFace GPT-2 becomes a .bin")
    reading.add_argument("model", metavar="MODEL", help="a folder with config.json and model.safetensors (or its index and shards), or a .safetensors file")
    reading.add_argument("out", metavar="out.bin", help="the file to write")
    reading.add_argument("--dtype", choices=sorted(DTYPES), help="type of the .bin (default: as stored; F16 becomes float32)")
    reading.add_argument("--heads", type=whole_number(1, 65536), metavar="N", help="number of attention heads, where there is no config.json")
    reading.set_defaults(run=import_model)
    writing = commands.add_parser("export", help="a .bin becomes a HuggingFace GPT-2")
    writing.add_argument("model", metavar="in.bin", help="the file to read")
    writing.add_argument("folder", metavar="FOLDER", help="folder for model.safetensors and config.json")
    writing.add_argument("--tokenizer-from", metavar="FOLDER", help="copy the tokenizer's files from this folder, too")
    writing.set_defaults(run=export_model)
    return parser.parse_args(argv)


if __name__ == "__main__":
    parsed = parse_arguments(sys.argv[1:])
    sys.exit(run_maker(parsed.run, parsed, after_interruption="the same command begins again"))
