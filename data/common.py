"""common.py - what the data makers share: refusals, progress, downloads that go on, tokenizers, files that appear whole, shards that can be continued

Files made here are llm.c's: token shards (llmc/dataloader.h), tokenizer files (llmc/tokenizer.h). Everything is written as NAME.part and renamed when
it is complete and on disk: NAME is whole or absent. A maker's folder holds one of two notes:
    progress.json   unfinished: what is being made, and the place to go on from, written after the tokens that it counts
    made.json       finished: what was made from what, the files and their sizes; written last
So a maker may be killed at any moment; the same command goes on and ends with the same bytes. One maker at a time works in a folder (a lock).
Needs Python 3.8; for GPT-2's tokens also tiktoken or build/tokenize_text. Tests: dev/check_data.py
"""
import argparse
import array
import collections
import concurrent.futures
import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SHARD_MAGIC, TOKENIZER_MAGIC = 20240520, 20240328
HEADER_BYTES = 1024
MAX_SHARD_TOKENS = 2**31 - 1        # ntok is an int32
CHECKPOINT_TOKENS = 1 << 25         # tokens between two places to go on from: 64 MiB, some ten seconds of work
BATCH_BYTES = 1 << 20               # text that one thread tokenizes at a time
RETRY_SECONDS = (1, 2, 4, 8, 16)    # waits between attempts of a download that brought something; one that never did gets the first two
NETWORK_TIMEOUT = 30                # seconds without a byte

HERE = os.path.dirname(os.path.abspath(__file__))
ENCODER = os.path.join(os.path.dirname(HERE), "build", "tokenize_text")  # made by `make build/tokenize_text`

# GPT-2's merges, from which its 50257 tokens follow; another address with the same content: environment variable GPT2_MERGES_URL
GPT2_MERGES_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_TOKENIZER_SHA256 = "6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13"  # of the tokenizer file, version 2
GPT2_VOCAB_SIZE, GPT2_EOT = 50257, 50256
# How GPT-2 cuts text into words before it merges bytes [Radford et al. 2019, the released encoder].
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

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


def run_maker(make, arguments):
    """Runs make(arguments); returns the exit code. 0: made or up to date, 1: failed (message and hint)."""
    try:
        make(arguments)
        return 0
    except Refusal as refusal:
        message, hint = str(refusal), refusal.hint
    except KeyboardInterrupt:
        message, hint = "interrupted", "the same command goes on from here"
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


def finished(folder, request, force, enough=lambda made: True):
    """True, and says so, if the folder holds what request asks for, and enough of it. Refuses to overwrite anything else, unless forced: then it goes."""
    made, begun = read_json(folder.file("made.json")), read_json(folder.file("progress.json"))
    if force:
        old = list((made or {}).get("files", {})) + list((begun or {}).get("done", {}))
        for name in ["made.json", "progress.json"] + old + [name for name in os.listdir(folder.path) if name.endswith(".bin.part")]:
            remove(folder.file(os.path.basename(name)))
        return False
    for note, what in ((made, "a finished"), (begun, "an unfinished")):
        if note and note.get("request") != request:
            old = note.get("request") if isinstance(note.get("request"), dict) else {}
            other = ", ".join(f"{key}: {old.get(key)}, not {request.get(key)}" for key in sorted(set(old) | set(request)) if old.get(key) != request.get(key))
            raise Refusal(f"'{shown(folder.path)}' holds {what} data set of another kind ({other})", "--out names another folder; --force makes this one anew")
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
# downloads

class CutShort(Exception):
    """A transfer that ended early."""


def open_url(url, headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers, **{"User-Agent": "llm-data-maker"})), timeout=NETWORK_TIMEOUT)


