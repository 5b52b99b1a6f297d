#!/usr/bin/env python3
"""check_chaos.py [--minutes M] [--seed N] [--program P] [--only exact|elastic] - a run whose processes are killed at random all the time ends as if nothing had happened to it

scripts/run_until_done.sh keeps a run of a few ranks going on the CPU device, which saves every few steps, while this script kills, stops and signals its ranks, its
launcher and the script itself, takes away the disk, and damages the newest checkpoint between two starts. After M minutes it lets go; the run must then reach its last
step. Two runs, half of the time each: one that always has as many ranks, whose log and weights must be those of an undisturbed run to the bit, and one that goes on
on another number of ranks each time (float32), whose losses may differ by the noise of other micro-steps on one rank.

Every start waits, before it runs, until this script has looked at the folder: so between two starts nothing runs. What is awaited is progress (a line, a checkpoint,
a process that is gone), not a time: a slow machine has fewer starts. --minutes 30 is the long form of it; --program: not to build one.
"""
import argparse
import atexit
import collections
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from checking import Checks, ROOT, WAIT_FOR_ALL, clean_environment, free_port, trainer
from llmc_files import Run, V, get, put, shard

parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=0.6)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--program")
parser.add_argument("--only", choices=("exact", "elastic"))
args = parser.parse_args()
c = Checks()
rng = random.Random(args.seed)
tmp = tempfile.mkdtemp(prefix="check_chaos.")
MPIRUN = shutil.which("mpirun")
LAUNCHERS = ["mpirun"] * bool(MPIRUN) + ["torchrun's variables", "a shared file"]
CLEAN = dict(clean_environment(), OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=tmp, RESTART_SECONDS="0", MAX_FAILURES="1000000")
T, BATCH = 32, 8  # tokens a sequence, sequences a step
SAVE_EVERY, KEEP, MAJOR_EVERY, VAL_EVERY = 10, 2, 100, 50
COMMON = (f"--train-data {tmp}/train.bin --val-data {tmp}/val.bin --seq-len {T} -d {BATCH * T} --layers 2 --heads 4 --channels 64 --vocab-size {V} --learning-rate 1e-3 "
          f"--schedule constant --sample-every 0 --val-every {VAL_EVERY} --val-steps 4 --data-order sequence")
ENDLESS, LAST_STEPS = 1000000000, 40  # steps while there is killing, and those after it
PATIENCE, WATCHDOG, SHORT_WATCHDOG = 300, 120, 3  # seconds: without any change; of a rank that is not to be missed; of one that is

# ---------------------------------------------------------------------------- processes

PLACES = """export CHAOS_START={mark}
cd {home}
"""
BY_MPIRUN = PLACES + """exec {mpirun} -np {P} --oversubscribe {program} "$@" {more} >{n}.out
"""
# A launcher as srun: hands USR1 on, ends when all have ended, with the largest exit code
BY_HAND = PLACES + """pids=()
trap 'told=1; kill -USR1 "${{pids[@]}}" 2>/dev/null' USR1
: >{n}.out
for ((rank = 0; rank < {P}; rank++)); do
    CHAOS_RANK=$rank {place} "$@" {more} >>{n}.out &
    pids+=($!)
done
{wait}"""
# The command of the script: its n-th start waits for n.go, which says what to do
COMMAND = """#!/bin/bash
cd {home} || exit 1
n=$(($(cat starts) + 1))
echo $n >starts
while [ ! -f $n.go ]; do kill -0 {pid} || exit 1; sleep 0.01; done
. ./$n.go
"""


