"""checking.py - what the dev/check_*.py scripts share: counting, the repository's files, C sources without comments

A script makes `c = Checks()`, calls c.check(ok, name, detail) any number of times and ends with c.end(), which prints the closing line that
dev/run_tests.sh adds up and exits with 1 if a check failed. Standard library only.
"""
import fnmatch
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The end of a launcher in bash, whose trap on a signal sets told=1: waits for all of pids, also through signals, and ends with the largest exit code
WAIT_FOR_ALL = """worst=0
for pid in "${pids[@]}"; do
    told=1
    while [ -n "$told" ]; do told='' code=0; wait $pid || code=$?; done
    [ $code -gt $worst ] && worst=$code
done
exit $worst
"""


class Stop(BaseException):
    """Raised in the midst of a section by a signal; no `except` for ordinary errors takes it."""


class Checks:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, ok, name, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {name}" + (f": {detail}" if detail else ""))

    def skip(self, name, reason):
        self.skipped += 1
        print(f"skip {name}: {reason}")

    def section(self, name, f, seconds=600):
        """Runs f(), a part of a script. What it raises is one failure with its traceback, and so is an f that takes longer; the script goes on. After a SIGTERM (whoever
        started the script has no time left) it ends, with its closing line."""
        def stop(number, _):
            raise Stop(f"no end after {seconds} s" if number == signal.SIGALRM else "SIGTERM")
        before = [(number, signal.signal(number, stop)) for number in (signal.SIGALRM, signal.SIGTERM)]
        began = time.monotonic()
        try:
            signal.alarm(seconds)
            f()
            signal.alarm(0)
        except (Exception, Stop) as e:
            signal.alarm(0)
            self.check(False, name, "\n" + traceback.format_exc())
            if str(e) == "SIGTERM":
                self.end()
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)


def run(command, cwd=ROOT, env=None, timeout=600):
    """(exit code, stdout and stderr together) of a shell command line, or of a list of arguments; no standard input. 124: it ran out of time."""
    try:
        r = subprocess.run(command, shell=isinstance(command, str), executable="/bin/bash" if isinstance(command, str) else None, cwd=cwd, stdin=subprocess.DEVNULL,
                           env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)
        return r.returncode, r.stdout
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode(errors="replace") + f"\n(no end after {timeout} s)"


def clean_environment():
    """This process' environment without what a launcher, or a make, around it has put there."""
    launchers = ("OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "GPT_", "GLOO_", "NCCL_", "MAKEFLAGS")
    return {k: v for k, v in os.environ.items() if not k.startswith(launchers)}


def free_port():
    """Free, and so is the one above it, where the ranks meet; below those that systems hand out to anyone who connects. Of several checks at once, each its own."""
    ports = random.Random()
    while True:
        port = 20000 + ports.randrange(5000) * 2
        try:
            for x in (port, port + 1):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", x))
            return port
        except OSError:
            pass


def trainer(c, given):
    """Path of the trainer to check: the one that was given, else the CPU build, made now. Ends the script if it cannot be built."""
    if given:
        return os.path.abspath(given)
    code, out = run("make -s train_gpt_fp8_cpu", env=clean_environment())
    if code:
        c.check(False, "make train_gpt_fp8_cpu", out[-2000:])
        c.end()
    return os.path.join(ROOT, "train_gpt_fp8_cpu")


def repository_files():
    """Paths relative to ROOT of what is, or would be, in git."""
    code, out = run("git ls-files --cached --others --exclude-standard")
    if code == 0:
        return sorted(f for f in out.splitlines() if os.path.isfile(os.path.join(ROOT, f)))
    found = []  # not a git checkout (an archive): everything but what .gitignore names at the top
    ignored = [line.strip("/\n") for line in read(".gitignore").splitlines() if line.startswith("/")]
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [d for d in folders if d not in (".git", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted(f for f in found if not any(fnmatch.fnmatch(f.split("/")[0], p) for p in ignored if "/" not in p) and not f.startswith("data/text/"))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def strip_c(text, strings=True):
    """C or C++ text with comments (and, if asked, the inside of string and character literals) blanked; line breaks stay."""
    def blank(match):
        s = match.group(0)
        if s[0] in "\"'" and not strings:
            return s
        return re.sub(r"[^\n]", " ", s) if s[0] == "/" else s[0] + re.sub(r"[^\n]", " ", s[1:-1]) + s[-1]
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def line_of(text, position):
    return text.count("\n", 0, position) + 1
