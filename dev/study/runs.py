"""runs.py - starts a trainer and reads what it prints; paired statistics of such runs. Standard library only.

train() returns what one run printed, as a dict:
    losses      {step: validation loss in nats a token}, the last one is the final loss
    ms          average time of an optimizer step
    memory      device memory in MiB: {class: MiB, "total": MiB}, as the program counts it
    watts       mean power of the GPU over the lines of --gpu-info-every, None where NVML does not answer
    device      the device's name, as printed
    tokens_a_step
    seconds     wall time of the process
The statistics are those of paired differences: Student's t, in closed form for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
Tests: dev/check_study.py
"""
import hashlib
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class RunFailed(Exception):
    """A trainer that ended with an error, or printed what cannot be read; the text says all."""


def fail(message, hint):
    print(f"ERROR: {message}\nHINT: {hint}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------------------------------------------------------------
# one run

def parse(text):
    """What a run printed. Validations come in the order of time: the step of each is that of the last progress line before it, which --log-every must not hide."""
    losses, step = {}, 0
    for line in text.splitlines():
        m = re.match(r"step +(\d+)/\d+ \|", line)
        if m:
            step = int(m.group(1))
        m = re.match(r"val loss (\S+)$", line)
        if m:
            losses[step] = float(m.group(1))
    ms = re.search(r"^total average iteration time: (\S+) ms$", text, flags=re.M)
    memory = re.search(r"^device memory, MiB: (.*) of \S+$", text, flags=re.M)
    device = re.search(r"^\| device +\| (.*?) +\|$", text, flags=re.M)
    batch = re.search(r"total_batch_size=(\d+)", text)
    watts = [float(w) for w in re.findall(r"\| +(\d+) W / +(?:\d+ W|n/a) \|", text)]
    if not losses or not ms or not memory or not device or not batch:
        raise RunFailed(f"the output of the run lacks its losses, times, memory, device or batch size; it ends with\n{text[-1500:]}")
    if not all(math.isfinite(x) for x in losses.values()):
        raise RunFailed(f"the run diverged: validation losses {losses}")
    classes = {name: float(mib) for name, mib in (part.rsplit(" ", 1) for part in memory.group(1).split(", "))}
    return {"losses": losses, "ms": float(ms.group(1)), "memory": classes, "device": device.group(1), "tokens_a_step": int(batch.group(1)), "watts": statistics.mean(watts) if watts else None}


def train(command, env=None, log=None):
    """Runs the command (a list) to its end. env: variables to set besides the present ones. log: a file that gets its output. Raises RunFailed; ends the child when
    this process is ended (SystemExit of a signal handler, KeyboardInterrupt)."""
    began = time.monotonic()
    child = subprocess.Popen(command, env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = child.communicate()
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait()
    if log:
        with open(log, "w", encoding="utf-8") as f:
            f.write(text)
    if child.returncode:
        raise RunFailed(f"exit code {child.returncode} from\n  {' '.join(command)}\nits output ends with\n{text[-1500:]}")
    return dict(parse(text), seconds=time.monotonic() - began)


def options_of(trainer):
    """The options that the program has, and llm.c's letters: {"--dtype": "", "--model": "-e", ...}."""
    try:
        r = subprocess.run([trainer, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as e:
        fail(f"there is no program '{trainer}' to run: {e.strerror}", "make cpu (or make gpu) builds it")
    return dict(re.findall(r"^  (--[a-z0-9-]+)(?: [A-Z]+)?(?:, (-\w+))?(?= |$)", r.stdout, flags=re.M))


def digest(*paths):
    """12 hexadecimal digits over the contents of files."""
    h = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as f:
            h.update(f.read())
    return h.hexdigest()[:12]


def text_data(folder):
    """Checks that folder holds train.bin and val.bin; makes them where that is data/text, as `make train` does. Returns the folder."""
    if folder is None:
        folder = os.path.join(ROOT, "data/text")
        if not os.path.exists(os.path.join(folder, "made.json")):
            subprocess.run([sys.executable, os.path.join(ROOT, "data/make_text.py"), "--out", folder], stdout=sys.stderr, check=True)
    for name in ("train.bin", "val.bin"):
        if not os.path.exists(os.path.join(folder, name)):
            fail(f"there is no '{os.path.join(folder, name)}'", "python3 data/make_text.py makes both, in data/text")
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# statistics

def t_cdf(t, df):
    """P(T <= t) of Student's t with df = 1, 2, ... degrees of freedom."""
    theta = math.atan2(t, math.sqrt(df))
    c, s = math.cos(theta), math.sin(theta)
    if df % 2:
        term, total = c, 0.0
        for k in range(3, df + 1, 2):
            total += term
            term *= c * c * (k - 1) / k
        inside = 2 / math.pi * (theta + s * total)
    else:
        term, total = 1.0, 0.0
        for k in range(2, df + 1, 2):
            total += term
            term *= c * c * (k - 1) / k
        inside = s * total
    return (1 + inside) / 2


def t_quantile(p, df):
    """The t below which a share p, 0.5 <= p < 1, of Student's t with df degrees of freedom lies."""
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def paired(differences):
    """(mean, half width of its two-sided 95 % interval, one-sided 95 % upper bound); of fewer than two differences the last two are None."""
    n, mean = len(differences), statistics.mean(differences)
    if n < 2:
        return mean, None, None
    error = statistics.stdev(differences) / math.sqrt(n)
    return mean, t_quantile(0.975, n - 1) * error, mean + t_quantile(0.95, n - 1) * error
