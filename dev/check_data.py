#!/usr/bin/env python3
"""check_data.py - the data makers in data/, against a server on this machine that behaves badly, killed at every step, and their files read by other code

Each maker runs in a process of its own (fork), so that limits, missing libraries and the moment of its death can be set; the server is another process.
No network, no library: what needs pyarrow, the encoder program (built here where there is a compiler) or tiktoken (a judge of it) is skipped with a reason
where they are missing. GPT-2's part uses a made-up vocabulary of 50257 tokens, whose encoder in Python is ten lines.
"""
import functools
import hashlib
import http.server
import importlib
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback

from checking import Checks, ROOT, run

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "data"))

c = Checks()
TMP, HOST = "", ""


# ---------------------------------------------------------------------------------------------------------------------
# the server: /MODE/NAME is the file NAME of its folder, by way of MODE

class Handler(http.server.BaseHTTPRequestHandler):
    """plain; cut: the first two answers end half way; norange: always the whole file; changed: the first answer ends half way, and then the file is another;
    slow: 20 pieces with 50 ms between them; busy: the first answer is 503."""
    seen = {}

    def do_GET(self):
        mode, _, name = self.path.lstrip("/").partition("/")
        count = Handler.seen[self.path] = Handler.seen.get(self.path, 0) + 1
        path = os.path.join(os.environ["CHECK_DATA_FOLDER"], name)
        wanted = self.headers.get("Range")
        with open(os.environ["CHECK_DATA_LOG"], "a") as log:
            log.write(f"{self.path} {wanted or '-'}\n")
        if not os.path.isfile(path) or mode == "busy" and count == 1:
            return self.send_error(404 if not os.path.isfile(path) else 503)
        with open(path, "rb") as file:
            data = file.read()
        if mode == "changed" and count == 1:
            data = data[::-1]
        tag = '"' + hashlib.sha256(data).hexdigest()[:8] + '"'
        start = 0
        if wanted and mode != "norange" and self.headers.get("If-Range", tag) == tag:
            start = int(re.match(r"bytes=(\d+)-", wanted).group(1))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        data = data[start:]
        if mode in ("cut", "norange") and count <= (2 if mode == "cut" else 1) or mode == "changed" and count == 1:
            data = data[:len(data) // 2]
        step = len(data) // 20 + 1 if mode == "slow" else len(data) + 1
        try:
            for at in range(0, len(data), step):
                self.wfile.write(data[at:at + step])
                time.sleep(0.05 if mode == "slow" else 0)
        except OSError:
            pass  # whoever asked is gone
        self.close_connection = True

    def log_message(self, *_):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


# ---------------------------------------------------------------------------------------------------------------------
# running a maker

def at(*names):
    return os.path.join(TMP, *names)


def put(name, data):
    os.makedirs(os.path.dirname(at(name)), exist_ok=True)
    with open(at(name), "wb") as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def progress_note(folder):
    """The note of where to go on, if there is one."""
    return json.loads(get(folder, "progress.json")) if os.path.exists(at(folder, "progress.json")) else None


def get(*names):
    with open(at(*names), "rb") as file:
        return file.read()


def requests():
    """Lines of the server's log since the last call."""
    lines = get("log").decode().splitlines() if os.path.exists(at("log")) else []
    if lines:
        os.remove(at("log"))
    return lines


def kill_at(n):
    """This process kills itself before the n-th step that touches the disk or the network. Returns where the steps are counted."""
    import common
    import download
    steps = [0]

    def counted(function):
        @functools.wraps(function)
        def step(*arguments, **options):
            steps[0] += 1
            if steps[0] == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return step
    for name in ("replace", "rename", "fsync", "remove"):
        setattr(os, name, counted(getattr(os, name)))
    download.open_url = counted(download.open_url)
    common.TokenStream.write = counted(common.TokenStream.write)
    return steps


def maker(name, arguments, setup=lambda: None, kill=None, terminal=False):
    """(exit code, what it printed) of data/NAME.py, or ("killed", ...). setup runs in the maker's process before it."""
    out = at("output")
    reader, writer = pty.openpty() if terminal else (None, None)
    pid = os.fork()
    if not pid:
        code = 99
        try:
            fd = writer if terminal else os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            import common
            import download
            common.CHECKPOINT_TOKENS, common.BATCH_BYTES, download.RETRY_SECONDS = 3000, 1000, (0.01, 0.02)
            common.HERE, sys.argv = at("beside"), [name + ".py"] + arguments
            os.fsync = lambda fd: None  # a killed process loses nothing of what it wrote: only a machine that loses power would tell the difference
            steps = kill_at(kill) if kill is not None else [0]
            setup()
            try:
                code = importlib.import_module(name).main()
            except SystemExit as error:
                code = error.code
            if kill is not None:
                print(f"\nsteps {steps[0]}")
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    text = b""
    if terminal:
        os.close(writer)
        try:
            for piece in iter(lambda: os.read(reader, 1 << 16), b""):
                text += piece
        except OSError:
            pass
        os.close(reader)
    _, status = os.waitpid(pid, 0)
    text = (text or get(out)).decode(errors="replace")
    if "Traceback" in text:
        c.check(False, f"{name} {' '.join(arguments)}: a traceback", text[-1500:])
    return "killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), text


def expect(name, arguments, code=0, words=(), **options):
    """Runs a maker; one check of exit code and words."""
    got, text = maker(name, arguments, **options)
    missing = [word for word in words if word not in text]
    c.check(got == code and not missing, f"{name} {' '.join(arguments)}", f"exit {got} instead of {code}, without {missing}:\n{text[-1500:]}")
    return text


def contents(folder):
    """{name: bytes} of a made folder's data files."""
    return {name: get(folder, name) for name in sorted(os.listdir(at(folder))) if name.endswith(".bin")}


def killed_everywhere(name, arguments, folder, wanted, most):
    """Kills the maker before `most` of its steps, spread over all of them, each time in an empty folder; the same command must then end with the wanted files
    and leave no unfinished ones. And one run that is killed again and again, a few steps further each time."""
    shutil.rmtree(at(folder), ignore_errors=True)
    _, text = maker(name, arguments, kill=0)
    steps = int(re.search(r"steps (\d+)", text).group(1))
    bad = []
    for n in sorted({1 + i * (steps - 1) // max(most - 1, 1) for i in range(most)}):
        shutil.rmtree(at(folder), ignore_errors=True)
        code, _ = maker(name, arguments, kill=n)
        again, text = maker(name, arguments)
        left = [f for f in os.listdir(at(folder)) if ".part" in f or f == "progress.json"]
        if code != "killed" or again != 0 or contents(folder) != wanted or left:
            bad.append(f"at step {n} of {steps}: {code}, then {again}, left {left}\n{text[-500:]}")
    shutil.rmtree(at(folder), ignore_errors=True)
    deaths, code = 0, "killed"
    while code == "killed" and deaths < steps:
        code, text = maker(name, arguments, kill=14)
        deaths += code == "killed"
    if code != 0 or contents(folder) != wanted:
        bad.append(f"killed every 14 steps: {deaths} deaths, then {code}\n{text[-500:]}")
    c.check(not bad and steps > 10, f"{name} killed anywhere goes on to the same bytes", "\n".join(bad) or f"only {steps} steps")
    return steps


# ---------------------------------------------------------------------------------------------------------------------
# readers that share nothing with the makers

def read_shard(data):
    """List of the tokens."""
    header = struct.unpack("<256i", data[:1024])
    assert header[:3] == (20240520, 1, (len(data) - 1024) // 2) and not any(header[3:]) and len(data) % 2 == 0, header[:4]
    return list(struct.unpack(f"<{header[2]}H", data[1024:]))


def read_tokenizer(data):
    """(end-of-text token, list of tokens)"""
    header, tokens, place = struct.unpack("<256I", data[:1024]), [], 1024
    while place < len(data):
        tokens.append(data[place + 1:place + 1 + data[place]])
        place += 1 + data[place]
    assert header[0] == 20240328 and header[1] == 2 and header[2] == len(tokens) and place == len(data) and not any(header[4:]), header[:4]
    return header[3], tokens


def read_questions(data):
    """[(label, context tokens, [ending tokens])]"""
    header = struct.unpack("<256i", data[:1024])
    words = struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:])
    assert header[:2] == (20240522, 1) and not any(header[4:])
    place, questions, longest = 0, [], 0
    while place < len(words):
        start, size, index, label, choices = words[place:place + 5]
        assert start == 65535 and index == len(questions) and choices == 4 and size % 2 == 0
        end, place, parts = place + size // 2, place + 5, []
        for _ in range(5):
            parts.append(list(words[place + 1:place + 1 + words[place]]))
            place += 1 + words[place]
        assert place == end
        longest = max(longest, size)
        questions.append((label, parts[0], parts[1:]))
    assert header[2:4] == (len(questions), longest)
    return questions


def as_bytes(text):
    return list(text if isinstance(text, bytes) else text.encode())


def made_of(folder, name):
    try:
        return read_shard(get(folder, name))
    except (OSError, AssertionError, struct.error) as error:
        return str(error)


def interleaved(text, *parts):
    """Is text what comes of taking its paragraphs, each different, from the fronts of the parts? Then these have its order and share nothing."""
    rest = list(parts)
    for paragraph in re.split(rb"(?<=\n\n)", text):
        which = next((i for i, part in enumerate(rest) if part.startswith(paragraph)), None)
        if which is None:
            return False
        rest[which] = rest[which][len(paragraph):]
    return not any(rest)


def words(rng, count):
    return " ".join(rng.choice(["the", "a", "cat", "naïve", "saw", "3", "€uro", "ran,", "it's", "Who?", "日本"]) for _ in range(count))


# ---------------------------------------------------------------------------------------------------------------------
# the checks

def downloads():
    """Every way to lose a connection; by way of tinyshakespeare, whose source is one file."""
    rng = random.Random(1)
    text = "\n\n".join(words(rng, 12) + ":\n" + words(rng, 20) for _ in range(700)).encode()
    sha = put("served/shakespeare.txt", text)
    expected = [token for section in re.split(rb"(?<=\n\n)", text) for token in [0] + as_bytes(section)]
    base = ["-m", "bytes", "--sha256", sha]
    wanted = None
    for mode, attempts in (("plain", 1), ("cut", 3), ("norange", 2), ("busy", 2), ("slow", 1)):
        url = f"{HOST}/{mode}/shakespeare.txt"
        expect("tinyshakespeare", base + ["--out", at("ts_" + mode), "--url", url])
        log = requests()
        ranges = [int(line.split("=")[1].rstrip("-")) for line in log if "bytes=" in line]
        c.check(len(log) == attempts, f"{mode}: {attempts} requests", str(log))
        if mode == "cut":
            c.check(ranges == [len(text) // 2, len(text) // 2 + (len(text) - len(text) // 2) // 2], "a cut download asks for the rest only", str(log))
        made = contents("ts_" + mode)
        wanted = wanted or made
        c.check(made == wanted and made_of("ts_" + mode, "tiny_shakespeare_val.bin") == expected[:32768]
                and made_of("ts_" + mode, "tiny_shakespeare_train.bin") == expected[32768:], f"tinyshakespeare by {mode}: the tokens")
    c.check(read_tokenizer(wanted["tokenizer.bin"]) == (0, [bytes([i]) for i in range(256)]), "byte tokenizer file")
    changed = ["-m", "bytes", "--sha256", "any", "--out", at("ts_changed"), "--url", HOST + "/changed/shakespeare.txt"]
    expect("tinyshakespeare", changed)
    c.check(contents("ts_changed") == wanted and len(requests()) == 2, "a file that changed on the server is fetched from its beginning")

    out = ["--out", at("ts_wrong")]
    expect("tinyshakespeare", ["-m", "bytes", "--url", HOST + "/plain/shakespeare.txt"] + out, 1, [sha, "is not the file that was expected", "HINT", "--sha256 any"])
    c.check(not os.listdir(at("ts_wrong")), "nothing of a wrong file is kept", str(os.listdir(at("ts_wrong"))))
    requests()
    expect("tinyshakespeare", base + out + ["--url", HOST + "/plain/nothing.txt"], 1, ["HTTP 404", "HINT"])
    c.check(len(requests()) == 1, "404 is not asked for again")
    start = time.monotonic()
    expect("tinyshakespeare", base + out + ["--url", "http://127.0.0.1:9/nothing"], 1, ["cannot download", "refused", "HINT"])
    c.check(time.monotonic() - start < 5, "no network is noticed soon")
    expect("tinyshakespeare", base + out + ["--url", "nonsense://x"], 1, ["cannot download", "HINT"])
    expect("tinyshakespeare", base + out + ["--url", at("served/none")], 1, ["there is no file", "HINT"])
    expect("tinyshakespeare", ["-m", "bytes", "--sha256", "0" * 64, "--url", at("served/shakespeare.txt")] + out, 1, ["is not the file that was expected"])
    expect("tinyshakespeare", base + out + ["--url", at("served/shakespeare.txt")])
    c.check(contents("ts_wrong") == wanted, "from a local file")

    # a real death of a real process in the middle of a download
    os.makedirs(at("ts_slow2"))
    command = [sys.executable, "-B", os.path.join(ROOT, "data/tinyshakespeare.py")] + base + ["--out", at("ts_slow2"), "--url", HOST + "/slow/./shakespeare.txt"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = at("ts_slow2", "tiny_shakespeare.txt.part")
    while process.poll() is None and not (os.path.exists(part) and os.path.getsize(part) > 0):
        time.sleep(0.01)
    process.kill()
    process.wait()
    have = os.path.getsize(part)
    requests()
    expect("tinyshakespeare", base + ["--out", at("ts_slow2"), "--url", HOST + "/slow/./shakespeare.txt"], terminal=True, words=["MB/s", "ETA", "\r"])
    c.check(requests()[0].endswith(f" bytes={have}-") and 0 < have < len(text) and contents("ts_slow2") == wanted, "killed while downloading, went on", str(have))
    killed_everywhere("tinyshakespeare", base + ["--out", at("ts_kill"), "--url", HOST + "/plain/shakespeare.txt"], "ts_kill", wanted, 10)
    requests()


def finished_sets():
    """What a maker does in a folder that holds something; with the sets made above."""
    base = ["--out", at("ts_plain"), "--url", HOST + "/plain/shakespeare.txt", "--sha256", hashlib.sha256(get("served/shakespeare.txt")).hexdigest()]
    before = contents("ts_plain")
    expect("tinyshakespeare", base + ["-m", "bytes"], words=["up to date"])
    c.check(not requests() and contents("ts_plain") == before, "a finished set is left alone")
    expect("tinyshakespeare", base + ["-m", "gpt-2"], 1, ["holds a finished data set", "tokenizer: bytes, not gpt2", "--force", "HINT"])
    expect("tinyshakespeare", base + ["-m", "llama-3"], 2, ["invalid choice"])
    expect("tinyshakespeare", base + ["-m", "bytes", "--force"], words=["wrote"])
    c.check(contents("ts_plain") == before, "made again: the same bytes")
    put("ts_plain/tiny_shakespeare.txt", b"something else")
    expect("tinyshakespeare", base + ["-m", "bytes", "--force"], words=["is another file", "wrote"])
    c.check(contents("ts_plain") == before and len(requests()) == 1, "a text that is not the right one is fetched again")
    anything = ["-m", "bytes", "--sha256", "any", "--url", HOST + "/plain/shakespeare.txt", "--out", at("ts_any")]
    expect("tinyshakespeare", anything)
    expect("tinyshakespeare", anything)
    c.check(len(requests()) == 1, "a finished set without a checksum is not fetched again")
    expect("tinyshakespeare", anything + ["--force"])
    c.check(len(requests()) == 1 and contents("ts_any") == before, "without a checksum, --force fetches again")
    os.truncate(at("ts_plain", "tiny_shakespeare_train.bin"), 2000)
    expect("tinyshakespeare", base + ["-m", "bytes"], 1, ["tiny_shakespeare_train.bin has another size", "HINT"])
    with open(at("ts_plain", "made.json"), "w") as file:
        file.write("{")
    expect("tinyshakespeare", base + ["-m", "bytes"], words=["wrote"])
    c.check(contents("ts_plain") == before, "a damaged note: made again")
    note = json.loads(get("ts_plain/made.json"))
    for key in ("files", "tokens", "complete"):
        put("ts_plain/made.json", json.dumps({k: v for k, v in note.items() if k != key}).encode())
        expect("tinyshakespeare", base + ["-m", "bytes"], words=["wrote"])
    import common
    lock = common.Folder(at("ts_plain"))
    expect("tinyshakespeare", base + ["-m", "bytes"], 1, ["another data maker", "HINT"])
    lock.unlock()
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20000, 20000))
    expect("tinyshakespeare", base + ["-m", "bytes", "--out", at("ts_full")], 1, ["cannot write", "tiny_shakespeare.txt.part", "HINT"], setup=limit)
    expect("tinyshakespeare", base + ["-m", "bytes", "--out", at("ts_full")])
    c.check(contents("ts_full") == before, "goes on when there is room again")
    expect("tinyshakespeare", base + ["-m", "bytes", "--out", at("served/shakespeare.txt/x")], 1, ["cannot make the folder", "HINT"])
    put("served/short.txt", b"short")
    expect("tinyshakespeare", ["-m", "bytes", "--sha256", "any", "--url", at("served/short.txt"), "--out", at("ts_short")], 1, ["tokens; 33,793 are needed"])
    requests()


def tinystories():
    rng = random.Random(2)
    stories = [[f"\n {words(rng, rng.randrange(5, 60))} \n" for _ in range(60)] for _ in range(4)]
    stories[2][5] = "half a pair: \ud83d, and a whole one: \ud83d\ude00"
    with tarfile.open(at("served/stories.tar.gz"), "w:gz") as archive:
        for number in (2, 0, 3, 1):  # not in the order of the names
            path = at(f"data{number:02d}.json")
            with open(path, "w") as file:
                json.dump([{"story": story, "summary": "x"} for story in stories[number]], file)
            archive.add(path, f"./data{number:02d}.json")
    expected = []
    for number, items in enumerate(stories):
        items = list(items)
        random.Random(1337 + max(number - 1, 0)).shuffle(items)
        expected.append([token for item in items for token in [0] + as_bytes(item.strip().encode("utf-16", "surrogatepass").decode("utf-16", "replace"))])
    base = ["-m", "bytes", "--sha256", "any", "--url", HOST + "/plain/stories.tar.gz"]
    expect("tinystories", base + ["--out", at("stories")])
    c.check(made_of("stories", "TinyStories_val.bin") == expected[0] and made_of("stories", "TinyStories_train.bin") == sum(expected[1:], []), "tinystories: the tokens")
    c.check(sorted(os.listdir(at("stories"))) == ["TinyStories_train.bin", "TinyStories_val.bin", "made.json", "tokenizer.bin"], "tinystories: nothing else is left")
    wanted = contents("stories")
    expect("tinystories", base + ["--out", at("stories"), "--workers", "1"], words=["up to date"])
    expect("tinystories", base + ["--out", at("stories1"), "--workers", "1", "--keep"])
    name = hashlib.sha256((HOST + "/plain/stories.tar.gz").encode()).hexdigest()[:8] + ".TinyStories_all_data.tar.gz"
    c.check(contents("stories1") == wanted and os.path.exists(at("stories1", name)), "tinystories: one thread, and --keep")
    killed_everywhere("tinystories", base + ["--out", at("stories_kill")], "stories_kill", wanted, 24)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (30000, 30000))
    expect("tinystories", base + ["--out", at("stories_full")], 1, ["cannot write", ".bin.part", "HINT"], setup=limit)
    expect("tinystories", base + ["--out", at("stories_full")], words=["going on after"])
    c.check(contents("stories_full") == wanted, "tinystories: goes on when there is room again")
    expect("tinystories", ["-m", "bytes", "--sha256", "any", "--url", at("served/shakespeare.txt"), "--out", at("stories_bad")], 1, ["cannot be unpacked", "HINT"])

    # another archive at the same address, and another one with a checksum
    old = hashlib.sha256(get("served/stories.tar.gz")).hexdigest()
    with tarfile.open(at("served/stories.tar.gz"), "w:gz") as archive:
        for number in (3, 2):
            archive.add(at(f"data{number:02d}.json"), f"data{3 - number:02d}.json")
    others = contents("stories1")
    requests()
    expect("tinystories", base + ["--out", at("stories1"), "--keep", "--force"])
    changed = contents("stories1")
    c.check(len(requests()) == 1 and changed["TinyStories_val.bin"] != others["TinyStories_val.bin"], "tinystories: --force takes the archive that is there now")
    expect("tinystories", base + ["--out", at("stories2")])
    c.check(contents("stories2") == changed, "tinystories: forced as if made in an empty folder")
    os.makedirs(at("stories3"))
    for name in os.listdir(at("stories1")):
        if not name.endswith((".bin", ".json")):
            os.rename(at("stories1", name), at("stories3", name))
    new = hashlib.sha256(get("served/stories.tar.gz")).hexdigest()
    expect("tinystories", ["-m", "bytes", "--sha256", new, "--url", HOST + "/plain/stories.tar.gz", "--out", at("stories3")])
    c.check(contents("stories3") == changed and old != new, "tinystories: what was unpacked from elsewhere is not used")
    c.check(not [name for name in os.listdir(at("stories3")) if name.startswith("unpacked")], "tinystories: nor is it left", str(os.listdir(at("stories3"))))


def fineweb():
    rng = random.Random(3)
    files = [[words(rng, rng.randrange(1, 200)) for _ in range(80)] for _ in range(3)]
    files[1][7] = ""
    expected = [token for documents in files for document in documents for token in [0] + as_bytes(document)]
    folder, listing = "served/datasets/HuggingFaceFW/fineweb-edu/resolve/main/", []
    for number, documents in enumerate(files):
        name = f"sample/10BT/{number:03d}_00000.jsonl"
        sha = put(folder + name, "".join(json.dumps({"text": document, "id": "x"}) + "\n" for document in documents).encode())
        listing.insert(0, {"type": "file", "path": name, "size": 1, "lfs": {"oid": sha}})
    put("served/api/datasets/HuggingFaceFW/fineweb-edu/tree/main/sample/10BT", json.dumps(listing).encode())
    size = 20000
    names = [f"edu_fineweb_{'train' if k else 'val'}_{k:06d}.bin" for k in range((len(expected) + size - 1) // size)]
    base = ["-t", "edu", "-m", "bytes", "--shard-size", str(size)]

    def check_tokens(out, count=len(names)):
        ok = sorted(f for f in os.listdir(at(out)) if f.startswith("edu_")) == sorted(names[:count]) and all(
            made_of(out, name) == expected[k * size:(k + 1) * size] for k, name in enumerate(names[:count]))
        c.check(ok and len(names) > 3, f"fineweb, {count} shards: the tokens", str(sorted(os.listdir(at(out)))))
    web = base + ["--url", HOST + "/cut"]
    expect("fineweb", web + ["--out", at("edu")])
    check_tokens("edu")
    wanted = contents("edu")
    requests()
    expect("fineweb", web + ["--out", at("edu")], words=["up to date"])
    c.check(not requests(), "a finished fineweb asks for nothing")
    web = base + ["--url", HOST + "/plain"]
    killed_everywhere("fineweb", web + ["--out", at("edu_kill")], "edu_kill", wanted, 20)
    requests()
    for shards in (1, 1, 3):
        text = expect("fineweb", web + ["--out", at("edu_grow"), "--shards", str(shards)])
        check_tokens("edu_grow", shards + 1)
        if shards == 1 and "up to date" not in text:
            half = f"{json.loads(get('edu_grow/progress.json'))['source']:03d}_00000.jsonl"
            c.check(os.path.exists(at("edu_grow", half)) and f"kept for more shards: {half}" in text, "a file that is half used stays", text)
    c.check("going on after 40,000 tokens" in text, "more shards are added to those that are there", text)
    c.check(progress_note("edu_grow")["source"] > 0, "the first file is used up")
    put("edu_grow/000_00000.jsonl", b"left by a run that was killed before it could remove it")
    expect("fineweb", web + ["--out", at("edu_grow")])
    check_tokens("edu_grow")
    c.check(contents("edu_grow") == wanted, "fineweb: grown, the same bytes")
    c.check(sum(half in line for line in requests()) == 1 and not [f for f in os.listdir(at("edu_grow")) if ".jsonl" in f], "fineweb: it is fetched once, and goes at the end")

    # notes: of a run that wanted more shards, and damaged ones
    part, step = base + ["--url", HOST + "/plain", "--out", at("edu_note")], 30
    while True:
        shutil.rmtree(at("edu_note"), ignore_errors=True)
        if maker("fineweb", part, kill=step)[0] != "killed":
            break
        note = progress_note("edu_note")
        if note and note["shard"] > 1 and note["count"]:
            break
        step += 3
    c.check(note and note["count"] > 0, "a run that ended within a shard", str(note))
    expect("fineweb", part + ["--shards", "0"], words=["going on after", "tokens in"])
    c.check(progress_note("edu_note")["count"] == note["count"], "fewer shards than there are: they are left as they are")
    for key in ("shard", "count", "source", "document", "skip", "done"):
        put("edu_note/progress.json", json.dumps({k: v for k, v in note.items() if k != key}).encode())
        expect("fineweb", part, 1, ["progress.json", "is damaged", "--force"])
    put("edu_note/progress.json", json.dumps(dict(note, done={"x": None})).encode())
    expect("fineweb", part, 1, ["progress.json", "is damaged", "--force"])
    put("edu_note/files.json", b'{"files": [{"path": 7}]}')
    expect("fineweb", part, 1, ["progress.json", "is damaged", "--force"])
    expect("fineweb", part + ["--force"])
    c.check(contents("edu_note") == wanted, "forced, the whole set")
    shorter = ["--shard-size", str(2 * size), "--out", at("edu_grow"), "--url", HOST + "/plain", "-t", "edu", "-m", "bytes"]
    expect("fineweb", shorter, 1, ["shard_size: 20000, not 40000", "HINT"])
    expect("fineweb", shorter + ["--force"])
    c.check(sum(name.startswith("edu_") for name in os.listdir(at("edu_grow"))) == (len(names) + 1) // 2, "forced: the old shards are gone")
    local = ["--url", at(folder, "sample/10BT"), "--out", at("edu_local")]
    expect("fineweb", base + local)
    c.check(contents("edu_local") == wanted and len(os.listdir(at(folder, "sample/10BT"))) == 3, "fineweb from a folder, which is left as it is")
    for number, name in enumerate(sorted(os.listdir(at(folder, "sample/10BT")))):
        put(f"blank/{name}", get(folder, "sample/10BT", name).replace(b"\n", b"\n\n" if number else b"\n \n") + b"\n")
    blank = base + ["--url", at("blank"), "--out", at("edu_blank")]
    expect("fineweb", blank)
    c.check(contents("edu_blank") == wanted, "blank lines are no documents")
    killed_everywhere("fineweb", blank, "edu_blank", wanted, 4)
    put("bad/a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n')
    expect("fineweb", base + ["--url", at("bad"), "--out", at("edu_bad")], 1, ["a.jsonl', line 2", "HINT"])
    expect("fineweb", base + ["--url", at("beside"), "--out", at("edu_bad")], 1, ["there is no .parquet"])
    expect("fineweb", base + ["--url", HOST + "/plain/nothing", "--out", at("edu_bad2")], 1, ["HTTP 404", "HINT"])
    put("pq/a.parquet", b"PAR1 and no more")
    hide = functools.partial(sys.modules.__setitem__, "pyarrow", None)
    expect("fineweb", base + ["--url", at("pq"), "--out", at("edu_pq")], 1, ["needs the library pyarrow", "python3 -m venv", "bin/pip install pyarrow"], setup=hide)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return c.skip("fineweb from parquet files", "pyarrow is not installed")
    expect("fineweb", base + ["--url", at("pq"), "--out", at("edu_pq")], 1, ["is no whole parquet file", "HINT"])
    for number, documents in enumerate(files):
        table = pyarrow.table({"id": [1] * len(documents), "text": documents})
        pyarrow.parquet.write_table(table, at("pq", f"{number}.parquet"), row_group_size=30, compression="none")
    os.remove(at("pq/a.parquet"))
    data = get("pq/1.parquet")
    first = data.index(files[1][30].encode()[:20])  # in the second of three row groups
    put("spoiled/1.parquet", data[:first - 60] + b"\xff" * 120 + data[first + 60:])
    text = expect("fineweb", base + ["--url", at("spoiled"), "--out", at("edu_pq")], 1, ["1.parquet', row group 1 of 3", "damaged: remove it"])
    c.check(len(text[text.find("ERROR: "):].strip().splitlines()) == 2, "a corrupt page: one line and a hint", text)
    os.makedirs(at("numbers"))
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), at("numbers/a.parquet"))
    expect("fineweb", base + ["--url", at("numbers"), "--out", at("edu_pq_int")], 1, ["a.parquet' has a column text of type int64"])
    pyarrow.parquet.write_table(pyarrow.table({"words": ["a"]}), at("numbers/a.parquet"))
    expect("fineweb", base + ["--url", at("numbers"), "--out", at("edu_pq_int")], 1, ["a.parquet' has no column text"])
    pq = base + ["--url", at("pq"), "--out", at("edu_pq2")]
    expect("fineweb", pq)
    c.check(contents("edu_pq2") == wanted, "fineweb from parquet files")
    killed_everywhere("fineweb", pq, "edu_pq2", wanted, 6)


def hellaswag():
    rng = random.Random(4)
    items = [{"ctx": words(rng, rng.randrange(3, 40)), "endings": [words(rng, rng.randrange(1, 12)) for _ in range(4)], "label": rng.randrange(4), "ind": i} for i in range(150)]
    sha = put("served/hs.jsonl", "".join(json.dumps(item) + "\n" for item in items).encode())
    base = ["-m", "bytes", "--sha256", sha, "--url", HOST + "/cut/hs.jsonl"]
    expect("hellaswag", base + ["--out", at("hs")], words=["150 questions"])
    expected = [(item["label"], as_bytes(item["ctx"]), [as_bytes(" " + ending) for ending in item["endings"]]) for item in items]
    c.check(read_questions(get("hs/hellaswag_val.bin")) == expected, "hellaswag: what another reader finds in the file")
    killed_everywhere("hellaswag", base + ["--out", at("hs_kill")], "hs_kill", contents("hs"), 10)
    other = [{"question": item["ctx"], "choices": item["endings"], "answer": "ABCD"[item["label"]]} for item in items[:9]]
    other += [{"question": "How many?", "choices": [1, 2, 3, 4], "answer": "2"}]
    put("mmlu.jsonl", "\n".join(json.dumps(item) for item in other).encode())
    expect("hellaswag", ["-m", "bytes", "--input", at("mmlu.jsonl")])
    expected = [(item["label"], as_bytes(f"Question: {item['ctx']}\n\nAnswer:"), [as_bytes(" " + ending) for ending in item["endings"]]) for item in items[:9]]
    expected += [(2, as_bytes("Question: How many?\n\nAnswer:"), [as_bytes(f" {n}") for n in (1, 2, 3, 4)])]
    c.check(read_questions(get("beside/mmlu/mmlu.bin")) == expected, "questions with choices and answers")
    good = json.dumps(items[0]).encode() + b"\n"
    for bad, message in ((b"{", "line 2: no JSON"), (b'{"ctx": "x", "endings": ["a"], "label": 0}', "line 2: no list of 4"), (b'{"endings": []}', "line 2: no text"),
                         (b'{"ctx": "x", "endings": ["a", "b", "c", "d"], "label": ""}', "line 2: \"label\" or \"answer\" is"),
                         (b'{"ctx": "' + b"x" * 40000 + b'", "endings": ["a", "b", "c", "d"], "label": 1}', "question 1 (from 0) has 80"),
                         (b'{"ctx": "\\u0000", "endings": ["a", "b", "c", "d"], "label": 1}', "question 1 (from 0) has an empty context")):
        put("bad.jsonl", good + bad)
        expect("hellaswag", ["-m", "bytes", "--input", at("bad.jsonl"), "--out", at("hs_bad")], 1, [message])
    put("tokenizer.jsonl", good)
    expect("hellaswag", ["-m", "bytes", "--input", at("tokenizer.jsonl"), "--out", at("hs_bad")], 1, ["a tokenizer's name", "another name"])
    put("bad.jsonl", b"\n")
    expect("hellaswag", ["-m", "bytes", "--input", at("bad.jsonl"), "--out", at("hs_bad")], 1, ["holds 0 questions"])


def make_text():
    rng = random.Random(5)
    put("text.txt", "\n\n".join(words(rng, 40) for _ in range(300)).encode())
    base = ["--text", at("text.txt")]
    expect("make_text", base + ["--out", at("mt")])
    wanted = contents("mt")
    c.check(interleaved(get("text.txt"), *[bytes(read_shard(wanted[name])) for name in ("train.bin", "val.bin")]), "make_text: all of the text, once, in order")
    expect("make_text", base + ["--out", at("mt")], words=["up to date"])
    c.check(set(json.loads(get("mt/made.json"))) == set(json.loads(get("hs/made.json"))), "make_text: the note is like the others'")
    expect("make_text", base + ["--out", at("stories")], 1, ["holds a finished data set of another kind", "HINT"])
    c.check(os.path.exists(at("stories/TinyStories_train.bin")), "make_text leaves another maker's files")
    killed_everywhere("make_text", base + ["--out", at("mt_kill")], "mt_kill", wanted, 16)
    maker("make_text", base + ["--out", at("mt_other")], kill=80)
    put("text.txt", b"\n\n".join(get("text.txt").split(b"\n\n")[::-1]))
    for out in ("mt_other", "mt_fresh"):
        expect("make_text", base + ["--out", at(out)])
    c.check(contents("mt_other") == contents("mt_fresh") != wanted, "make_text: another text after an interruption starts anew")


# ---------------------------------------------------------------------------------------------------------------------
# GPT-2's tokens, with a vocabulary of our own: 256 bytes and 50,000 pairs of them

def made_up_vocabulary():
    """(the text of the merges, {bytes: token}). GPT-2 writes byte b as itself if it is printable, else as chr(256 + n), the n-th that is not."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    order = printable + [b for b in range(256) if b not in printable]
    letter = {b: chr(b) if b in printable else chr(256 + order.index(b) - len(printable)) for b in order}
    pairs = [(a, b) for a in range(256) for b in range(256)]
    random.Random(6).shuffle(pairs)
    merges = "#version: 0.2\n" + "".join(f"{letter[a]} {letter[b]}\n" for a, b in pairs[:50000])
    tokens = [bytes([b]) for b in order] + [bytes(pair) for pair in pairs[:50000]]
    return merges.encode(), {token: i for i, token in enumerate(tokens)}


def encode_by_hand(text, ranks):
    """Tokens of a text of ASCII letters, digits, blanks and signs."""
    out = []
    for piece in re.findall(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", text):
        parts = [bytes([b]) for b in piece.encode()]
        while True:
            best = min(((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))), default=(1 << 30, 0))
            if best[0] == 1 << 30:
                break
            parts[best[1]:best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
        out += [ranks[part] for part in parts]
    return out


# How GPT-2 cuts text into words before it merges bytes [Radford et al. 2019, the released encoder].
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt2():
    import common
    import tokenizer
    merges, ranks = made_up_vocabulary()
    put("served/vocab.bpe", merges)
    tokens = sorted(ranks, key=ranks.get) + [b"<|endoftext|>"]
    file = struct.pack("<256I", 20240328, 2, 50257, 50256, *[0] * 252) + b"".join(bytes([len(token)]) + token for token in tokens)

    def setup(encoder=tokenizer.ENCODER, read_only=False, batch=1000):
        os.environ["GPT2_MERGES_URL"] = HOST + "/cut/vocab.bpe"
        tokenizer.GPT2_MERGES_SHA256, tokenizer.GPT2_TOKENIZER_SHA256 = hashlib.sha256(merges).hexdigest(), hashlib.sha256(file).hexdigest()
        tokenizer.ENCODER, common.BATCH_BYTES = encoder, batch
        signal.alarm(60)
        access = os.access
        if read_only:
            os.access = lambda path, mode: access(path, mode) and not (path == common.HERE and mode & os.W_OK)
    os.chdir(TMP)  # no gpt2_tokenizer.bin of the user's here
    sha = hashlib.sha256(get("served/shakespeare.txt")).hexdigest()
    base = ["--sha256", sha, "--url", at("served/shakespeare.txt")]
    expect("tinyshakespeare", base + ["--out", at("g_none")], 1, ["encoder program, and it cannot be made", "HINT", "make -C", "--tokenizer bytes"],
           setup=functools.partial(setup, at("nothing/build/tokenize_text")))
    if not os.access(tokenizer.ENCODER, os.X_OK) and run("make -s build/tokenize_text")[0]:
        return c.skip("GPT-2's tokens", "build/tokenize_text cannot be built")

    def tokens_of(folder):
        made = contents(folder)
        return sum((read_shard(made[f]) for f in sorted(made, key=lambda f: f[-10:]) if f.startswith("fineweb")), [])
    rng = random.Random(7)
    ascii_words = ["the", "cat", "it's", "we'll", "x1y22", "Hi!", "(a)", "  gap", "\n", "don't'"]
    documents = [" ".join(rng.choice(ascii_words) for _ in range(rng.randrange(0, 90))) for _ in range(250)]
    documents[3] = "<|endoftext|> is text here"
    documents[4] = "a\0b"
    expected = [token for document in documents for token in [50256] + encode_by_hand(document, ranks)]
    put("docs/a.jsonl", "".join(json.dumps({"text": document}) + "\n" for document in documents).encode())
    put("text.txt", "\n\n".join(f"{number}: {document}" for number, document in enumerate(documents[5:] * 3)).encode())
    put("tree/Makefile", f"build/tokenize_text:\n\tmkdir -p build; cp '{tokenizer.ENCODER}' $@\n".encode())
    expect("fineweb", ["--url", at("docs"), "--shard-size", "5000", "--out", at("g")], setup=functools.partial(setup, at("tree/build/tokenize_text")), words=["making the encoder"])
    c.check(tokens_of("g") == expected, f"GPT-2's tokens of {len(documents)} documents")
    c.check(get("beside/gpt2_tokenizer.bin") == file == contents("g")["tokenizer.bin"], "tokenizer file, from merges whose download was cut")
    put("counting", f"#!/bin/sh\necho >> '{at('runs')}'\nexec '{tokenizer.ENCODER}' \"$@\"\n".encode())
    os.chmod(at("counting"), 0o700)
    expect("fineweb", ["--url", at("docs"), "--out", at("g_nul")], setup=functools.partial(setup, at("counting"), batch=1 << 20))
    c.check(tokens_of("g_nul") == expected and get("runs") == b"\n" * 3, "a document with a NUL goes alone, the others together", f"{len(get('runs'))} runs of the encoder")
    requests()
    expect("tinyshakespeare", base + ["--out", at("g_ts")], setup=setup)
    expect("make_text", ["--text", at("text.txt"), "--tokenizer", "gpt2", "--out", at("g_mt")], setup=setup)
    parts = [read_shard(contents("g_mt")[name]) for name in ("train.bin", "val.bin")]
    c.check(max(map(max, parts)) < 50256 and interleaved(get("text.txt").replace(b"\0", b""), *[b"".join(tokens[token] for token in part) for part in parts]), "make_text with GPT-2's tokens")
    put("latin1.txt", get("text.txt").replace(b"cat", b"ch\xe2t\xff"))
    expect("make_text", ["--text", at("latin1.txt"), "--tokenizer", "gpt2", "--out", at("g_latin1")], setup=setup)
    parts = [b"".join(tokens[token] for token in read_shard(get("g_latin1", name))) for name in ("train.bin", "val.bin")]
    c.check(interleaved(get("latin1.txt").replace(b"\0", b""), *parts), "bytes that are not UTF-8 stay")
    expect("hellaswag", ["--input", at("mmlu.jsonl"), "--out", at("g_hs")], setup=setup)
    c.check(not requests(), "the vocabulary is fetched once")
    texts = [b"".join(tokens[t] for t in context) for _, context, _ in read_questions(get("g_hs/mmlu.bin"))]
    c.check(texts == [f"Question: {json.loads(line)['question']}\n\nAnswer:".encode() for line in get("mmlu.jsonl").splitlines()], "hellaswag with GPT-2's tokens")

    put("beside/gpt2_tokenizer.bin", file[:-1])
    expect("tinyshakespeare", base + ["--out", at("g_bad")], 1, ["is no whole tokenizer file", "HINT"], setup=setup)
    put("beside/gpt2_tokenizer.bin", file[:-14] + b"\x0d<|endOFtext|>")
    expect("tinyshakespeare", base + ["--out", at("g_bad")], 1, ["does not hold GPT-2's 50257 tokens"], setup=setup)
    os.remove(at("beside/gpt2_tokenizer.bin"))
    for folder, read_only in (("g_readonly", True), ("beside", False)):
        expect("tinyshakespeare", base + ["--out", at(folder)], setup=functools.partial(setup, read_only=read_only))
        c.check(get(folder, "gpt2_tokenizer.bin") == file and get(folder, "tiny_shakespeare_train.bin") == get("g_ts/tiny_shakespeare_train.bin"), f"the tokenizer is made in {folder}")
        os.remove(at(folder, "gpt2_tokenizer.bin"))

    try:
        import tiktoken
    except ImportError:
        return c.skip("GPT-2's tokens are tiktoken's", "it is not installed")
    judge = tiktoken.Encoding("made up", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    documents += [words(rng, 50) + "\u00a0\u2003\r\n\t  \u0301x\U0001f600" for _ in range(100)]
    put("docs/a.jsonl", "".join(json.dumps({"text": document}) + "\n" for document in documents).encode())
    expect("fineweb", ["--url", at("docs"), "--out", at("g_judge")], setup=setup)
    c.check(tokens_of("g_judge") == [token for document in documents for token in [50256] + judge.encode_ordinary(document)], "GPT-2's tokens are tiktoken's")


def main():
    global TMP, HOST
    with tempfile.TemporaryDirectory(prefix="check_data.") as TMP:
        for name in ("served", "beside"):
            os.makedirs(at(name))
        environment = dict(os.environ, CHECK_DATA_FOLDER=at("served"), CHECK_DATA_LOG=at("log"))
        server = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "serve"], stdout=subprocess.PIPE, env=environment)
        HOST = f"http://127.0.0.1:{int(server.stdout.readline())}"
        os.environ.update(no_proxy="127.0.0.1")
        for name in ("TINYSHAKESPEARE_URL", "TINYSTORIES_URL", "FINEWEB_URL", "HELLASWAG_URL", "GPT2_MERGES_URL"):
            os.environ.pop(name, None)
        try:
            for check in (downloads, finished_sets, tinystories, fineweb, hellaswag, make_text, gpt2):
                start = time.monotonic()
                try:
                    check()
                except Exception:  # a check that cannot go on is one that failed
                    c.check(False, check.__name__, traceback.format_exc())
                if "-t" in sys.argv:
                    print(f"{check.__name__}: {time.monotonic() - start:.1f} s")
        finally:
            os.chdir(ROOT)
            server.terminate()
            server.wait()
    c.end()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