def fetch_on(url, path, known_content, progress):
    """One attempt to get what PATH.part lacks. Returns normally when it is complete. known_content: a checksum will be compared at the end; else a rest
    is asked for only if the server can tell that the file is still the same (PATH.part.json keeps its mark)."""
    part, note = path + ".part", path + ".part.json"
    have, mark = max(file_size(part), 0), (read_json(note) or {}).get("mark", "")
    headers = {}
    if have and (mark or known_content):
        headers["Range"] = f"bytes={have}-"
        if mark:
            headers["If-Range"] = mark
    try:
        answer = open_url(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if (error.headers.get("Content-Range") or "").endswith(f"*/{have}"):
            return  # there is no rest
        remove(part)
        raise CutShort("the file on the server is shorter than what is here")
    with answer:
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if answer.status == 206 and not resumed:
            remove(part)
            raise CutShort("the server sent another part than the one asked for")
        length = answer.headers.get("Content-Length")
        with Writing(part):
            file = open(part, "ab" if resumed else "wb")
        with file:
            if not resumed:
                have, mark = 0, answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                write_json(note, {"mark": "" if mark.startswith("W/") else mark})
            total = have + int(length) if length else None
            while True:
                piece = answer.read1(1 << 18)
                if not piece:
                    break
                with Writing(part):
                    file.write(piece)
                    file.flush()  # not at the close, where an error would pass for one of the network
                have += len(piece)
                progress.show(have, have / total if total else None)
            with Writing(part):
                file.flush()
                os.fsync(file.fileno())
    if total is not None and have != total:
        raise CutShort(f"the connection ended after {have:,} of {total:,} bytes")


def download_path(url, path, sha256):
    """Where fetch puts it: what has no checksum is named after its address, too, so that it is not taken for something else later."""
    folder, name = os.path.split(path)
    return path if sha256 else os.path.join(folder, hashlib.sha256(url.encode()).hexdigest()[:8] + "." + name)


def fetch(url, path, sha256=""):
    """Downloads url, going on with what an earlier attempt left, or takes what one completed. Returns the path of the file: download_path, or a url that is a
    local file as it is."""
    if "://" not in url:
        if not os.path.isfile(url):
            raise Refusal(f"there is no file '{url}'", "--url takes an address with ://, or a local file")
        verify(url, f"'{url}'", sha256)
        return url
    path = download_path(url, path, sha256)
    if os.path.exists(path):
        remove(path + ".part.json")
        try:
            verify(path, url, sha256)
            return path
        except Refusal:
            say(f"{shown(path)} is another file: it is fetched again")
            remove(path)
    progress, failures = Progress("download " + os.path.basename(path), "MB"), 0
    before = start = max(file_size(path + ".part"), 0)
    while True:
        try:
            fetch_on(url, path, bool(sha256), progress)
            break
        except urllib.error.HTTPError as error:
            reason, final = f"HTTP {error.code} {error.reason}", error.code not in (408, 429, 500, 502, 503, 504)
        except ValueError as error:
            reason, final = str(error), True
        except (OSError, http.client.HTTPException, CutShort) as error:
            reason, final = describe(error) if isinstance(error, OSError) else str(error) or type(error).__name__, False
        now = max(file_size(path + ".part"), 0)
        failures = 0 if now > before else failures + 1
        before = now
        if final or failures > (len(RETRY_SECONDS) if now > start else 2):
            progress.end()
            raise Refusal(f"cannot download {url}: {reason}" + (f" ({now:,} bytes of it are here)" if now > 0 else ""),
                          "run the same command again, it goes on from there; or fetch the file by other means and name it: --url FILE (behind a proxy: https_proxy)")
        time.sleep(RETRY_SECONDS[min(max(failures - 1, 0), len(RETRY_SECONDS) - 1)])
    progress.end()
    try:
        verify(path + ".part", url, sha256)
    except Refusal:
        remove(path + ".part")
        remove(path + ".part.json")
        raise
    with Writing(path):
        os.replace(path + ".part", path)
    remove(path + ".part.json")
    return path


def verify(path, url, sha256):
    """Refuses a file whose SHA-256 is another one. sha256 "": any will do."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20) if sha256 else b"", b""):
            digest.update(piece)
    if sha256 and digest.hexdigest() != sha256:
        raise Refusal(f"{url} is not the file that was expected: {file_size(path):,} bytes with SHA-256 {digest.hexdigest()} instead of {sha256}",
                      "run again; if it stays so, the file has changed there: --url names another copy, --sha256 any takes what comes")


def source_of(arguments):
    """What the data are made from, for the notes: its checksum, or else its address, for a local file with size and time."""
    if arguments.sha256 or "://" in arguments.url:
        return arguments.sha256 or arguments.url
    changed = os.path.getmtime(arguments.url) if os.path.exists(arguments.url) else 0
    return f"{os.path.abspath(arguments.url)}, {file_size(arguments.url)} bytes of {changed:.3f}"


def in_background(function, *arguments):
    """Calls function in a thread that does not keep the program from ending; its result, or what it raised, comes from the future returned."""
    future = concurrent.futures.Future()

    def call():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
    threading.Thread(target=call, daemon=True).start()
    return future


# ---------------------------------------------------------------------------------------------------------------------
# tokenizers: documents (bytes, UTF-8) to tokens (bytes, uint16 little-endian)

def from_little_endian(data):
    tokens = array.array("H", data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def to_little_endian(tokens):
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


class Tokenizer:
    def encode_each(self, documents):
        """A list: for each document its tokens as an array, without the end of text (which is in no document: see encode)."""
        tokens = from_little_endian(self.encode(documents))
        ends = [at for at, token in enumerate(tokens) if token == self.eot] + [len(tokens)]
        return [tokens[a + 1:b] for a, b in zip(ends, ends[1:])]


class ByteTokenizer(Tokenizer):
    """A token is a byte. NUL bytes are dropped: 0 is the end of text."""
    name, eot, tokens = "bytes", 0, [bytes([byte]) for byte in range(256)]

    def encode(self, documents, eot=True):
        """The tokens of all documents, each after an end-of-text token if eot."""
        text = b"".join((b"\0" if eot else b"") + document.replace(b"\0", b"") for document in documents)
        tokens = bytearray(2 * len(text))
        tokens[0::2] = text
        return bytes(tokens)


class Gpt2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding, by the library tiktoken or by this project's encoder program. Bytes that are not UTF-8 become U+FFFD."""
    name, eot = "gpt2", GPT2_EOT

    def __init__(self):
        try:
            import tiktoken
        except ImportError:
            tiktoken = None
        if not tiktoken and not os.access(ENCODER, os.X_OK):
            raise Refusal("GPT-2's tokens need the library tiktoken, or this project's encoder program, and neither is here",
                          "pip install tiktoken   or   make build/tokenize_text   or take a byte as a token: --tokenizer bytes")
        self.path, self.tokens = gpt2_tokenizer_file()
        self.library = gpt2_library(self.tokens) if tiktoken else None
        self.idle = []  # processes that tokenize for threads, see encode_by_worker

    def encode(self, documents, eot=True):
        texts = [document.decode("utf-8", "replace").encode("utf-8") for document in documents]
        if not self.library:
            tokens = self.encode_by_program(texts)
        elif threading.current_thread() is threading.main_thread():
            tokens = encode_by_library(self.library, texts)
        else:
            tokens = self.encode_by_worker(texts)
        if not eot:
            tokens = array.array("H", (token for token in tokens if token != GPT2_EOT))
        return to_little_endian(tokens)

    def encode_by_worker(self, documents):
        """By the library, in a process for each thread that asks: the interpreter's lock would let them tokenize one at a time. The processes end with this one."""
        try:
            worker = self.idle.pop()
        except IndexError:
            worker = subprocess.Popen([sys.executable, os.path.abspath(__file__), self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            send_list(worker.stdin, documents)
            tokens = from_little_endian(receive_list(worker.stdout)[0])
        except (OSError, EOFError):
            raise Refusal(f"a process that tokenizes died (exit code {worker.wait()})", "is there enough memory? --workers N takes fewer of them; then run again: it goes on")
        self.idle.append(worker)
        return tokens

    def encode_by_program(self, documents):
        if any(b"\0" in document for document in documents) and len(documents) > 1:  # it takes documents that end with a NUL: one with NULs inside goes alone
            return sum((self.encode_by_program([document]) for document in documents), array.array("H"))
        separate = [] if b"\0" in documents[0] else ["nul"]
        with tempfile.TemporaryDirectory(prefix="tokenize.") as folder:
            shard = os.path.join(folder, "shard.bin")
            text = b"".join(document + (b"\0" if separate else b"") for document in documents)
            done = subprocess.run([ENCODER, "/dev/stdin", self.path, shard] + separate, input=text, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if done.returncode:
                raise Refusal(f"the encoder program failed: {done.stderr.decode('utf-8', 'replace').strip() or done.returncode}",
                              "make build/tokenize_text   makes it again;   pip install tiktoken   replaces it")
            with open(shard, "rb") as file:
                return from_little_endian(file.read()[HEADER_BYTES:])


def gpt2_library(tokens):
    """GPT-2's encoder of the library tiktoken, which would fetch the vocabulary by itself otherwise."""
    import tiktoken
    ranks = {token: rank for rank, token in enumerate(tokens[:GPT2_EOT])}
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": GPT2_EOT})


def encode_by_library(library, documents):
    """Array of the tokens of all documents (UTF-8), each after an end-of-text token."""
    tokens = array.array("H")
    for document in documents:
        tokens.append(GPT2_EOT)
        tokens.extend(library.encode_ordinary(document.decode("utf-8")))
    return tokens


def send_list(file, items):
    """Items of bytes through a pipe: their number, their lengths, they themselves."""
    file.write(struct.pack(f"<I{len(items)}I", len(items), *[len(item) for item in items]) + b"".join(items))
    file.flush()


def receive_list(file):
    """What send_list sent; EOFError: the other side has ended."""
    def read(length):
        data = file.read(length)
        if len(data) != length:
            raise EOFError
        return data
    count = struct.unpack("<I", read(4))[0]
    return [read(length) for length in struct.unpack(f"<{count}I", read(4 * count))]


def worker_main(path):
    """Tokenizes lists of documents from standard input, with the tokenizer file at path, until it ends: with the program that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    library = gpt2_library(read_tokenizer(path)[0])
    try:
        while True:
            send_list(sys.stdout.buffer, [to_little_endian(encode_by_library(library, receive_list(sys.stdin.buffer)))])
    except (EOFError, BrokenPipeError):
        os._exit(0)  # at once: a normal exit would try to flush into the broken pipe


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
        raise Refusal(f"cannot read '{shown(path)}': {error.strerror}")
    tokens, at = [], HEADER_BYTES
    magic, version, count, eot = struct.unpack_from("<4I", data) if len(data) >= HEADER_BYTES else (0, 0, 0, 0)
    while magic == TOKENIZER_MAGIC and at < len(data):
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    if magic != TOKENIZER_MAGIC or version not in (1, 2) or at != len(data) or len(tokens) != count:
        raise Refusal(f"'{shown(path)}' is no whole tokenizer file", "remove it, it will be made again")
    return tokens, GPT2_EOT if version == 1 else eot


def gpt2_tokenizer_file():
    """(path, tokens) of GPT-2's tokenizer file: one beside the makers or in the working directory, else made beside them from the merges."""
    path = next((path for path in (beside("gpt2_tokenizer.bin"), "gpt2_tokenizer.bin") if os.path.exists(path)), None) or make_gpt2_tokenizer_file()
    tokens, eot = read_tokenizer(path)
    if hashlib.sha256(b"".join(tokenizer_pieces(tokens, eot))).hexdigest() != GPT2_TOKENIZER_SHA256:
        raise Refusal(f"'{shown(path)}' does not hold GPT-2's {GPT2_VOCAB_SIZE} tokens (it has {len(tokens)})", "remove it, it will be made again")
    return path, tokens


def make_gpt2_tokenizer_file():
    folder = Folder(HERE, wait=True)
    path = folder.file("gpt2_tokenizer.bin")
    if not os.path.exists(path):  # nobody made it while we waited
        merges = fetch(os.environ.get("GPT2_MERGES_URL") or GPT2_MERGES_URL, folder.file("gpt2_merges.txt"), GPT2_MERGES_SHA256)
        with open(merges, "rb") as file:
            write_file(path, tokenizer_pieces(gpt2_tokens(file.read()), GPT2_EOT))
        remove(folder.file("gpt2_merges.txt"))
    folder.unlock()
    return path


def open_tokenizer(name):
    return ByteTokenizer() if name == "bytes" else Gpt2Tokenizer()


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
        note = read_json(folder.file("progress.json"))
        if note:
            self.resume(note)
        self.ended = layout(self.shard) is None         # all wanted shards are full

    def resume(self, note):
        for name, count in note["done"].items():
            if file_size(self.folder.file(name)) != HEADER_BYTES + 2 * count:
                raise Refusal(f"{name} in '{shown(self.folder.path)}' was complete with {count:,} tokens and is not any more", "--force makes it all again")
        if note["count"]:
            name = self.layout(note["shard"])[0]
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
    `workers` threads tokenize ahead, in order; for GPT-2's tokens each has a process that does the work."""
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
                        help="gpt2: byte-pair encoding (needs tiktoken or build/tokenize_text); bytes: a byte is a token, needs nothing (default: %(default)s)")


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


if __name__ == "__main__":
    worker_main(sys.argv[1])
