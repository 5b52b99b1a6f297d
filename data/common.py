"""common.py - what the data makers share: refusals, progress, files that appear whole, the notes of a folder, token shards that can be continued, options

Files made here are llm.c's: token shards (llmc/dataloader.h), tokenizer files (llmc/tokenizer.h). Everything is written as NAME.part and renamed when
it is complete and on disk: NAME is whole or absent. A maker's folder holds one of two notes:
    progress.json   unfinished: what is being made, and the place to go on from, written after the tokens that it counts
    made.json       finished: what was made from what, the files and their sizes; written last
So a maker may be killed at any moment; the same command goes on and ends with the same bytes. One maker at a time works in a folder (a lock).
Beside it: download.py, tokenizer.py. Needs Python 3.8 and nothing else. Tests: dev/check_data.py
"""
import argparse
import collections
import concurrent.futures
import errno
import fcntl
import json
import os
import shutil
import struct
import sys
import threading
import time

SHARD_MAGIC, TOKENIZER_MAGIC = 20240520, 20240328
HEADER_BYTES = 1024
MAX_SHARD_TOKENS = 2**31 - 1        # ntok is an int32
CHECKPOINT_TOKENS = 1 << 25         # tokens between two places to go on from: 64 MiB, some ten seconds of work
BATCH_BYTES = 1 << 20               # text that one thread tokenizes at a time

HERE = os.path.dirname(os.path.abspath(__file__))

GOES_ON = "the same command, without --force, goes on from here"
DISK_HINT = "free some space, check the folder's permissions, or choose another one with --out; then run again: what is complete is kept"


class Refusal(Exception):
    """What goes wrong by the user's or the machine's fault: a message and a hint."""
    def __init__(self, message, hint=""):
        Exception.__init__(self, message)
        self.hint = hint


def say(message):
    Progress.clear()
    print(message, flush=True)


def beside(name):
    """A path beside the makers."""
    return os.path.join(HERE, name)


def shown(path):
    """A path as a user would type it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def run_maker(make, arguments, after_interruption=GOES_ON):
    """Runs make(arguments); returns the exit code. 0: made or up to date, 1: failed (message and hint). after_interruption: the hint after Ctrl-C."""
    try:
        make(arguments)
        return 0
    except Refusal as refusal:
        message, hint = str(refusal), refusal.hint
    except KeyboardInterrupt:
        message, hint = "interrupted", after_interruption
    except OSError as error:
        message, hint = describe(error), DISK_HINT
    Progress.clear()
    sys.stdout.flush()
    print(f"ERROR: {message}", file=sys.stderr)
    if hint:
        print(f"HINT:  {hint}", file=sys.stderr)
    return 1


def describe(error):
    """An OSError in words, without its number."""
    reason = getattr(error, "reason", None) or error
    reason = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return f"{reason}: '{error.filename}'" if getattr(error, "filename", None) else reason


# ---------------------------------------------------------------------------------------------------------------------
# progress: one line on stderr, redrawn on a terminal, repeated every ten seconds in a log

class Progress:
    lines = {}                  # what is going on at the same time (tokens of one file, download of the next), in the order of the starts
    lock = threading.Lock()
    drawn = time.monotonic()
    on_screen = False

    def __init__(self, name, unit, scale=1e6):
        self.name, self.unit, self.scale = name, unit, scale
        self.start, self.first, self.first_fraction = time.monotonic(), None, 0.0

    def show(self, done, fraction=None):
        """done: units so far; fraction of the whole, if known. The first call sets where the rate begins: what was done in an earlier run is not our speed."""
        now = time.monotonic()
        if self.first is None:
            self.start, self.first, self.first_fraction = now, done, fraction or 0.0
        seconds = max(now - self.start, 1e-3)
        text = f"{self.name}: {done / self.scale:.1f} {self.unit}, {(done - self.first) / self.scale / seconds:.1f} {self.unit}/s"
        if fraction is not None:
            text += f", {100 * fraction:.1f}%"
            if fraction > self.first_fraction and seconds > 0.5:
                left = int(seconds * (1 - fraction) / (fraction - self.first_fraction))
                text += f", ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        with Progress.lock:
            Progress.lines[id(self)] = text
            tty = sys.stderr.isatty()
            if now - Progress.drawn < (0.2 if tty else 10):
                return
            Progress.drawn = now
            line = " | ".join(Progress.lines.values())
            if tty:
                line = "\r" + line[:shutil.get_terminal_size().columns - 1] + "\033[K"
            sys.stderr.write(line if tty else line + "\n")
            sys.stderr.flush()
            Progress.on_screen = tty

    def end(self):
        with Progress.lock:
            Progress.lines.pop(id(self), None)
        Progress.clear()

    @staticmethod
    def clear():
        with Progress.lock:
            if Progress.on_screen:
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
                Progress.on_screen = False


# ---------------------------------------------------------------------------------------------------------------------
# files

class Writing:
    """with Writing(path): an error of the disk in here is one about path."""
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind and issubclass(kind, OSError):
            raise Refusal(f"cannot write '{shown(self.path)}': {error.strerror or error}", DISK_HINT)


def file_size(path):
    """-1: there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def to_utf8(text):
    """Bytes of a str, also of one with halves of surrogate pairs (JSON can say them): whole pairs are joined, single halves become U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode("utf-8")


def put_in_place(file, path):
    """Flushes the open file PATH.part to disk, closes it, and gives it its name."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    os.replace(path + ".part", path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)


