#!/usr/bin/env python3
"""make_text.py - a small training set from plain text: token shards of bytes or of GPT-2's tokens, and the tokenizer's file

    python3 data/make_text.py                          fetches a public-domain corpus, or takes the machine's own text
    python3 data/make_text.py --text my.txt            takes your file
    python3 data/make_text.py --out data/mine --val-fraction 0.1
    python3 data/make_text.py --text my.txt --out data/mine --tokenizer gpt2

Writes into --out (default data/text):
    train.bin, val.bin   token shards (layout: llmc/dataloader.h), without end-of-text tokens: the text is taken as one
    tokenizer.bin        bytes: 256 tokens of one byte each, end-of-text token 0; or GPT-2's 50257 (layout: llmc/tokenizer.h)
    made.json            what they were made from; written last. A second run with the same arguments and text does nothing.

Validation is every k-th block of about 16 KB, cut between paragraphs, so that it is like the training text and shares nothing with it.
Line ends become \\n, NUL bytes are dropped, nothing else is changed. The same text always gives the same files.
Needs Python 3.8 and nothing else; for --tokenizer gpt2 also build/tokenize_text, which is made if need be. Exit code 0: made or up to date, 1: failed (message and hint),
2: wrong arguments. Resuming: data/common.py. Tests: dev/test/test_data.cu, dev/check_data.py
"""
import argparse
import functools
import glob
import gzip
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

import common
import tinyshakespeare
from common import Refusal, say
from download import fetch
from tokenizer import open_tokenizer

MAKER = "make_text 2"           # another number when the same text would give other files: then everyone's are made again
BLOCK_BYTES = 16384             # long enough to hold several sequences, short enough that a megabyte gives tens of blocks
MIN_BLOCK_BYTES = 1300          # a block holds the longest default sequence: 1024 tokens and a target
MIN_TEXT_BYTES = 32768          # 20 such blocks and some
MIN_PART_TOKENS = 1025
MAX_TEXT_BYTES = common.MAX_SHARD_TOKENS  # as bytes they must fit a shard
MACHINE_BYTES = 8 << 20         # of the machine's own text: about what the other sources have
MACHINE_MIN_BYTES = 200000      # less teaches nothing

class NotHere(Exception):
    """A source that is not available; the next one is tried."""


# ---------------------------------------------------------------------------------------------------------------------
# sources: each returns (description, list of documents as bytes) or raises NotHere

def run(command, cwd, timeout):
    """Runs a command; returns (worked, stdout as bytes, last line of its errors)."""
    try:
        environment = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
        done = subprocess.run(command, cwd=cwd, timeout=timeout, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return False, b"", "no answer within %d seconds" % timeout
    except OSError as error:
        return False, b"", str(error)
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.startswith("E:")]
    lines = lines or done.stderr.decode("utf-8", "replace").splitlines() or ["exit code %d" % done.returncode]
    return done.returncode == 0, done.stdout, lines[-1]