def processes(mark):
    """{pid: (rank or None, name)} of those that have an environment of a start whose mark begins so; a rank is a process of the trainer."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = get(f"/proc/{pid}/environ")
            if f"CHAOS_START={mark}".encode() not in env:
                continue
            stat = get(f"/proc/{pid}/stat").decode(errors="replace")
            if stat.rsplit(")", 1)[1].split()[0] in "ZX":
                continue
            rank = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|CHAOS_RANK)=(\d+)\0", env)
            is_trainer = os.readlink(f"/proc/{pid}/exe") == program
            found[int(pid)] = (int(rank.group(1)) if rank and is_trainer else None, stat.split("(", 1)[1].rsplit(")", 1)[0])
        except OSError:  # it is gone
            pass
    return found


def send(pids, what):
    """How many of them were still there."""
    told = 0
    for pid in pids:
        try:
            os.kill(pid, what)
            told += 1
        except ProcessLookupError:
            pass
    return told


@atexit.register
def clean_up():
    for job in jobs:
        job.stop()
    shutil.rmtree(tmp, ignore_errors=True)


def messages(err):
    return re.findall(r"^(?:ERROR|usage error|error): .*", err, flags=re.M)


def start_text(launcher, P, n, home, more):
    """What bash has to do for a start of P ranks, but for the arguments of the command."""
    place = program
    if launcher == "torchrun's variables":
        place = f"RANK=$rank WORLD_SIZE={P} LOCAL_RANK=$rank LOCAL_WORLD_SIZE={P} MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()} {program}"
    elif launcher == "a shared file":
        place = f"{program} -pn {P} -pr $rank -pi fs -pf {home}"
    return (BY_MPIRUN if launcher == "mpirun" else BY_HAND).format(mark=f"{home}:{n}:", home=home, P=P, n=n, mpirun=MPIRUN, program=program, place=place, more=more, wait=WAIT_FOR_ALL)


class Start:
    """One start of the command, from its begin until the next one waits."""
    def __init__(self, job, n, P, launcher, plan, more):
        self.job, self.n, self.P, self.launcher, self.plan = job, n, P, launcher, plan
        self.path = f"{job.home}/{n}.out"
        self.text, self.saves, self.err_from = "", 0, os.path.getsize(f"{job.home}/script.err")
        self.done = []  # what was done to it
        self.due = None  # (may it end with this exit code, least messages, most messages), once it was done
        self.limited = False  # the disk is full
        self.early = plan.early and rng.random() < 0.25
        self.temporary, self.half = [f for f in job.files() if f.endswith(".tmp")], job.half()
        self.resumes = max(job.good, default=None)
        self.damaged = [step for step in job.done() if step > (self.resumes or 0)]
        more += f" --watchdog-seconds {SHORT_WATCHDOG if self.early or plan.hangs else WATCHDOG}"
        put(f"{job.home}/{n}.new", start_text(launcher, P, n, job.home, more).encode())
        os.rename(f"{job.home}/{n}.new", f"{job.home}/{n}.go")

    def ranks(self):
        return {rank: pid for pid, (rank, _) in processes(f"{self.job.home}:{self.n}:").items() if rank is not None}

    def read(self):
        """What it has printed until now."""
        if os.path.exists(self.path) and os.path.getsize(self.path) != len(self.text):
            self.text = get(self.path).decode("ascii", "replace")  # a byte a character
        return self.text

    def err(self):
        return get(f"{self.job.home}/script.err")[self.err_from:].decode("utf-8", "replace")

    def goes_on(self):
        """Has it saved many times since what should have ended it?"""
        saves = self.read().count("Writing checkpoint at step ")
        if not self.due:
            self.saves = saves
        return saves > self.saves + 20

    def act(self, what, number):
        """Notes what was done to so many processes."""
        if number:
            self.done.append(what + (" while it started" if self.early else ""))
        return number

    def __str__(self):
        return f"start {self.n}, {self.P} ranks by {self.launcher}: {', '.join(self.done) or 'nothing done yet'}"


# ---------------------------------------------------------------------------- what is done to a start: generators that yield while they wait

ENDED_BADLY = lambda code: code not in (0, 2, 75)


def pause(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def moment(s):
    """A random moment: after some checkpoints, or while it starts. Returns its ranks."""
    if s.early:
        yield from pause(rng.random() * 1.5)
        while len(s.ranks()) < s.P:  # Open MPI may hang or crash when it is told something while it makes them
            yield
        return s.ranks()
    saves = rng.randrange(2, 5)
    while s.read().count("Writing checkpoint at step ") < saves:
        yield
    yield from pause(rng.random() * 0.3)
    return s.ranks()


def kill_rank(s):
    ranks = yield from moment(s)
    if s.act("kill -9 of a rank", send([rng.choice(list(ranks.values()))], signal.SIGKILL)):
        s.due = ENDED_BADLY, 0 if s.early else 1, s.P - 1 if s.early else 1


def kill_all(s):
    ranks = yield from moment(s)
    if s.act("kill -9 of all ranks", send(ranks.values(), signal.SIGKILL)):
        s.due = ENDED_BADLY, 0, 1


def kill_in_save(s):
    """In the midst of the files of a checkpoint, or of their removal: all stand still while that is looked up."""
    ranks = yield from moment(s)
    every = rng.random() < 0.5
    victims = list(ranks.values()) if every else [rng.choice(list(ranks.values()))]
    for tries in itertools.count(1):
        if s.job.half() - s.half:
            time.sleep(rng.random() * 0.005)
            send(ranks.values(), signal.SIGSTOP)
            if s.job.half() - s.half:
                break
            send(ranks.values(), signal.SIGCONT)
        time.sleep(0.0005)  # it takes a few ms
        if tries % 100 == 0:
            yield
    if s.act(f"kill -9 of {'all ranks' if every else 'a rank'} in a save", send(victims, signal.SIGKILL)):
        s.due = ENDED_BADLY, 0 if every else 1, 1
    send(set(ranks.values()) - set(victims), signal.SIGCONT)


def kill_launcher(s):
    yield from moment(s)
    found = [pid for pid, (rank, name) in processes(f"{s.job.home}:{s.n}:").items() if rank is None and name in ("mpirun", "orterun", "prterun")]
    if s.act("kill -9 of mpirun", send(found, signal.SIGKILL)):
        s.due = ENDED_BADLY, 0, 1


def stop_rank(s):
    ranks = yield from moment(s)
    if s.act("SIGSTOP of a rank", send([rng.choice(list(ranks.values()))], signal.SIGSTOP)):
        s.due = ENDED_BADLY, 1, 1


def ask(s, what, pid, number):
    """A signal that makes it save and end. Who gets it while it starts may not listen yet, and hears it again."""
    for again in (False, True) if s.early else (False,):
        while again and s.read().count("Writing checkpoint at step ") < 4:
            yield
        if (send([pid], number) if again else s.act(what, send([pid], number))):
            s.due = ((lambda code: code != 0), 0, s.P) if s.early or s.limited else ((lambda code: code == 75), 0, 0)


def signal_rank(s):
    ranks = yield from moment(s)
    what = rng.choice((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT))
    yield from ask(s, f"{what.name} to a rank", rng.choice(list(ranks.values())), what)


def usr1_script(s):
    yield from moment(s)
    yield from ask(s, "SIGUSR1 to the script", s.job.script.pid, signal.SIGUSR1)


def term_script(s):
    yield from moment(s)
    s.job.told_to_stop = True
    yield from ask(s, "SIGTERM to the script", s.job.script.pid, signal.SIGTERM)


def signal_twice(s):
    yield from moment(s)
    s.act("SIGTERM twice to the script", send([s.job.script.pid], signal.SIGTERM))
    s.job.told_to_stop = True
    s.due = (lambda code: code != 0), 0, 1
    time.sleep(rng.random() * 0.05)
    send([s.job.script.pid], signal.SIGTERM)


# name of f, whether it may come while the ranks start, whether a rank will hang
Plan = collections.namedtuple("Plan", "f early hangs")
PLANS = [Plan(kill_rank, True, False), Plan(kill_rank, True, False), Plan(kill_all, True, False), Plan(kill_in_save, False, False), Plan(kill_in_save, False, False),
         Plan(stop_rank, False, True), Plan(signal_rank, True, False), Plan(usr1_script, True, False), Plan(term_script, True, False), Plan(signal_twice, False, False)]
if MPIRUN:
    PLANS.append(Plan(kill_launcher, True, False))


def nothing(s):
    return
    yield


def file_size(path):
    """0: it is gone, as old checkpoints go."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def full_disk(s):
    """A rank may not write files of the size that its part of a checkpoint has, until it says so."""
    while s.read().count("Writing checkpoint at step ") < 2:
        yield
    ranks = s.ranks()
    rank = rng.choice(list(ranks))
    floor = (file_size(f"{s.job.folder}/main.log") if rank == 0 else 0) + 20000  # its log can go on
    room = min([size for size in (file_size(f"{s.job.folder}/{f}") for f in s.job.files() if re.fullmatch(r"(state|model)_.*\.bin", f)) if size], default=0)
    if floor >= room:
        return
    try:
        before = resource.prlimit(ranks[rank], resource.RLIMIT_FSIZE)
        resource.prlimit(ranks[rank], resource.RLIMIT_FSIZE, (rng.randrange(floor, room), before[1]))
        s.limited = True
        s.done.append("a full disk of a rank")
        while "was not written" not in s.err():
            yield
        yield from pause(rng.random() * 0.3)
        resource.prlimit(ranks[rank], resource.RLIMIT_FSIZE, before)
    except (ProcessLookupError, PermissionError) as e:
        s.job.cannot = str(e)