def write_file(path, pieces):
    """Writes pieces of bytes as a file that is whole or absent."""
    with Writing(path):
        try:
            with open(path + ".part", "wb") as file:
                for piece in pieces:
                    file.write(piece)
                put_in_place(file, path)
        except BaseException:
            if os.path.exists(path + ".part"):
                os.remove(path + ".part")
            raise


def write_json(path, value):
    write_file(path, [(json.dumps(value, indent=1, sort_keys=True) + "\n").encode("utf-8")])


def read_json(path):
    """None: there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read().decode("utf-8"))
        return value if isinstance(value, dict) else None
    except (OSError, ValueError):
        return None


def remove(path):
    with Writing(path):
        if os.path.exists(path):
            os.remove(path)


def shard_header(num_tokens):
    return struct.pack("<256i", SHARD_MAGIC, 1, num_tokens, *[0] * 253)


def tokenizer_pieces(tokens, eot):
    """The bytes of a tokenizer file, version 2."""
    yield struct.pack("<256I", TOKENIZER_MAGIC, 2, len(tokens), eot, *[0] * 252)
    for token in tokens:
        yield bytes([len(token)]) + token


class Folder:
    """A maker's folder: made if need be, and locked until unlock() or the end of the process. wait: for another process that has it; else that is an error."""
    def __init__(self, path, wait=False):
        self.path = path
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise Refusal(f"cannot make the folder '{shown(path)}': {error.strerror}", DISK_HINT)
        if not os.access(path, os.W_OK | os.X_OK):
            raise Refusal(f"cannot write into '{shown(path)}'", DISK_HINT)
        self.lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # a file system without locks
            raise Refusal(f"another data maker is working in '{shown(path)}'", "let it finish, or choose another folder with --out")

    def unlock(self):
        os.close(self.lock)

    def file(self, name):
        return os.path.join(self.path, name)


def is_count(value):
    return type(value) is int and value >= 0


def read_note(folder, name, counts, tables):
    """A note as a dictionary; None: there is none; {}: it is damaged. counts, tables: its keys with numbers, and with {name: number}."""
    note = read_json(folder.file(name))
    if note is None:
        return {} if os.path.exists(folder.file(name)) else None
    whole = all(is_count(note.get(key)) for key in counts) and all(isinstance(note.get(key), dict) and all(map(is_count, note[key].values())) for key in tables)
    return note if whole and isinstance(note.get("request"), dict) else {}


def read_made(folder):
    made = read_note(folder, "made.json", (), ("files", "tokens"))
    return made if made and isinstance(made.get("made_from"), str) and isinstance(made.get("complete"), bool) else None  # damaged: all is made again


def read_progress(folder):
    return read_note(folder, "progress.json", ("shard", "count", "source", "document", "skip"), ("done",))


def clear(folder):
    """Removes a data set, finished or not. What was fetched for it stays."""
    old = list((read_made(folder) or {}).get("files", {})) + list((read_progress(folder) or {}).get("done", {}))
    for name in ["made.json", "progress.json"] + old + [name for name in os.listdir(folder.path) if name.endswith(".bin.part")]:
        remove(folder.file(os.path.basename(name)))