class Apt:
    """Downloads Debian packages into a folder and unpacks them there: no root, nothing is installed."""
    def __init__(self, folder):
        self.folder = folder
        self.options = ["-q", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10", "-o", "Acquire::Retries=1"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            self.options += ["-o", "APT::Sandbox::User=root"]  # the folder is ours alone: apt's own user could not write there
        self.broken = ""
        self.private_lists = False

    def unpack(self, packages):
        """Returns the folder that holds the packages' files."""
        for program in ("apt-get", "dpkg"):
            if not shutil.which(program):
                raise NotHere("there is no %s" % program)
        if self.broken:
            raise NotHere(self.broken)
        say("  downloading %s ..." % ", ".join(packages))
        worked, _, error = run(["apt-get"] + self.options + ["download"] + packages, self.folder, 120)
        unknown = any(words in error for words in ("Unable to locate", "Can't find a source", " 404 "))  # no lists, or lists of long ago
        if not worked and unknown and not self.private_lists:
            say("  apt's lists do not help (%s): updating a private copy of them ..." % error)
            self.use_private_lists()
            worked, _, error = run(["apt-get"] + self.options + ["download"] + packages, self.folder, 120)
        if not worked:
            if "Unable to locate" not in error:
                self.broken = "apt-get does not get through: %s" % error
            raise NotHere("apt-get download: %s" % error)
        root = os.path.join(self.folder, "root")
        for package in packages:
            files = glob.glob(os.path.join(self.folder, package + "_*.deb"))
            if not files:
                raise NotHere("apt-get brought no file of %s" % package)
            worked, _, error = run(["dpkg", "-x", files[0], root], self.folder, 60)
            if not worked:
                raise NotHere("dpkg -x: %s" % error)
        return root

    def use_private_lists(self):
        self.private_lists = True
        lists, cache = os.path.join(self.folder, "lists"), os.path.join(self.folder, "cache")
        os.makedirs(os.path.join(lists, "partial"))
        os.makedirs(os.path.join(cache, "archives", "partial"))
        self.options += ["-o", "Dir::State::Lists=" + lists, "-o", "Dir::Cache=" + cache]
        worked, _, error = run(["apt-get"] + self.options + ["update"], self.folder, 120)
        if not worked:
            self.broken = "apt-get update: %s" % error
            raise NotHere(self.broken)


def read_r_strings(data):
    """Lines of a serialized R character vector (XDR). Layout: "X\\n", version, writer, reader (i32 big-endian each), version 3: length and name of
    the encoding; then flags (low byte 16: strings), count, and for each string flags (low byte 9), length (-1: NA), bytes."""
    def number():
        nonlocal at
        at += 4
        return struct.unpack_from(">i", data, at - 4)[0]
    if data[:2] != b"X\n":
        raise ValueError("no XDR serialization")
    at = 2
    version, _, _ = number(), number(), number()
    if version == 3:
        length = number()
        at += length
    if number() & 0xff != 16:
        raise ValueError("no character vector")
    lines = []
    for _ in range(number()):
        if number() & 0xff != 9:
            raise ValueError("no string")
        length = number()
        lines.append(data[at:at + max(length, 0)])
        at += max(length, 0)
    return lines


def read_r_database(data):
    """All objects of an .rdb file, one after the other: u32 big-endian length when unpacked, zlib stream."""
    objects, at = [], 0
    while at < len(data):
        length = struct.unpack_from(">I", data, at)[0]
        stream = zlib.decompressobj()
        plain = stream.decompress(data[at + 4:])
        if len(plain) != length or not stream.eof:
            raise ValueError("object at byte %d is damaged" % at)
        objects.append(plain)
        at = len(data) - len(stream.unused_data)
    return objects


def source_austen(apt):
    inside = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    path = os.path.join("/", inside)
    if not os.path.exists(path):
        path = os.path.join(apt.unpack(["r-cran-janeaustenr"]), inside)
    try:
        with open(path, "rb") as file:
            novels = [b"\n".join(read_r_strings(item)) + b"\n" for item in read_r_database(file.read())]
    except (OSError, ValueError, zlib.error, struct.error) as error:
        raise NotHere("the package's data cannot be read: %s" % error)
    if not novels:
        raise NotHere("the package holds no novel")
    return "%d novels by Jane Austen (public domain; Debian's r-cran-janeaustenr)" % len(novels), sorted(novels)


def source_shakespeare(apt):
    try:
        path = fetch(tinyshakespeare.URL, os.path.join(apt.folder, "tiny_shakespeare.txt"), tinyshakespeare.SHA256)
    except Refusal as reason:
        raise NotHere(str(reason))
    with open(path, "rb") as file:
        return "tinyshakespeare (public domain)", [file.read()]


def source_bible(apt):
    program, options = shutil.which("bible"), []
    if not program:
        root = apt.unpack(["bible-kjv", "bible-kjv-text"])
        program, options = os.path.join(root, "usr/bin/bible"), ["-p", os.path.join(root, "usr/lib") + "/"]
    worked, output, error = run([program] + options + ["-f", "-l4000", "gen1:1-rev22:21"], None, 60)
    if not worked or len(output) < 4000000:
        raise NotHere("its reader gave %d bytes (%s)" % (len(output), error))
    chapters, last = [], None
    for line in output.splitlines():  # "Ge1:1 In the beginning ...": one line a verse
        reference, _, verse = line.partition(b" ")
        chapter = reference.partition(b":")[0]
        if chapter != last:
            chapters.append([])
            last = chapter
        chapters[-1].append(verse.strip())
    return "the King James Bible (public domain; Debian's bible-kjv-text)", [b"\n\n".join(b"\n".join(verses) for verses in chapters) + b"\n"]


def plain_from_roff(page):
    """The words of a manual page: macros and escapes go, text stays."""
    lines, skipping = [], False
    for line in page.splitlines():
        if skipping or line.startswith((".de", ".ig")):  # macro definitions and comments, up to ".."
            skipping = not line.startswith("..")
            continue
        if line.startswith((".", "'")):
            macro, _, rest = line[1:].strip().partition(" ")
            words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', rest)]
            if macro in ("SH", "SS", "PP", "P", "LP", "TP", "IP", "Sh", "Pp"):
                lines.append("")
            if macro in ("SH", "SS", "B", "I", "SB", "SM", "Sh"):
                lines.append(" ".join(words))
            elif macro in ("BR", "RB", "IR", "RI", "BI", "IB"):
                lines.append("".join(words))
            continue
        lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,%!:]|\\\".*", "", text)
    glyphs = {"aq": "'", "dq": '"', "lq": '"', "rq": '"', "em": "-", "en": "-", "bu": "*", "co": "(c)"}
    text = re.sub(r"\\\((..)|\\\[([^]]*)\]", lambda m: glyphs.get(m[1] or m[2], ""), text)
    text = text.replace("\\-", "-").replace("\\ ", " ").replace("\\~", " ").replace("\\e", "\\")
    return re.sub(r"\n{3,}", "\n\n", text)