def short_stop(s):
    """Some or all ranks stand still for a moment: nobody minds."""
    while "step " not in s.read():
        yield
    ranks = list(s.ranks().values())
    ranks = rng.sample(ranks, rng.randrange(len(ranks)) + 1)
    s.done.append("SIGSTOP and SIGCONT")
    send(ranks, signal.SIGSTOP)
    yield from pause(rng.random())
    send(ranks, signal.SIGCONT)


MEANWHILE = [nothing] * 5 + [full_disk] * 2 + [short_stop]


# ---------------------------------------------------------------------------- between two starts


def damage(job, how):
    """Changes a file of the newest checkpoint, if another one is left."""
    if len(job.good) < 2:
        return None
    step = max(job.good)
    marker = f"DONE_{step:08d}"
    file = rng.choice([f for f in job.files() if f"_{step:08d}" in f and not f.endswith(".tmp") and (how == "remove" or f != marker)])
    path = f"{job.folder}/{file}"
    if how == "remove":
        os.unlink(path)
    else:
        data = bytearray(get(path))
        at = rng.randrange(len(data))
        if how == "change a bit of":
            data[at] ^= 1 << rng.randrange(8)
        elif how == "overwrite a block of":
            data[at:at + 4096] = bytes(x ^ 0x55 for x in data[at:at + 4096])
        else:
            del data[at:]
        put(path, data)
    job.good.discard(step)
    job.damaged[step] = job.identity(step)
    return f"{how} {re.sub('[0-9_]+.*', '', file)}, newest checkpoint"