def up_to_date(folder, request, enough=lambda made: True):
    """True, and says so, if the folder holds what request asks for, and enough of it. A Refusal: it holds something else, or not all of it any more."""
    made = read_made(folder)
    note = made or read_progress(folder)
    if note and note["request"] != request:
        old = note["request"]
        other = ", ".join(f"{key}: {old.get(key)}, not {request.get(key)}" for key in sorted(set(old) | set(request)) if old.get(key) != request.get(key))
        raise Refusal(f"'{shown(folder.path)}' holds {'a finished' if made else 'an unfinished'} data set of another kind ({other})",
                      "--out names another folder; --force makes this one anew")
    if not made:
        return False
    for name, size in made["files"].items():
        if file_size(folder.file(name)) != size:
            raise Refusal(f"'{shown(folder.path)}' was finished, but {name} {'is missing' if file_size(folder.file(name)) < 0 else 'has another size'}",
                          "--force makes it all again")
    if not enough(made):
        remove(folder.file("made.json"))
        return False
    if made["complete"]:
        remove(folder.file("progress.json"))
    say(f"{shown(folder.path)} is up to date: {made['made_from']}, {sum(made['tokens'].values()):,} tokens; --force makes it again")
    return True


def finished(folder, request, force, enough=lambda made: True):
    """Is nothing left to do? Refuses to overwrite anything but an unfinished set of the same kind, unless forced: then it goes."""
    if force:
        clear(folder)
    return up_to_date(folder, request, enough)


def finish(folder, request, made_from, tokens, tokenizer, complete=True):
    """Writes the tokenizer's file, and the note that says that all is done. tokens: {name of a data file: its number of tokens}. Not complete: the note of
    where to go on stays as well."""
    write_file(folder.file("tokenizer.bin"), tokenizer_pieces(tokenizer.tokens, tokenizer.eot))
    files = {name: file_size(folder.file(name)) for name in list(tokens) + ["tokenizer.bin"]}
    write_json(folder.file("made.json"), {"made_from": made_from, "request": request, "files": files, "tokens": tokens, "complete": complete})
    if complete:
        remove(folder.file("progress.json"))
    for name, count in list(tokens.items())[:4]:
        say(f"wrote {shown(folder.file(name))}: {count:,} tokens, {files[name]:,} bytes")
    say(f"{shown(folder.path)}: {sum(tokens.values()):,} tokens in {len(tokens)} file{'s' if len(tokens) > 1 else ''}, and tokenizer.bin")


# ---------------------------------------------------------------------------------------------------------------------
# token shards, written in one stream that can be continued