def source_machine(_):
    """What lies about on any machine. The files of a kind are taken in the order of a hash of their names, so that no package with a thousand pages
    crowds out the others, and a third of the total at most: the same machine always gives the same text."""
    patterns = ["/usr/share/common-licenses/*", "/usr/share/man/man[1-8]/*", "/usr/share/doc/*/README*", "/usr/share/doc/*/NEWS*",
                "/usr/share/doc/*/*.txt*", "/usr/share/perl/*/pod/*.pod", "/usr/share/doc/*/copyright"]
    documents, seen, total = [], set(), 0
    try:
        from pydoc_data.topics import topics  # Python's language reference, wherever Python is
        documents = [topics[name].encode("utf-8") for name in sorted(topics)]
        total = sum(len(document) for document in documents)
    except ImportError:
        pass
    for pattern in patterns:
        before = total
        for path in sorted(glob.glob(pattern), key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()):
            if total >= MACHINE_BYTES or total - before >= MACHINE_BYTES // 3:
                break
            try:
                if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20:
                    continue
                with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                    text = file.read(4 << 20).decode("utf-8")
            except (OSError, EOFError, UnicodeDecodeError, zlib.error):
                continue
            if "/man/" in path:
                text = plain_from_roff(text)
            document = text.strip().encode("utf-8") + b"\n"
            digest = hashlib.sha256(document).digest()
            if len(document) < 500 or digest in seen:  # stubs, and the many copies of one licence
                continue
            seen.add(digest)
            documents.append(document)
            total += len(document)
    if total < MACHINE_MIN_BYTES:
        raise NotHere("it has only %d bytes of documentation, %d are needed" % (total, MACHINE_MIN_BYTES))
    say("  note: manual pages and licences make a dull model; a text of your own is better: --text FILE (with make: TEXT=FILE)")
    return "the documentation and licences found on this machine", documents


SOURCES = [
    ("austen", "the novels of Jane Austen", source_austen),
    ("shakespeare", "tinyshakespeare", source_shakespeare),
    ("bible", "the King James Bible", source_bible),
    ("machine", "this machine's own text", source_machine),
]


