"""tokenizer.py - the data makers' tokenizers: documents (bytes) to tokens (bytes of uint16, little-endian); and GPT-2's tokenizer file

A byte is a token, or GPT-2's byte-pair encoding, by this project's program build/tokenize_text. Its table is a tokenizer file (llmc/tokenizer.h), made once
from the published list of merges. Tests: dev/check_data.py, dev/test/test_tokenizer.cu
"""
import array
import hashlib
import itertools
import os
import struct
import subprocess
import tempfile

import common
from common import HEADER_BYTES, TOKENIZER_MAGIC, Refusal, say, shown, tokenizer_pieces
from download import fetch

ENCODER = os.path.join(os.path.dirname(common.HERE), "build", "tokenize_text")

# GPT-2's merges, from which its 50257 tokens follow; another address with the same content: environment variable GPT2_MERGES_URL
GPT2_MERGES_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_TOKENIZER_SHA256 = "6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13"  # of the tokenizer file, version 2
GPT2_VOCAB_SIZE, GPT2_EOT = 50257, 50256


class ByteTokenizer:
    """A token is a byte. NUL bytes are dropped: 0 is the end of text."""
    name, eot, tokens = "bytes", 0, [bytes([byte]) for byte in range(256)]

    def encode(self, documents, eot=True):
        """The tokens of all documents, each after an end-of-text token if eot."""
        text = b"".join((b"\0" if eot else b"") + document.replace(b"\0", b"") for document in documents)
        tokens = bytearray(2 * len(text))
        tokens[0::2] = text
        return bytes(tokens)


class Gpt2Tokenizer:
    """GPT-2's byte-pair encoding. Any bytes: what is not UTF-8 is encoded byte by byte. folder: the maker's, locked."""
    name, eot = "gpt2", GPT2_EOT

    def __init__(self, folder):
        make_encoder()
        self.path, self.tokens = gpt2_tokenizer_file(folder)

    def encode(self, documents, eot=True):
        """The same; may be called by several threads at a time."""
        tokens = b""
        for nul, group in itertools.groupby(documents, key=lambda document: b"\0" in document):  # one with NULs inside goes alone: others end with a NUL
            tokens += b"".join(self.run_encoder(document, "none") for document in group) if nul else self.run_encoder(b"\0".join(group) + b"\0", "nul")
        return tokens if eot else array.array("H", (token for token in array.array("H", tokens) if token != GPT2_EOT)).tobytes()

    def run_encoder(self, text, separator):
        with tempfile.TemporaryDirectory(prefix="tokenize.") as folder:
            shard = os.path.join(folder, "shard.bin")
            done = subprocess.run([ENCODER, "/dev/stdin", self.path, shard, separator], input=text, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if done.returncode:
                raise Refusal(f"the encoder program failed: {done.stderr.decode('utf-8', 'replace').strip() or done.returncode}",
                              f"rm {shown(ENCODER)} and run again: it is made anew")
            with open(shard, "rb") as file:
                return file.read()[HEADER_BYTES:]


def encode_each(tokenizer, documents):
    """A list: for each document its tokens as an array, without the end of text (which is in no document: see encode)."""
    tokens = array.array("H", tokenizer.encode(documents))
    ends = [at for at, token in enumerate(tokens) if token == tokenizer.eot] + [len(tokens)]
    return [tokens[a + 1:b] for a, b in zip(ends, ends[1:])]


def make_encoder():
    """Builds the encoder program if it is not there."""
    if os.access(ENCODER, os.X_OK):
        return
    root, target = os.path.dirname(os.path.dirname(ENCODER)), "build/tokenize_text"
    say(f"making the encoder program: make {target}")
    try:
        done = subprocess.run(["make", "-s", "-C", root, target], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"])[0]
    except OSError as error:
        reason = f"make: {error.strerror}"
    if not os.access(ENCODER, os.X_OK):
        raise Refusal(f"GPT-2's tokens need this project's encoder program, and it cannot be made: {reason}",
                      f"make -C '{shown(root)}' {target}   shows why (it needs make and g++, and to write there); or take a byte as a token: --tokenizer bytes")


def gpt2_tokens(merges):
    """The 50257 tokens in the order of their ids, from the text of the merges: the 256 bytes (printable ones first, as GPT-2 numbers them), then what each
    merge joins, then the end of text. A merge's two sides are written with a letter for each byte: byte b itself if printable, else chr(256 + n) for the n-th
    that is not."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(256 + n): byte for n, byte in enumerate(others)})
    tokens = [bytes([byte]) for byte in printable + others]
    try:
        for line in merges.decode("utf-8").split("\n")[1:]:  # the first line is a version
            if line:
                left, right = line.split(" ")
                tokens.append(bytes(letters[letter] for letter in left + right))
    except (ValueError, KeyError):
        raise Refusal("the merges of GPT-2 cannot be read", "remove gpt2_merges.txt and run again")
    return tokens + [b"<|endoftext|>"]


def read_tokenizer(path):
    """(tokens, end-of-text token) of a tokenizer file, or a Refusal."""
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 24)
    except OSError as error:
        raise Refusal(f"cannot read '{shown(path)}': {error.strerror}", "check its permissions, or remove it: it will be made again")
    tokens, at = [], HEADER_BYTES
    magic, version, count, eot = struct.unpack_from("<4I", data) if len(data) >= HEADER_BYTES else (0, 0, 0, 0)
    while magic == TOKENIZER_MAGIC and at < len(data):
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    if magic != TOKENIZER_MAGIC or version not in (1, 2) or at != len(data) or len(tokens) != count:
        raise Refusal(f"'{shown(path)}' is no whole tokenizer file", "remove it, it will be made again")
    return tokens, GPT2_EOT if version == 1 else eot


def gpt2_tokenizer_file(folder):
    """(path, tokens) of GPT-2's tokenizer file: one beside the makers, in the working directory or in the maker's folder, else one made from the merges."""
    name = "gpt2_tokenizer.bin"
    path = next((path for path in (common.beside(name), name, folder.file(name)) if os.path.exists(path)), None) or make_gpt2_tokenizer_file(folder, name)
    tokens, eot = read_tokenizer(path)
    if hashlib.sha256(b"".join(tokenizer_pieces(tokens, eot))).hexdigest() != GPT2_TOKENIZER_SHA256:
        raise Refusal(f"'{shown(path)}' does not hold GPT-2's {GPT2_VOCAB_SIZE} tokens (it has {len(tokens)})", "remove it, it will be made again")
    return path, tokens


def make_gpt2_tokenizer_file(folder, name):
    """Beside the makers, where others wait for it; in the maker's own folder if that is the same one, or nothing can be written there."""
    alone = not os.access(common.HERE, os.W_OK | os.X_OK) or os.path.samefile(common.HERE, folder.path)
    place = folder if alone else common.Folder(common.HERE, wait=True)
    path = place.file(name)
    if not os.path.exists(path):  # nobody made it while we waited
        merges = fetch(os.environ.get("GPT2_MERGES_URL") or GPT2_MERGES_URL, place.file("gpt2_merges.txt"), GPT2_MERGES_SHA256)
        with open(merges, "rb") as file:
            common.write_file(path, tokenizer_pieces(gpt2_tokens(file.read()), GPT2_EOT))
        common.remove(place.file("gpt2_merges.txt"))
    if place is not folder:
        place.unlock()
    return path


def open_tokenizer(name, folder):
    return ByteTokenizer() if name == "bytes" else Gpt2Tokenizer(folder)