class TokenStream:
    """Tokens in order, cut into shards. layout(k) = (file name of shard k, its number of tokens or None: all until end_shard), or None: no such shard is wanted.
    After an interruption the tokens from document number self.document of source number self.source on are wanted again; what of them is already there
    is dropped here. The documents that count are those which begin a call of write."""
    def __init__(self, folder, request, layout):
        self.folder, self.request, self.layout = folder, request, layout
        self.shard = self.count = 0                     # the shard at hand, tokens in its .part
        self.source = self.document = self.skip = 0     # the next token is the skip-th from the beginning of this document
        self.done = {}                                  # finished shards: {name: tokens}
        self.file, self.part, self.unsaved, self.drop = None, "", 0, 0
        note = read_progress(folder)
        if note is not None:
            self.resume(note)
        self.ended = layout(self.shard) is None         # all wanted shards are full

    def resume(self, note):
        if not note:
            raise Refusal(f"progress.json in '{shown(self.folder.path)}' is damaged", "--force makes it all again")
        for name, count in note["done"].items():
            if file_size(self.folder.file(name)) != HEADER_BYTES + 2 * count:
                raise Refusal(f"{name} in '{shown(self.folder.path)}' was complete with {count:,} tokens and is not any more", "--force makes it all again")
        unfinished = self.layout(note["shard"])  # None: fewer shards are wanted now
        if note["count"] and unfinished:
            name = unfinished[0]
            path = self.folder.file(name)
            if not os.path.exists(path + ".part") and os.path.exists(path):  # it got its name, but this note was not replaced any more
                os.replace(path, path + ".part")
            if file_size(path + ".part") < HEADER_BYTES + 2 * note["count"]:
                raise Refusal(f"the unfinished {name} in '{shown(self.folder.path)}' has lost tokens", "--force makes it all again")
        self.shard, self.count, self.source, self.document, self.drop, self.done = (note[key] for key in ("shard", "count", "source", "document", "skip", "done"))
        say(f"going on after {self.total():,} tokens")

    def total(self):
        return sum(self.done.values()) + self.count

    def open_part(self):
        self.part = self.folder.file(self.layout(self.shard)[0]) + ".part"
        with Writing(self.part):
            self.file = open(self.part, "r+b" if self.count else "wb")
            self.file.truncate(HEADER_BYTES + 2 * self.count)
            self.file.seek(0 if not self.count else HEADER_BYTES + 2 * self.count)
            if not self.count:
                self.file.write(bytes(HEADER_BYTES))  # end_shard writes the real one: until then it is no shard

    def write(self, tokens, source, document):
        """tokens: bytes of uint16, those of `document` and some after it of `source`."""
        if (source, document) != (self.source, self.document):
            self.source, self.document, self.skip = source, document, 0
        dropped = min(self.drop, len(tokens) // 2)
        self.drop, self.skip = self.drop - dropped, self.skip + dropped
        view = memoryview(tokens)[2 * dropped:]
        while len(view) and not self.ended:
            if not self.file:
                self.open_part()
            name, limit = self.layout(self.shard)
            room = (limit or MAX_SHARD_TOKENS) - self.count
            if not room:
                raise Refusal(f"{name} would have more than {MAX_SHARD_TOKENS:,} tokens", "the format holds no more: make it of less text")
            piece = view[:2 * room]
            view = view[len(piece):]
            with Writing(self.part):
                self.file.write(piece)
            self.count += len(piece) // 2
            self.skip += len(piece) // 2
            self.unsaved += len(piece) // 2
            if self.count == limit:
                self.end_shard()
        if self.unsaved >= CHECKPOINT_TOKENS:
            self.save()

    def end_shard(self):
        """Gives the shard at hand its header and its name."""
        name = self.layout(self.shard)[0]
        if not self.file:
            self.open_part()
        with Writing(self.part):
            self.file.seek(0)
            self.file.write(shard_header(self.count))
            put_in_place(self.file, self.folder.file(name))
        self.done[name] = self.count
        self.file, self.shard, self.count = None, self.shard + 1, 0
        self.ended = self.layout(self.shard) is None
        self.save()

    def next_source(self):
        """All of a source is written."""
        if self.drop and not self.ended:
            raise Refusal(f"the data have changed since an earlier run: {self.drop:,} tokens that were written are not there any more", "--force makes it all again")
        self.source, self.document, self.skip = self.source + 1, 0, 0
        self.save()

    def save(self):
        """From here it goes on if the process ends now."""
        if self.file:
            with Writing(self.part):
                self.file.flush()
                os.fsync(self.file.fileno())
        self.unsaved = 0
        keys = ("shard", "count", "source", "document", "skip", "done")
        write_json(self.folder.file("progress.json"), dict({key: getattr(self, key) for key in keys}, request=self.request))


def batches(documents, first):
    """Lists of documents of about BATCH_BYTES together, each with the number of its first."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= BATCH_BYTES:
            yield first, batch
            first, batch, size = first + len(batch), [], 0
    if batch:
        yield first, batch


def tokenize(stream, source, documents, encode, workers, show):
    """Writes the tokens of one source, from its document number stream.document on: documents yields those. show(n) is called when n documents of the source are done.
    `workers` threads tokenize ahead, in order; for GPT-2's tokens each waits for a process that does the work."""
    waiting, ahead = collections.deque(), batches(documents, stream.document)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        while not stream.ended:
            while len(waiting) <= 2 * workers:
                batch = next(ahead, None)
                if not batch:
                    break
                waiting.append((batch[0], len(batch[1]), pool.submit(encode, batch[1])))
            if not waiting:
                return
            number, length, future = waiting.popleft()
            stream.write(future.result(), source, number)
            show(number + length)


# ---------------------------------------------------------------------------------------------------------------------
# command line

def whole_number(least, most):
    def parse(text):
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
        return value
    return parse


def add_tokenizer_option(parser, default):
    parser.add_argument("-m", "--tokenizer", "--model_desc", type=lambda text: text.replace("gpt-2", "gpt2"), choices=["bytes", "gpt2"], default=default,
                        help="gpt2: byte-pair encoding, by build/tokenize_text, which is made if need be (make, g++); bytes: a byte is a token (default: %(default)s)")


def add_common_options(parser, out, url, variable):
    """Options of all makers of a named data set. out: its folder beside the makers."""
    parser.add_argument("--out", metavar="DIR", help=f"folder to write into (default: {out} beside this script)")
    add_tokenizer_option(parser, "gpt2")
    parser.add_argument("--url", metavar="URL|FILE", default=os.environ.get(variable) or url,
                        help=f"where the data come from: an address, or a local file (default: {url}; environment: {variable})")
    parser.add_argument("--force", action="store_true", help="make it anew, whatever is in the folder")


def add_workers_option(parser):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--workers", metavar="N", type=whole_number(1, 1024), default=cores, help="processes that tokenize (default: the processors, here %(default)s)")


def add_checksum_option(parser, sha256):
    parser.add_argument("--sha256", metavar="HEX|any", type=lambda text: "" if text == "any" else text.lower(), default=sha256,
                        help="checksum that the data must have; any: they are not compared (default: that of the file llm.c's users know)")