def litter(job, _):
    step = max(job.good, default=0) + rng.choice((0, SAVE_EVERY))
    name = rng.choice((f"model_{step:08d}.bin.tmp", f"state_{step:08d}_{rng.randrange(4):05d}.bin.tmp", f"DONE_{step:08d}.tmp", "main.log.tmp", "writable.1.tmp"))
    put(f"{job.folder}/{name}", rng.randbytes(rng.randrange(500000)))
    return "a garbage .tmp file"


BETWEEN = [(None, None)] * 5 + [(damage, "change a bit of"), (damage, "overwrite a block of"), (damage, "cut"), (damage, "remove"), (damage, "remove"), (litter, None)]


class Deck:
    """Draws all cards in a random order, then again."""
    def __init__(self, cards):
        self.cards, self.left = cards, []

    def draw(self):
        if not self.left:
            self.left = rng.sample(self.cards, len(self.cards))
        return self.left.pop()


plans, meanwhile, between = Deck(PLANS), Deck(MEANWHILE), Deck(BETWEEN)

# ---------------------------------------------------------------------------- a run


class Job:
    """A run under scripts/run_until_done.sh. ranks: how many there may be; arguments: of every start; zeros: -z of a start."""
    def __init__(self, name, ranks, arguments, zeros):
        self.name, self.possible, self.zeros = name, ranks, zeros
        self.home, self.folder = f"{tmp}/{name}", f"{tmp}/{name}/run"
        self.arguments = f"{COMMON} {arguments}"
        os.makedirs(self.folder)
        put(f"{self.home}/starts", b"0")
        put(f"{self.home}/script.err", b"")
        put(f"{self.home}/command", COMMAND.format(home=self.home, pid=os.getpid()).encode())
        os.chmod(f"{self.home}/command", 0o755)
        self.script = self.start = self.cannot = None
        self.plan, self.other = iter(()), iter(())
        self.told_to_stop = False
        self.good, self.held, self.damaged, self.writer = set(), set(), {}, {}
        self.lines, self.refused, self.halves, self.longest_orphan, self.last = [], set(), 0, 0.0, 0
        self.counts = collections.Counter()
        self.problems = 0
        jobs.append(self)

    def files(self):
        return os.listdir(self.folder)

    def done(self):
        return [int(f[5:]) for f in self.files() if re.fullmatch(r"DONE_\d{8}", f)]

    def half(self):
        """The files of checkpoints that are not whole yet, or no more."""
        done = self.done() + list(self.damaged)
        return {f for f in self.files() if f.endswith(".tmp") or (re.match(r"(state|model)_\d{8}", f) and int(f[6:14]) not in done)}

    def identity(self, step):
        """Of the marker of a checkpoint: another one after it was written again."""
        try:
            found = os.stat(f"{self.folder}/DONE_{step:08d}")
            return found.st_ino, found.st_mtime_ns
        except FileNotFoundError:
            return None

    def alive(self):
        return processes(f"{self.home}:")

    def log(self):
        path = f"{self.folder}/restarts.log"
        return get(path).decode("utf-8", "replace") if os.path.exists(path) else ""

    def ended(self):
        """What the script noted of each start that ended: (exit code, the rest of the entry)."""
        parts = re.split(r"^\S+Z start \d+ ended with exit code (\d+)", self.log(), flags=re.M)[1:]
        return [(int(code), rest) for code, rest in zip(parts[::2], parts[1::2])]

    def wait_for_orphans(self):
        began = time.monotonic()
        while self.alive() and time.monotonic() - began < PATIENCE:
            time.sleep(0.02)
        self.longest_orphan = max(self.longest_orphan, time.monotonic() - began)
        left = self.alive()
        send(left, signal.SIGKILL)
        return [f"processes stay behind: {left}"] if left else []

    def look(self):
        """After a start: what is in the folder now. Returns what is wrong with it."""
        wrong = []
        for step, before in list(self.damaged.items()):
            if self.identity(step) not in (None, before):
                del self.damaged[step]
        files, done = self.files(), self.done()
        self.good = set(done) - set(self.damaged)
        for step in sorted(self.good):
            states = {int(f[15:20]) for f in files if re.fullmatch(rf"state_{step:08d}_\d{{5}}\.bin", f)}
            if f"model_{step:08d}.bin" not in files or states != set(range(self.writer.get(step, -1))):
                wrong.append(f"DONE_{step:08d} is there, but not what it stands for: model and the states of {self.writer.get(step)} ranks")
                self.good.discard(step)
        majors = {step for step in self.held if step % MAJOR_EVERY == 0}
        kept = set(sorted(self.held)[-KEEP:]) | majors
        if len(self.good) < len(kept) or max(self.good, default=0) < max(self.held, default=0) or not majors <= self.good:
            wrong.append(f"fewer good checkpoints than before: {sorted(self.held)}, now {sorted(self.good)}, damaged: {sorted(self.damaged)}")
        self.halves += bool(self.half())
        return wrong

    def end_of(self, s, code, entry, final):
        """What is wrong with a start that has ended."""
        text, err, wrong = s.read(), s.err(), []
        err = err.split("\nrun_until_done: start ")[0]
        run, found = Run("", code, text, err), messages(err)
        self.lines += [(x["step"], x["loss"], x["norm"]) for x in run.steps]
        self.last = max([self.last] + [x["step"] for x in run.steps])
        self.writer.update({step: s.P for step in self.done() if step > (s.resumes or 0)})
        resumed = re.search(r"^(?:resuming from step (\d+) in |no checkpoint found)", text, flags=re.M)
        if resumed:
            step = resumed.group(1) and int(resumed.group(1))
            if step != s.resumes:
                wrong.append(f"it resumed from step {step}, the newest good checkpoint is of step {s.resumes}")
            for bad in s.damaged:
                if len(re.findall(rf"^checkpoint of step {bad} is (?:damaged|not usable: \S.*)$", text, flags=re.M)) != 1:
                    wrong.append(f"it does not say once that the checkpoint of step {bad} is damaged")
            cleaned = re.search(r"^removed (\d+) temporary files", text, flags=re.M)
            if int(cleaned.group(1) if cleaned else 0) != len(s.temporary):
                wrong.append(f"there were {len(s.temporary)} temporary files: {s.temporary}")
            due = list(range((step or 0) + 1, (step or 0) + 1 + len(run.steps)))
            if [x["step"] for x in run.steps] != due:
                wrong.append(f"it trained steps {[x['step'] for x in run.steps]}")
        elif not s.early:
            wrong.append("it does not say from where it resumes")
        refused = [int(x) for x in re.findall(r"^WARNING: checkpoint at step (\d+) was not written", err, flags=re.M)]
        self.refused |= set(refused)
        if len(refused) != len(set(refused)) or (refused and not s.limited):
            wrong.append(f"checkpoints were not written: {refused}")
        begun, deleted = (re.findall(rf"^{what} checkpoint at step (\d+)$", text, flags=re.M) for what in ("Writing", "Deleting"))
        lost = {int(step) for step in begun[:-1]} - {int(step) for step in deleted} - set(refused) - set(self.done())
        if lost and s.plan.f is not kill_launcher:  # its ranks go on for a moment, unheard
            wrong.append(f"nobody says why the checkpoints of {sorted(lost)} are not there")
        if "cannot be read back" in err or "could not be removed" in err or "main.log': " in err:
            wrong.append("a warning that is not due")
        if final:
            allowed, least, most = (lambda code: code == 0), 0, 0
        elif s.due:
            allowed, least, most = s.due
        else:
            allowed, least, most = (lambda code: bool(s.plan.hangs or s.early) and code == 1), 0, 1  # a slow machine, and the short watchdog
        if not allowed(code):
            wrong.append(f"its exit code is {code}" + ("" if s.due or final else ": it ended by itself"))
        noticed = s.launcher == "mpirun" and re.search(r"^(mpirun|prterun) (noticed|detected) that ", err, flags=re.M)
        if len(found) > most or len(found) + bool(noticed) < least:
            wrong.append(f"it has {len(found)} error messages, {least} to {most} are due")
        if code == 75 and not s.limited and run.steps and max(self.done(), default=0) < run.steps[-1]["step"]:
            wrong.append(f"saved, it said, but the newest checkpoint is of step {max(self.done(), default=0)}, the last step was {run.steps[-1]['step']}")
        if found and not final and found[0][:80] not in entry:
            wrong.append(f"restarts.log does not say why: {entry[:300]}")
        return wrong

    def finish(self, final=False):
        """Checks the start that has ended, and the folder."""
        s, self.start, self.plan, self.other = self.start, None, iter(()), iter(())
        entries = self.ended()
        code, entry = entries[s.n - 1] if len(entries) >= s.n else (-1, "")
        wrong = self.wait_for_orphans()
        wrong += self.end_of(s, code, entry, final) + self.look()
        if len(entries) != s.n:
            wrong.append(f"restarts.log has {len(entries)} entries after {s.n} starts")
        self.counts.update(s.done)
        self.problems += bool(wrong)
        what = f"{self.name}, {s} (--seed {args.seed})"
        c.check(not wrong, what, "\n  " + "\n  ".join(wrong) + f"\n  stderr: {s.err()[-1500:]}\n  stdout ends: {s.read()[-700:]}\n  files: {sorted(self.files())}" if wrong else "")

    def begin(self, n, final):
        """Lets the n-th start run."""
        if not final:
            f, how = between.draw()
            did = f and f(self, how)
            if did:
                self.counts[did] += 1
        self.held = set(self.good)
        self.steps = max(self.good, default=0) + LAST_STEPS if final else ENDLESS
        launcher, plan = rng.choice(LAUNCHERS), plans.draw()
        if plan.f is kill_launcher:
            launcher = "mpirun"
        s = Start(self, n, rng.choice(self.possible), launcher, plan if not final else Plan(nothing, False, False), f"-x {self.steps} -z {rng.choice(self.zeros)}")
        self.start, self.plan = s, s.plan.f(s)
        f = nothing if final else meanwhile.draw()
        self.other = (nothing if f is short_stop and plan.hangs else f)(s)  # it would wake the one that hangs

    def run_script(self):
        self.told_to_stop = False
        with open(f"{self.home}/script.out", "ab") as out, open(f"{self.home}/script.err", "ab") as err:
            self.script = subprocess.Popen([f"{ROOT}/scripts/run_until_done.sh", f"{self.home}/command", "--output-dir", self.folder] + self.arguments.split() +
                                           ["-n", str(SAVE_EVERY), "-nk", str(KEEP), "-nm", str(MAJOR_EVERY)], cwd=tmp, env=CLEAN, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                           start_new_session=True)

    def run(self, seconds):
        """Until it is done. False: it is not, and a check says why."""
        began, changed, state, final, n = time.monotonic(), time.monotonic(), None, False, 0
        self.run_script()
        while True:
            ended, waits = self.script.poll() is not None, int(get(f"{self.home}/starts") or n)
            if self.start and (waits > n or ended):
                self.finish(final)
                if ended and final and self.script.returncode == 0:
                    break
                if final or self.problems > 4:
                    return self.give_up("the last start failed" if final else "too many defects")
            if ended and not self.told_to_stop:
                return self.give_up(f"the script ended with exit code {self.script.returncode}")
            if ended:
                self.run_script()
            elif waits > n:
                n, final = waits, time.monotonic() - began > seconds
                self.begin(n, final)
            for what in (self.other, self.plan):
                next(what, None)
            now = n, os.path.getsize(f"{self.home}/script.err"), self.start and len(self.start.read())
            if now != state:
                changed, state = time.monotonic(), now
            if time.monotonic() - changed > PATIENCE:
                return self.give_up(f"{self.start} hangs")
            if self.start and not final and self.start.goes_on():
                return self.give_up(f"{self.start}, and it goes on")
            time.sleep(0.005)
        self.starts, self.seconds, self.output = n, time.monotonic() - began, get(f"{self.home}/{n}.out").decode()
        return True

    def give_up(self, why):
        c.check(False, f"{self.name}: {why} (--seed {args.seed})", f"{self.alive()}\n{self.log()[-2000:]}")
        self.stop()
        return False

    def stop(self):
        if self.script and self.script.poll() is None:
            self.script.kill()
            self.script.wait()
        send(self.alive(), signal.SIGKILL)

    def undisturbed(self, more, P=1):
        """Begins the same steps once more, without a break: (its folder, the process)."""
        folder = f"{self.home}/undisturbed{more.replace(' ', '')}"
        launcher = "torchrun's variables" if P > 1 else "alone"
        text = start_text(launcher, P, os.path.basename(folder), self.home, f"-x {self.steps} {more} -n {ENDLESS} -o {folder}")
        return folder, subprocess.Popen(["bash", "-c", text, "undisturbed"] + self.arguments.split(), env=CLEAN, stdin=subprocess.DEVNULL, start_new_session=True)

    def check_end(self):
        """The folder of a run that is done."""
        name = f"{self.name} (--seed {args.seed})"
        c.check(re.search(r"ended with exit code 0 .*: done\n\Z", self.log()), f"{name}: restarts.log ends with done", self.log()[-500:])
        kinds = re.findall(r"^s:(\d+) (trl|tel):", get(f"{self.folder}/main.log").decode(), flags=re.M)
        due = [(str(s), kind) for s in range(self.steps + 1) for kind in ("tel", "trl") if (s < self.steps if kind == "trl" else s % VAL_EVERY == 0 or s == self.steps)]
        at = next((i for i, pair in enumerate(zip(kinds, due)) if pair[0] != pair[1]), min(len(kinds), len(due)))
        c.check(kinds == due, f"{name}: main.log has each step once, in order", f"{len(kinds)} lines, {len(due)} are due; the first that is another one: {kinds[at:at + 5]}, due {due[at:at + 5]}")
        others = {f for f in self.files() if not re.match(r"(DONE|model|state)_", f)}
        c.check(others == {"main.log", "restarts.log", "goodput.log"}, f"{name}: nothing is left over", sorted(others))
        done = sorted(self.done())
        majors = set(range(MAJOR_EVERY, self.steps + 1, MAJOR_EVERY))
        c.check(done[-1:] == [self.steps] and len(done) >= KEEP and set(done[:-KEEP]) <= majors and majors - self.refused <= set(done), f"{name}: the newest {KEEP} and the major checkpoints are kept",
                f"{done}, not written: {sorted(self.refused)}")
        some = set(done[-3:] + rng.sample(done, min(3, len(done))))
        for step in sorted(some):
            copy = f"{self.home}/copy.{step}"
            os.makedirs(copy)
            for f in self.files():
                if f"_{step:08d}" in f:
                    os.link(f"{self.folder}/{f}", f"{copy}/{f}")
            r = subprocess.run([program] + self.arguments.split() + ["-x", str(step), "--resume", "-o", copy], env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            c.check(r.returncode == 0 and f"resuming from step {step} in " in r.stdout and "nothing to train" in r.stdout, f"{name}: the checkpoint of step {step} loads", r.stdout[-500:] + r.stderr)

    def report(self):
        goodput = re.findall(r"^goodput .*", self.output, flags=re.M)
        print(f"{self.name}: {self.starts} starts in {self.seconds:.0f} s, {self.steps} steps; {len(self.lines)} were trained; a launcher's ranks outlived it by {self.longest_orphan:.1f} s at "
              f"most; {self.halves} starts left half a checkpoint\n{self.name}: {goodput[-1] if goodput else 'no goodput'}")
        for what, count in sorted(self.counts.items()):
            print(f"  {count:5d}  {what}")
        if self.cannot:
            c.skip("a full disk", f"cannot limit the size of files of a process: {self.cannot}")


jobs = []


def last_val(folder):
    return get(f"{folder}/main.log").decode().splitlines()[-1]


def check_exact():
    """Always as many ranks: to the bit."""
    P, zero = rng.choice((2, 3, 4)), rng.choice("01")
    dtype = rng.choice(("float32", "float8 --moment-dtype float8", "float8 --master-dtype float32 --fp8-recipe delayed"))
    job = Job("exact", [P], f"--dtype {dtype} -b 2", [zero])
    print(f"exact: {dtype}, {P} ranks, -z {zero}, seed {args.seed}", flush=True)
    if not job.run(args.minutes * 30):
        return
    job.report()
    job.check_end()
    folder, process = job.undisturbed(f"-z {zero}", P)
    process.wait()
    name = f"exact (--seed {args.seed})"
    run = Run("", process.returncode, get(f"{folder}.out").decode(), "")
    due = {x["step"]: (x["step"], x["loss"], x["norm"]) for x in run.steps}
    c.check(process.returncode == 0 and len(due) == job.steps, f"{name}: an undisturbed run", str(run))
    wrong = [line for line in job.lines if line != due.get(line[0])]
    c.check(not wrong, f"{name}: each step of each start has the loss and the norm of the undisturbed run", f"{len(wrong)} of {len(job.lines)} differ, the first is {wrong[:1]}, due {due.get(wrong[0][0]) if wrong else ''}")
    c.check(get(f"{folder}/main.log") == get(f"{job.folder}/main.log"), f"{name}: main.log to the bit", f"last lines {last_val(job.folder)}, due {last_val(folder)}")
    file = f"model_{job.steps:08d}.bin"
    c.check(get(f"{folder}/{file}") == get(f"{job.folder}/{file}"), f"{name}: the weights to the bit", file)


def check_elastic():
    """Another number of ranks at each start: within the noise of other micro-steps on one rank."""
    job = Job("elastic", [2, 3, 4], "--dtype float32", "01")
    job.arguments += " -b 2"
    print(f"elastic: float32, 2 to 4 ranks, -z 0 or 1, seed {args.seed}", flush=True)
    if not job.run(args.minutes * 30):
        return
    job.report()
    job.check_end()
    job.arguments = job.arguments.replace(" -b 2", "").replace("--val-steps 4", "")
    runs = {}
    for b, (folder, process) in {b: job.undisturbed(f"-b {b} --val-steps {BATCH // b}") for b in (1, 2, 8)}.items():
        process.wait()
        runs[b] = Run("", process.returncode, get(f"{folder}.out").decode(), "")
        c.check(process.returncode == 0 and len(runs[b].losses) == job.steps, f"elastic: an undisturbed run, -b {b}", str(runs[b]))
    name = f"elastic (--seed {args.seed})"
    if any(len(r.losses) != job.steps for r in runs.values()):
        return
    noise = max(abs(x - y) for a in runs for b in runs for x, y in zip(runs[a].losses, runs[b].losses))
    found = max(abs(loss - runs[2].losses[step - 1]) for step, loss, _ in job.lines)
    c.check(found <= 2 * noise + 1e-6, f"{name}: losses of all starts", f"differ from the undisturbed run's by {found:.6f}, of other micro-steps on one rank by {noise:.6f}")
    noise_val = max(abs(x - y) for a in runs for b in runs for x, y in zip(runs[a].vals, runs[b].vals))
    val = float(re.findall(r"^val loss (\S+)$", job.output, flags=re.M)[-1])
    c.check(abs(val - runs[2].vals[-1]) <= 2 * noise_val + 1e-6, f"{name}: the last validation loss", f"{val}, undisturbed {runs[2].vals[-1]}, noise {noise_val:.6f}")
    print(f"elastic: losses differ from an undisturbed run's by {found:.6f} at most, of other micro-steps on one rank by {noise:.6f}")


program = os.path.realpath(trainer(c, args.program))
tokens, x = [], 1
for _ in range(60000):
    x = (x * 5 + rng.choices((0, 1, 2, 3), (70, 20, 8, 2))[0]) % V
    tokens.append(x)
shard(f"{tmp}/train.bin", tokens[:50000])
shard(f"{tmp}/val.bin", tokens[50000:])
for name, f in (("exact", check_exact), ("elastic", check_elastic)):
    if args.only in (None, name):
        c.section(name, f, int(args.minutes * 300) + 1800)
c.end()