def find_text(wanted):
    """(description, text) of the wanted source, or with "auto" of the first that is available."""
    failures = []
    try:
        scratch = tempfile.TemporaryDirectory(prefix="make_text.")
    except OSError as error:
        raise Refusal("no temporary folder can be made: %s" % error, "name a writable one in TMPDIR, or give a text of your own: --text FILE")
    with scratch as folder:
        apt = Apt(folder)
        for name, title, source in SOURCES:
            if wanted not in ("auto", name):
                continue
            say("looking for %s" % title)
            try:
                description, documents = source(apt)
            except NotHere as reason:
                say("  not available: %s" % reason)
                failures.append("%s: %s" % (title, reason))
                continue
            return description, b"\n\n".join(documents)
    raise Refusal("no text to train on was found (%s)" % "; ".join(failures), "give a text file of your own: --text FILE (with make: TEXT=FILE)")


# ---------------------------------------------------------------------------------------------------------------------
# text

def read_text(path):
    hint = "give a plain text file, %d bytes or more" % MIN_TEXT_BYTES
    if os.path.isdir(path):
        raise Refusal("'%s' is a folder" % path, hint)
    if os.path.exists(path) and not os.path.isfile(path):
        raise Refusal("'%s' is not a regular file" % path, hint)
    try:
        size = os.path.getsize(path)
        if size > MAX_TEXT_BYTES:
            raise Refusal("'%s' has %d bytes; this maker takes at most %d" % (path, size, MAX_TEXT_BYTES), "take a part of it")
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise Refusal("cannot read '%s': %s" % (path, error.strerror), hint)
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Refusal("'%s' is UTF-16" % path, "convert it: iconv -f UTF-16 -t UTF-8 < FILE > NEW")
    if text[:2] == b"\x1f\x8b":
        raise Refusal("'%s' is compressed" % path, "unpack it: gunzip -k FILE")
    sample = text[:1 << 20]
    strange = len(sample) - len(sample.translate(None, bytes(set(range(32)) - set(b"\t\n\r\f"))))
    if strange > len(sample) // 20:
        raise Refusal("'%s' does not look like text: %d of its first %d bytes are control characters" % (path, strange, len(sample)), hint)
    return text


def normalize(text):
    if text.startswith(b"\xef\xbb\xbf"):
        text = text[3:]
    nuls = text.count(b"\0")
    if nuls:
        say("dropping %d NUL bytes" % nuls)
        text = text.replace(b"\0", b"")
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def cut_blocks(text, target):
    """Contiguous blocks of target bytes or a little more, cut after a paragraph, else after a line, else between characters."""
    blocks, start = [], 0
    while start < len(text):
        end = start + target
        if len(text) - end < target // 2:  # a short rest joins the last block
            end = len(text)
        else:
            paragraph = text.find(b"\n\n", end - 2, end + target)
            line = text.find(b"\n", end - 1, end + target)
            if paragraph >= 0:
                end = paragraph + 2
                while text[end:end + 1] == b"\n":
                    end += 1
            elif line >= 0:
                end = line + 1
            else:
                while end < len(text) and text[end] & 0xc0 == 0x80:  # inside a UTF-8 character
                    end += 1
        blocks.append(text[start:end])
        start = end
    return blocks


def require_tokens(name, count, unit):
    if count < MIN_PART_TOKENS:
        raise Refusal("only %d %s would be left for %s; %d are needed" % (count, unit, name, MIN_PART_TOKENS),
                      "give a longer text, or one with shorter lines and paragraphs, or another --val-fraction")


def split(text, val_fraction):
    """(training blocks, validation blocks)"""
    every = max(2, round(1 / val_fraction))
    target = min(BLOCK_BYTES, max(MIN_BLOCK_BYTES, len(text) // (every * 8)))  # eight blocks of validation or more, where the text allows
    blocks = cut_blocks(text, target)
    is_val = [i % every == every // 2 for i in range(len(blocks))]
    if not any(is_val):
        is_val[-1] = True
    train = [block for block, val in zip(blocks, is_val) if not val]
    val = [block for block, val in zip(blocks, is_val) if val]
    for name, part in (("training", train), ("validation", val)):
        require_tokens(name, sum(len(block) for block in part), "bytes")
    return train, val


# ---------------------------------------------------------------------------------------------------------------------
# files

def up_to_date(folder, request):
    """Another text, or a set that is not whole any more, is no reason to stop here: it is replaced. Another maker's set is."""
    try:
        return common.up_to_date(folder, request)
    except Refusal:
        old = common.read_made(folder) or common.read_progress(folder)
        if not str(old["request"].get("maker")).startswith(MAKER.split()[0]):
            raise
        return False


def write_shards(folder, request, parts, tokenizer, workers):
    """parts: [(file name, what it is for, blocks)]. Returns {file name: number of tokens}. Goes on with what an earlier run for the same text left."""
    stream = common.TokenStream(folder, request, lambda shard: (parts[shard][0], None) if shard < len(parts) else None)
    progress = common.Progress("tokenize", "M tokens")
    encoder = functools.partial(tokenizer.encode, eot=False)
    while stream.source < len(parts):
        _, purpose, blocks = parts[stream.source]
        done_before = sum(len(part[2]) for part in parts[:stream.source])
        total = sum(len(part[2]) for part in parts)
        common.tokenize(stream, stream.source, blocks[stream.document:], encoder, workers,
                        lambda done: progress.show(stream.total(), (done_before + done) / total))
        if stream.count:
            try:
                require_tokens(purpose, stream.count, "tokens")
            except Refusal:
                common.clear(folder)
                raise
            stream.end_shard()
        stream.next_source()
    progress.end()
    return stream.done


def make(arguments):
    request = {"maker": MAKER, "val_fraction": arguments.val_fraction, "source": arguments.source}
    if arguments.tokenizer != "bytes":
        request["tokenizer"] = arguments.tokenizer
    text = None
    if arguments.text:
        text = read_text(arguments.text)
        request["source"] = "file"
        request["sha256"] = hashlib.sha256(text).hexdigest()
    folder = common.Folder(arguments.out)
    if not arguments.force and up_to_date(folder, request):
        return
    tokenizer = open_tokenizer(arguments.tokenizer, folder)
    if text is None:
        description, text = find_text(arguments.source)
    else:
        description = os.path.basename(arguments.text)
    say("text: %s, %.2f MB" % (description, len(text) / 1e6))
    text = normalize(text)
    if len(text) < MIN_TEXT_BYTES:
        raise Refusal("the text has %d bytes; at least %d are needed" % (len(text), MIN_TEXT_BYTES),
                      "give a longer text; a megabyte or more is worth training on")
    if len(text) < 500000:
        say("note: this is a short text; a model will soon know it by heart")
    train, val = split(text, arguments.val_fraction)

    unfinished = dict(request, text=hashlib.sha256(text).hexdigest())
    if arguments.force or (common.read_progress(folder) or {}).get("request") != unfinished:
        common.clear(folder)
    common.remove(folder.file("made.json"))  # first to go, last to come: with it the files are whole
    parts = [("val.bin", "validation", val), ("train.bin", "training", train)]
    common.finish(folder, request, description, write_shards(folder, unfinished, parts, tokenizer, arguments.workers), tokenizer)


def fraction(text):
    value = float(text)
    if not 0.001 <= value <= 0.5:
        raise argparse.ArgumentTypeError("%s is not between 0.001 and 0.5" % text)
    return value


def main():
    parser = argparse.ArgumentParser(description="Makes token shards of plain text, and the tokenizer's file.")
    parser.add_argument("--text", metavar="FILE", help="plain text (UTF-8 or any other bytes); default: a public-domain corpus is fetched")
    parser.add_argument("--out", metavar="DIR", default="data/text", help="folder to write into (default: %(default)s)")
    parser.add_argument("--val-fraction", metavar="X", type=fraction, default=0.05,
                        help="part of the text kept for validation, 0.001 to 0.5, rounded to 1/k (default: %(default)s)")
    parser.add_argument("--source", choices=["auto"] + [name for name, _, _ in SOURCES], default="auto",
                        help="which corpus to fetch when no --text is given (default: the first of these that is available)")
    common.add_tokenizer_option(parser, "bytes")
    common.add_workers_option(parser)
    parser.add_argument("--force", action="store_true", help="make the files even if they are up to date")
    arguments = parser.parse_args()
    if arguments.text == "":
        parser.error("--text: the name is empty")
    return common.run_maker(make, arguments)


if __name__ == "__main__":
    sys.exit(main())
