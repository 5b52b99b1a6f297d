#!/usr/bin/env python3
"""check_ranks.py [PROGRAM] - several processes train as one: launchers, data parallelism, checkpoints for any number of ranks, failures, bytes sent

Ranks are processes of this machine. Most jobs are started with torchrun's variables, by TCP and shared memory, since that needs nothing installed; those
that need mpirun, or torchrun itself, are skipped where it is missing. Bounds on losses come from what one rank does when its micro-steps are cut in
another way. PROGRAM: not to build one. Options: --only NAME (one section), --seed N (of what is killed when).
"""
import argparse
import array
import atexit
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from checking import Checks, clean_environment, free_port, run, trainer
from llmc_files import LlmcLoader, Run, Shape, V, get, lookup_loss, model_bytes, put, questions_file, random_tokens, read_model, shard, weights

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?")
parser.add_argument("--only", default="")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
c = Checks()
tmp = tempfile.mkdtemp(prefix="check_ranks.")
HOST = socket.gethostname()
MPIRUN = shutil.which("mpirun")
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3") if os.path.exists(p) and run([p, "-c", "import importlib.util as u; exit(not u.find_spec('torch'))"])[0] == 0), None)
# torchrun, also that of torch 1.13 under Python 3.11, where its `for s in Std` misses Std.NONE and it cannot start anything
TORCHRUN = """import torch.distributed.elastic.multiprocessing.api as api, torch.distributed.run as run
api.Std.from_str = classmethod(lambda cls, text: cls(int(text)))
run.main()"""
CLEAN = dict(clean_environment(), OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=tmp)
program = trainer(c, args.program)

# ---------------------------------------------------------------------------- jobs of several processes

jobs = []


class Result:
    """How a job ended. run: what rank 0 printed; err: the standard errors of all ranks together; codes: by rank (mpirun: its own one)."""
    def __init__(self, what, codes, outs, errs, seconds):
        self.what, self.codes, self.outs, self.errs, self.seconds = what, codes, outs, errs, seconds
        self.err = "".join(errs)
        self.run = Run(what, codes[0], outs[0], self.err)
        self.losses, self.vals, self.evals, self.lines = self.run.losses, self.run.vals, self.run.evals, self.run.lines
        self.norms = [step["norm"] for step in self.run.steps]
        self.ok = not any(codes)

    def __str__(self):
        return (f"\n  job: {self.what}\n  exit codes {self.codes} after {self.seconds:.1f} s\n  stderr: {self.err[-2500:]}\n  stdout of rank 0 ends: "
                f"{self.outs[0][-1200:]}")


class Job:
    """P processes. kind: what starts them, or whose variables are given to them. each(rank): more arguments of that rank; wrap(rank): a command before it."""
    def __init__(self, kind, P, arguments, each=None, wrap=None, cwd=tmp):
        self.P, self.began = P, time.monotonic()
        self.name = f"job{len(jobs)}"
        self.what = f"{kind} x {P}: {arguments}"
        jobs.append(self)
        port = free_port()
        words = arguments.split()
        self.commands, self.environments = [], []
        for r in range(1 if kind in ("alone", "mpirun", "torchrun itself", "script") else P):
            env, more = dict(CLEAN, CHECK_RANKS_JOB=f"{tmp}/{self.name}"), []
            command = (wrap(r) if wrap else []) + [program] + words + (each(r) if each else [])
            if kind == "torchrun":
                env.update(RANK=str(r), WORLD_SIZE=str(P), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(P), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            elif kind == "srun":
                env.update(SLURM_PROCID=str(r), SLURM_STEP_NUM_TASKS=str(P), SLURM_NTASKS=str(P), SLURM_LOCALID=str(r), SLURM_NODEID="0", SLURM_STEP_ID="0",
                           SLURM_STEP_TASKS_PER_NODE=str(P), SLURM_STEP_NODELIST=HOST, SLURM_JOB_NODELIST=HOST, SLURM_JOB_ID=str(os.getpid() * 1000 + len(jobs)))
            elif kind == "tcp":
                more = ["-pn", str(P), "-pr", str(r), "-pi", "tcp", "-ps", "127.0.0.1", "--server-port", str(port)]
            elif kind == "fs":
                more = ["-pn", str(P), "-pr", str(r), "-pi", "fs", "-pf", tmp]
            elif kind == "mpirun":
                command = [MPIRUN, "-np", str(P), "--oversubscribe"] + command
            elif kind == "script":
                command = ["bash"] + words
            elif kind == "torchrun itself":
                command = [PYTHON, "-c", TORCHRUN, "--no_python", f"--nproc_per_node={P}", f"--master_port={port}"] + command
            self.commands.append(command + more)
            self.environments.append(env)
        self.files = [(open(f"{tmp}/{self.name}.{r}.out", "wb"), open(f"{tmp}/{self.name}.{r}.err", "wb")) for r in range(len(self.commands))]
        self.processes = [subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=o, stderr=e, start_new_session=True)
                          for command, env, (o, e) in zip(self.commands, self.environments, self.files)]
        for o, e in self.files:
            o.close()
            e.close()

    def alive(self):
        """{pid: its rank} of the processes of this job, those of launchers included (rank None)."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    env = dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)
                with open(f"/proc/{pid}/stat") as f:
                    zombie = f.read().rsplit(")", 1)[1].split()[0] in "ZX"
            except OSError:
                continue
            if env.get(b"CHECK_RANKS_JOB") == f"{tmp}/{self.name}".encode() and not zombie:
                rank = env.get(b"OMPI_COMM_WORLD_RANK") or env.get(b"RANK") or env.get(b"SLURM_PROCID")
                found[int(pid)] = int(rank) if rank is not None else None
        return found

    def pid(self, rank):
        return self.processes[rank].pid if len(self.processes) == self.P else next((p for p, r in self.alive().items() if r == rank), None)

    def seen(self, pattern, seconds=60):
        """Waits until rank 0 has printed it. False: it ended without, or time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            running = self.processes[0].poll() is None
            if re.search(pattern, get(f"{tmp}/{self.name}.0.out").decode("utf-8", "replace")):
                return True
            if not running:
                return False
            time.sleep(0.01)
        return False

    def send(self, rank, what):
        """A signal to a rank. False: it is gone, or was never there."""
        try:
            pid = self.pid(rank)
            if pid:
                os.kill(pid, what)
            return pid is not None
        except ProcessLookupError:
            return False

    def kill(self):
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self, seconds=120):
        end = time.monotonic() + seconds
        late = ""
        for p in self.processes:
            try:
                p.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = f"\n(no end after {seconds} s)"
        took = time.monotonic() - self.began
        if late:
            self.kill()
            for p in self.processes:
                p.wait()
        texts = [[get(f"{tmp}/{self.name}.{r}.{x}").decode("utf-8", "replace") for r in range(len(self.processes))] for x in ("out", "err")]
        texts[1][0] += late
        return Result(self.what, [124 if late and p.returncode == 0 else p.returncode for p in self.processes], texts[0], texts[1], took)


def end_jobs():
    for job in jobs:
        if any(p.poll() is None for p in job.processes):
            job.kill()
            job.wait()


@atexit.register
def clean_up():
    end_jobs()
    if os.path.ismount(f"{tmp}/disk"):
        run(["umount", "-l", f"{tmp}/disk"])
    shutil.rmtree(tmp, ignore_errors=True)


def job_text(job, where):
    """What its ranks have printed until now, one after the other; where: "out" or "err"."""
    return "".join(get(f"{tmp}/{job.name}.{r}.{where}").decode("utf-8", "replace") for r in range(len(job.processes)))


def wait_for(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def fill(path, room):
    """Lets the file grow until its disk has so many bytes left."""
    disk = os.statvfs(os.path.dirname(path))
    with open(path, "ab") as f:
        try:
            f.write(bytes(max(0, disk.f_bavail * disk.f_frsize - room)))
        except OSError:  # somebody else took it
            pass


def freeze(job):
    for p in job.processes:
        p.send_signal(signal.SIGSTOP)


def thaw(job):
    for p in job.processes:
        p.send_signal(signal.SIGCONT)


def train(P, arguments, kind="torchrun", **more):
    return Job("alone" if P == 1 and kind == "torchrun" else kind, P, arguments, **more).wait()


def train_all(runs):
    """Several at once: {key: (P, arguments)}."""
    started = {key: Job("alone" if P == 1 else "torchrun", P, arguments) for key, (P, arguments) in runs.items()}
    return {key: job.wait() for key, job in started.items()}


def fine(r, name, steps=None):
    """Did it run to its end, and was it printed once?"""
    ok = r.ok and (steps is None or len(r.losses) == steps) and not any(r.outs[1:])
    c.check(ok, name, f"{len(r.losses)} step lines{'' if steps is None else f' instead of {steps}'}, other ranks printed {[len(o) for o in r.outs[1:]]} bytes{r}")
    return ok


def messages(err):
    """The errors in it: a list of their first lines."""
    return re.findall(r"^(?:ERROR|usage error|error): .*", err, flags=re.M)


# ---------------------------------------------------------------------------- data and models

T = 32
rng = random.Random(7)
text, x = [], 1
for _ in range(30000):
    x = (x * 5 + rng.randrange(3)) % V
    text.append(x)
shard(f"{tmp}/train.bin", text[:24000])
shard(f"{tmp}/val.bin", text[24000:])
DATA = f"--train-data train.bin --val-data val.bin --seq-len {T} --learning-rate 1e-3"
MODEL = f"{DATA} --layers 2 --heads 4 --channels 64 --vocab-size {V}"
QUIET = "--sample-every 0 --val-every 0 --val-steps 0"
STEPS = f"{MODEL} {QUIET}"
LOOKUP = Shape(1, 16, 2, T)
put(f"{tmp}/lookup.bin", model_bytes(LOOKUP, 3, weights(LOOKUP, True)))
SHARDS = [random_tokens(rng, n) for n in (12 * T * 6 + 1 + 30, 12 * T * 3 + 1, 12 * T * 4 + 1 + 100)]  # of unequal size
for i, tokens in enumerate(SHARDS):
    shard(f"{tmp}/order_{i}.bin", tokens)
LOOKUP_RUN = f"--train-data order_*.bin --val-data val.bin -e lookup.bin --seq-len {T} --learning-rate 0 {QUIET}"
DTYPES = ("float32", "bfloat16", "float8")

# ---------------------------------------------------------------------------- the checks


def check_launch():
    """Whoever starts the processes, and however they meet: the same run."""
    arguments = f"{STEPS} -b 2 -d {8 * T} -x 3 --dtype float8"
    kinds = ["torchrun", "srun", "tcp", "fs"]
    if MPIRUN:
        kinds.append("mpirun")
    if PYTHON:
        kinds.append("torchrun itself")
    else:
        c.skip("torchrun", "there is no torch")
    results = {kind: train(2, arguments, kind) for kind in kinds}
    for kind, r in results.items():
        fine(r, f"two processes by {kind}", 3)
        c.check(r.losses == results["torchrun"].losses, f"{kind}: the same losses", f"{r.losses}, by torchrun's variables {results['torchrun'].losses}")
        c.check(r.run.rows.get("num_processes") == "2" and sum("num_processes" in line for line in r.lines if line.startswith("|")) == 1, f"{kind}: printed once", r.run.rows)
    four = train(4, arguments)
    fine(four, "four processes", 3)
    if MPIRUN:
        r = train(4, arguments.replace("--seq-len", "--seq_len"), "mpirun")
        c.check(fine(r, "mpirun -np 4", 3) and r.losses == four.losses, "mpirun -np 4: the same losses", f"{r.losses}, by torchrun's variables {four.losses}")


def check_environments():
    """Half an environment, or two that disagree: one message with the variable, at once."""
    cases = [  # environment, arguments, what the message must name
        ({"RANK": "0"}, "", ["WORLD_SIZE", "RANK=0"]),
        ({"WORLD_SIZE": "2"}, "", ["RANK is missing", "WORLD_SIZE=2"]),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "", ["RANK is '2'", "WORLD_SIZE is '2'"]),
        ({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "", ["RANK is 'one'"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "", ["LOCAL_WORLD_SIZE is missing"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "", ["LOCAL_RANK is missing"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "", ["MASTER_ADDR"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "high"}, "", ["MASTER_PORT is 'high'"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "", ["OMPI_COMM_WORLD_RANK is missing"]),
        ({"PMI_RANK": "1"}, "", ["PMI_SIZE is missing"]),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "", ["SLURM_PROCID is missing"]),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}, "", ["SLURM_LOCALID is missing"]),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, "", ["SLURM_TASKS_PER_NODE is '(missing)'"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "", ["disagree", "OMPI_COMM_WORLD_RANK=1", "RANK=0"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "-pi tcp -pn 3 -pr 0 -ps 127.0.0.1", ["-pn 3", "process 0 of 2"]),
        ({}, "-pi tcp -pn 2 -ps 127.0.0.1", ["-pr"]),
        ({}, "-pi fs -pn 2 -pr 1", ["-pf"]),
        ({}, "-pi tcp -pn 2 -pr 1", ["-ps"]),
        ({}, "-pi tcp -pn 2 -pr 2 -ps 127.0.0.1", ["2"]),
    ]
    for env, more, due in cases:
        began = time.monotonic()
        code, err = run([program] + STEPS.split() + more.split(), cwd=tmp, env=dict(CLEAN, **env), timeout=100)
        found = re.findall(r"^ERROR: .*", err, flags=re.M)
        name = " ".join([f"{k}={v}" for k, v in env.items()] + more.split())
        c.check(code in (1, 2) and len(found) == 1 and all(x in (err if x.startswith("-p") else found[0]) for x in due) and "HINT" in err and time.monotonic() - began < 20, f"environment {name}",
                f"exit code {code} after {time.monotonic() - began:.1f} s, must name {due}\n{err}")


def one_message(r, name, due, codes=(1,)):
    """One error in all, which says what is due; every rank ends with one of these codes."""
    c.check(len(messages(r.err)) == 1 and all(x in messages(r.err)[0] for x in due), name, f"one message must name {due}{r}")
    c.check(all(x in codes for x in r.codes), f"{name}: exit codes", str(r))


def check_options():
    """Ranks that were started with different options; a batch that is no whole sequences, or that llm.c's order cannot deal out."""
    r = train(3, f"{STEPS} -b 2", each=lambda rank: ["--weight-decay", "0.25" if rank == 2 else "0.5"])
    one_message(r, "another --weight-decay on rank 2", ["--weight-decay", f"rank 2 (host {HOST})", f"rank 0 (host {HOST})", "0.25", "0.5"])
    r = train(2, f"{STEPS} -b 2", each=lambda rank: ["--recompute", "2"] if rank == 1 else [])
    one_message(r, "an option on rank 1 alone", ["--recompute", "rank 1", "rank 0", "2", "1"])
    r = train(1, f"{STEPS} -b 2 -d {8 * T + 1}")  # a usage error is found before the ranks meet: it is the same on all
    one_message(r, "a batch of no whole sequences", ["total-batch-tokens", f"{8 * T + 1}", f"--seq-len {T}"], (2,))
    r = train(3, f"{STEPS} -b 2 -d {8 * T} --data-order llmc")
    one_message(r, "a batch that llm.c's order cannot deal out", ["total-batch-tokens", f"{8 * T}", f"{6 * T}", "3 processes"])


def largest_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) if len(a) == len(b) > 0 else math.inf


def model_distance(folder, other, step):
    """Root mean square difference of the weights, and of each tensor's worst. Without the key's bias: its gradient is 0 but for noise, of which Adam makes whole steps."""
    shape = Shape(2, 64, 4, T)
    a, b = (read_model(f"{tmp}/{x}/model_{step:08d}.bin", shape)[1] for x in (folder, other))
    total = count = 0
    for name, _, part in shape.tensors:
        for i, (x, y) in enumerate(zip(a[name], b[name])):
            if name != "qkvb" or not part // 3 <= i % part < 2 * part // 3:
                total += (x - y) ** 2
                count += 1
    return math.sqrt(total / count)


def check_data_parallel():
    """1, 2, 3 and 4 ranks at the same global batch: the same run, but for the order of sums."""
    batch, steps = 24, 4
    cases = {"float32": ["2 0 nccl", "2 1 nccl", "3 0 nccl", "3 1 nccl", "4 0 nccl", "4 1 nccl", "4 1 float32"],
             "bfloat16": ["2 0 nccl", "3 1 nccl", "4 0 float32", "4 1 float32"],
             "float8": ["2 0 nccl", "2 1 nccl", "3 1 nccl", "3 0 float32", "4 1 float32", "4 1 nccl"]}
    for dtype in DTYPES:
        common = f"{STEPS} --dtype {dtype} -d {batch * T} -x {steps} -n {steps}"
        one = train_all({b: (1, f"{common} -b {b} -o {dtype}.{b}") for b in (2, 1, 6, 24)})
        if not all(fine(r, f"{dtype}, one rank, -b {b}", steps) for b, r in one.items()):
            continue
        pairs = list(itertools.combinations(one, 2))
        noise = max(largest_difference(one[a].losses, one[b].losses) for a, b in pairs)
        noise_norm = max(largest_difference(one[a].norms, one[b].norms) for a, b in pairs)
        drift = max(model_distance(f"{dtype}.{a}", f"{dtype}.{b}", steps) for a, b in pairs) if dtype == "float32" else 0.0
        worst, farthest = 0.0, 0.0
        for case in cases[dtype]:
            P, zero, reduce = case.split()
            folder = f"{dtype}.{case.replace(' ', '.')}"
            r = train(int(P), f"{common} -b 2 -z {zero} --grad-reduce {reduce} -o {folder} --check-ranks-every 1")
            name = f"{dtype}, {P} ranks, -z {zero}, --grad-reduce {reduce}"
            if not fine(r, name, steps):
                continue
            found = largest_difference(r.norms, one[2].norms)
            c.check(found <= 2 * noise_norm + 1e-4, f"{name}: gradient norms", f"differ from one rank's by {found:.4f}, of other micro-steps on one rank {noise_norm:.4f}\n{r.norms}\n{one[2].norms}")
            found = largest_difference(r.losses, one[2].losses)
            worst = max(worst, found)
            c.check(found <= 2 * noise + 1e-6, f"{name}: losses", f"differ from one rank's by {found:.6f}, allowed: twice the {noise:.6f} of other micro-steps on one rank, and the last "
                    f"digit printed\n{r.losses}\n{one[2].losses}")
            if dtype == "float32":
                found = model_distance(folder, f"{dtype}.2", steps)
                farthest = max(farthest, found)
                c.check(found <= 2 * drift, f"{name}: weights", f"root mean square difference from one rank's {found:.2e}, of other micro-steps on one rank {drift:.2e}")
        print(f"{dtype}: losses of ranks differ by {worst:.6f} at most, of other micro-steps on one rank by {noise:.6f}" +
              (f"; weights by {farthest:.2e} and {drift:.2e}" if drift else ""))


def check_bits():
    """What two ranks must have in common to the bit. Two summands have one order, and no clipping hides the norm, whose order differs: so -z 0 and -z 1 add the
    same gradients, and update and gather the same weights; and BF16 that is rounded at the only hop is the exact sum, rounded once."""
    for dtype in DTYPES:
        common = f"{STEPS} --dtype {dtype} -b 2 -d {8 * T} -x 3 -n 3 --grad-clip 0 --check-ranks-every 1"
        results = {}
        for case in ("0 nccl", "1 nccl", "1 float32"):
            folder = f"bits.{dtype}.{case.replace(' ', '.')}"
            r = train(2, f"{common} -z {case[0]} --grad-reduce {case[2:]} -o {folder}")
            if fine(r, f"{dtype}, -z {case}", 3):
                results[case] = r.losses, get(f"{tmp}/{folder}/model_00000003.bin")
        for case in results:
            c.check(results[case] == results["0 nccl"], f"{dtype}, two ranks, -z {case}: the bits of -z 0", f"{results[case][0]}, {results['0 nccl'][0]}")


UNEVEN = 10  # sequences a step: no multiple of most of what follows
UNEVEN_RANKS = [(1, 3), (1, 4), (1, 16), (2, 2), (2, 3), (3, 2), (3, 4), (4, 1), (4, 2), (4, 4)]  # ranks, -b; on 2, 3 and 4 ranks with one that has only padding


def micro_steps(r):
    found = re.search(r"^=> setting grad_accum_steps=(\d+)$", r.outs[0], flags=re.M)
    return int(found.group(1)) if found else None


def check_uneven():
    """A batch that the ranks, or one rank's micro-steps, cannot share evenly: the same run again."""
    steps = 4
    for dtype in DTYPES:
        common = f"{STEPS} --dtype {dtype} -d {UNEVEN * T} -x {steps}"
        one = train_all({b: (1, f"{common} -b {b}") for b in (2, 1, 5, 10)})  # evenly
        if not all(fine(r, f"{dtype}, one rank, -b {b}", steps) for b, r in one.items()):
            continue
        pairs = list(itertools.combinations(one, 2))
        noise = max(largest_difference(one[a].losses, one[b].losses) for a, b in pairs)
        noise_norm = max(largest_difference(one[a].norms, one[b].norms) for a, b in pairs)
        worst = worst_norm = 0.0
        for (P, b), zero in itertools.product(UNEVEN_RANKS, (0, 1)):
            if zero and (P == 1 or (dtype == "bfloat16" and P < 3)):
                continue
            r, name = train(P, f"{common} -b {b} -z {zero} --check-ranks-every 1"), f"{dtype}, {UNEVEN} sequences on {P} ranks, -b {b}, -z {zero}"
            if not fine(r, name, steps):
                continue
            c.check(micro_steps(r) == math.ceil(UNEVEN / (P * b)), f"{name}: micro-steps", f"{micro_steps(r)}")
            found = largest_difference(r.losses, one[2].losses)
            worst = max(worst, found)
            c.check(found <= 2 * noise + 1e-6, f"{name}: losses", f"differ from those of even micro-steps by {found:.6f}, which differ among themselves by {noise:.6f}\n{r.losses}\n{one[2].losses}")
            found = largest_difference(r.norms, one[2].norms)
            worst_norm = max(worst_norm, found)
            c.check(found <= 2 * noise_norm + 1e-4, f"{name}: gradient norms", f"differ by {found:.4f}, even micro-steps among themselves by {noise_norm:.4f}\n{r.norms}\n{one[2].norms}")
        print(f"{dtype}: losses of uneven batches differ by {worst:.6f} at most, of even micro-steps by {noise:.6f}; norms by {worst_norm:.4f} and {noise_norm:.4f}")


def check_uneven_order():
    """Every sequence once, and each with the same weight, however a batch is dealt out; also by runs that other ranks go on with."""
    sequences = [lookup_loss([s[i * T:i * T + T + 1]]) for s in SHARDS for i in range((len(s) - 1) // T)]
    steps = len(sequences) // UNEVEN
    common = f"{LOOKUP_RUN} -d {UNEVEN * T} --dtype float32"
    straight = train(1, f"{common} -b 10 -x {steps}")
    fine(straight, "one epoch, evenly", steps)
    left = sum(sequences) - UNEVEN * sum(straight.losses)  # of the few that did not fill a step
    c.check(len(sequences) % UNEVEN * min(sequences) - 1e-3 <= left <= len(sequences) % UNEVEN * max(sequences) + 1e-3, "an epoch has every sequence once", f"{left} of {len(sequences)} sequences")
    for P, b in UNEVEN_RANKS:
        r = train(P, f"{common} -b {b} -x {steps}")
        c.check(fine(r, f"one epoch, {P} ranks, -b {b}", steps) and largest_difference(r.losses, straight.losses) <= 2e-6, f"{P} ranks, -b {b}: the sequences of each step",
                f"{r.losses}\n{straight.losses}")
    for name, batch in (("the same batch", f"-d {UNEVEN * T}"), ("the batch of the checkpoint", "")):
        parts, at, folder = [], 0, f"uneven.{len(batch)}"
        for P, b, zero in ((4, 2, 1), (3, 2, 0), (4, 1, 1), (1, 3, 0), (2, 4, 1)):
            end = steps if P == 2 else at + 3
            r = train(P, f"{common.replace(f'-d {UNEVEN * T}', batch if at else f'-d {UNEVEN * T}')} -b {b} -z {zero} -n 3 -x {end} -o {folder} --resume --schedule constant")
            fine(r, f"{name}: steps {at} to {end} on {P} ranks", end - at)
            c.check(batch or not at or f"resume: --total-batch-tokens stays {UNEVEN * T}, as in the checkpoint" in r.lines, f"{name}, {P} ranks: says so", str(r))
            parts += r.losses
            at = end
        c.check(largest_difference(parts, straight.losses) <= 2e-6, f"{name}: every sequence once across resumes by 4, 3, 4, 1 and 2 ranks", f"{parts}\n{straight.losses}")
    common = f"{STEPS} --dtype float32 -d {UNEVEN * T} -b 2 -n 3 --schedule constant"  # weights that do change
    whole, other = train(1, f"{common} -x 6"), train(1, f"{common.replace('-b 2', '-b 10')} -x 6")
    noise = largest_difference(whole.losses, other.losses)
    for before, after in ((4, 3), (3, 4)):
        folder = f"uneven.{before}.{after}"
        fine(train(before, f"{common} -x 3 -z 1 -o {folder}"), f"an uneven batch, saved by {before}", 3)
        r = train(after, f"{common} -x 6 -z 1 -o {folder} --resume")
        c.check(fine(r, f"an uneven batch, resumed by {after}", 3) and largest_difference(r.losses, whole.losses[3:]) <= 2 * noise + 1e-6,
                f"an uneven batch, saved by {before}, resumed by {after}: losses", f"{r.losses} should be {whole.losses[3:]}, noise {noise:.6f}{r}")


def check_odd_sizes():
    """Matrices that do not divide by the ranks, and ranks whose shard of some is empty."""
    for sizes, P in ((f"--heads 3 --channels 48 --vocab-size {V + 11}", 2), (f"--heads 3 --channels 48 --vocab-size {V + 11}", 3), (f"--heads 2 --channels 16 --vocab-size {V + 1}", 3)):
        for dtype in ("float32", "float8"):
            common = f"{DATA} {QUIET} --layers 2 {sizes} --dtype {dtype} -d {12 * T} -x 3"
            one = train_all({b: (1, f"{common} -b {b}") for b in (2, 1, 12)})
            noise = max(largest_difference(one[a].losses, one[b].losses) for a, b in itertools.combinations(one, 2))
            for zero in (0, 1):
                r = train(P, f"{common} -b 2 -z {zero} --check-ranks-every 1")
                found = largest_difference(r.losses, one[2].losses)
                c.check(fine(r, f"{dtype}, {P} ranks, {sizes}, -z {zero}", 3) and found <= 2 * noise + 1e-6, f"{dtype}, {P} ranks, {sizes}, -z {zero}: losses",
                        f"differ by {found:.6f}, of other micro-steps by {noise:.6f}{r}")


def check_padding():
    """Head sizes that need padding, on any number of ranks, also after a resume: files are those of one rank, as llm.c prescribes them."""
    for C, dtype in ((20, "float32"), (20, "bfloat16"), (20, "float8"), (4, "float8")):  # heads of 5 and of 1 in places of 8: with C 4, shards of fc are nothing but padding
        common = f"{DATA} {QUIET} --layers 2 --heads 4 --channels {C} --vocab-size {V} --dtype {dtype} -d {12 * T} -x 6 -n 3 --schedule constant"
        one = train_all({b: (1, f"{common} -b {b} -o padding.{C}.{dtype}.{b}") for b in (2, 1, 12)})
        noise = max(largest_difference(one[a].losses, one[b].losses) for a, b in itertools.combinations(one, 2))
        due = 1024 + Shape(2, C, 4, T).N * (4 if dtype == "float32" else 2)
        for P, after, zero in ((2, 3, 1), (3, 1, 1), (3, 2, 0)):
            folder, name = f"padding.{C}.{dtype}.{P}{after}", f"{dtype}, C {C}, saved by {P} ranks (-z {zero}), resumed by {after}"
            r = train(P, f"{common.replace('-x 6', '-x 3')} -b 2 -z {zero} --check-ranks-every 1 -o {folder}")
            size = len(get(f"{tmp}/{folder}/model_00000003.bin"))
            c.check(fine(r, name, 3) and size == due, f"{name}: the model file", f"{size} bytes, due {due}")
            c.check(largest_difference(r.losses, one[2].losses[:3]) <= 2 * noise + 1e-6, f"{name}: losses", f"{r.losses}, one rank {one[2].losses}, noise {noise:.6f}")
            r = train(after, f"{common} -b 2 -z {1 - zero} --check-ranks-every 1 -o {folder} --resume")
            c.check(fine(r, name, 3) and largest_difference(r.losses, one[2].losses[3:]) <= 2 * noise + 1e-6, f"{name}: losses after it",
                    f"{r.losses}, one rank {one[2].losses}, noise {noise:.6f}{r}")
        folder = f"padding.{C}.{dtype}.still"  # what was written is what is read, moments as well: a step of learning rate 0 leaves the weights as they are, whoever reads them
        common = f"{common.replace('-n 3', '-n 1')} -b 2 --moment-dtype float8"
        fine(train(3, f"{common.replace('-x 6', '-x 2')} -z 1 -o {folder}"), f"{folder}: 3 ranks", 2)
        for P, step in ((2, 3), (1, 4), (3, 5)):
            fine(train(P, f"{common.replace('-x 6', f'-x {step}').replace('-rate 1e-3', '-rate 0')} -z {P % 2} -o {folder} --resume"), f"{folder}: {P} ranks", 1)
            c.check(get(f"{tmp}/{folder}/model_{step:08d}.bin") == get(f"{tmp}/{folder}/model_00000002.bin"), f"{dtype}, C {C}: the weights that 3 ranks wrote, by {P}", "other weights")


def check_order():
    """--data-order llmc: rank r reads slice r of the samples in an order of its own; sequence: all ranks together read every sequence once an epoch."""
    for P in (2, 3):
        loaders = [LlmcLoader(SHARDS, 2, T, P, rank) for rank in range(P)]
        expected = [lookup_loss([loader.next() for loader in loaders for _ in range(2)]) for _ in range(20)]
        r = train(P, f"{LOOKUP_RUN} --data-order llmc -b 2 -d {P * 4 * T} -x 20 --dtype float32")
        c.check(fine(r, f"llm.c's order, {P} ranks", 20) and largest_difference(r.losses, expected) < 3e-5, f"llm.c's token stream, {P} ranks, beyond an epoch",
                f"{r.losses}\nshould be\n{[round(x, 6) for x in expected]}")
    sequences = [lookup_loss([s[i * T:i * T + T + 1]]) for s in SHARDS for i in range((len(s) - 1) // T)]
    steps = len(sequences) // 12
    runs = [train(P, f"{LOOKUP_RUN} -b 2 -d {12 * T} -x {steps} --dtype float32") for P in (1, 2, 3)]
    for P, r in zip((1, 2, 3), runs):
        fine(r, f"one epoch, {P} ranks", steps)
        c.check(largest_difference(r.losses, runs[0].losses) <= 2e-6, f"{P} ranks read the sequences of one", f"{r.losses}\n{runs[0].losses}")
    left = sum(sequences) - 12 * sum(runs[0].losses)  # of the few that did not fill a step
    c.check(len(sequences) % 12 * min(sequences) - 1e-3 <= left <= len(sequences) % 12 * max(sequences) + 1e-3, "an epoch has every sequence once", f"{left} of {len(sequences)} sequences")


def check_evaluation():
    """Validation, questions and samples do not depend on the number of ranks."""
    questions = [(i % 4, random_tokens(rng, 3 + i % 5), [random_tokens(rng, 4 + k) for k in range(4)]) for i in range(11)]
    questions_file(f"{tmp}/eleven.bin", questions)
    questions_file(f"{tmp}/three.bin", questions[:3])
    for dtype in ("float32", "float8"):
        for file, P_list in (("eleven", (1, 2, 3)), ("three", (1, 4))):
            arguments = f"{MODEL} --sample-every 1 --sample-length 12 -b 4 -x 0 --val-every 1 --val-steps 7 --hellaswag --eval-data {file}.bin --dtype {dtype}"
            results = [train(P, arguments) for P in P_list]
            for P, r in zip(P_list, results):
                first, name = results[0].run, f"{dtype}, {P} ranks, {file} questions"
                fine(r, name, 0)
                c.check(len(r.vals) == 1 and largest_difference(r.vals, first.vals) <= 1e-6, f"{name}: validation", f"{r.vals}, on one rank {first.vals}")
                c.check(len(r.evals) == 1 and r.evals == first.evals and r.evals[0][1] == str(11 if file == "eleven" else 3), f"{name}: answers", f"{r.evals}, on one rank {first.evals}")
                c.check(len(r.run.samples) == 1 and r.run.samples == first.samples, f"{name}: one sample", f"{r.run.samples}, on one rank {first.samples}")


def state_files(folder):
    """Those of checkpoints, sorted; none if there is no such folder."""
    return sorted(f for f in (os.listdir(f"{tmp}/{folder}") if os.path.isdir(f"{tmp}/{folder}") else []) if f.startswith(("model_", "state_", "DONE_")))


def check_resume():
    """A run that some ranks saved goes on on others, at the same token."""
    batch = 12
    common = f"{STEPS} --dtype float32 -d {batch * T} -x 6 -n 3"
    whole = train(1, f"{common} -b 2 -o whole")
    other = train(1, f"{common} -b 12")
    fine(whole, "a run without interruption", 6)
    noise = largest_difference(whole.losses, other.losses)
    for before, after, zeros in ((1, 3, "01"), (2, 1, "10"), (3, 2, "11"), (4, 2, "10"), (2, 4, "01")):
        P, folder = after if after == 4 else before, f"resume.{before}.{after}"
        b = 1 if 4 in (before, after) else 2
        r = train(before, f"{common.replace('-x 6', '-x 3 --schedule constant')} -b {b} -z {zeros[0]} -o {folder}")
        name = f"saved by {before} (-z {zeros[0]}), resumed by {after} (-z {zeros[1]})"
        fine(r, name, 3)
        c.check(state_files(folder) == ["DONE_00000003", "model_00000003.bin"] + [f"state_00000003_{k:05d}.bin" for k in range(before)], f"{name}: files", state_files(folder))
        r = train(after, f"{common} -b {b} -z {zeros[1]} -o {folder} --resume --schedule constant")
        c.check(fine(r, name, 3) and largest_difference(r.losses, whole.losses[3:]) <= 2 * noise + 1e-6, f"{name}: losses", f"{r.losses} should be {whole.losses[3:]}, noise {noise:.6f}{r}")
        c.check(f"resume: processes that wrote the checkpoint: {before}, that go on: {after}" in r.lines, f"{name}: says so", str(r))
    common = f"{STEPS} --dtype float8 -w 1 -b 2 -d {batch * T} -x 6 --schedule constant"  # masters, moments and scales come back to the bit on as many ranks
    whole = train(2, f"{common} -n 6 -z 1 -o masters.whole")
    for zero in "01":
        folder = f"masters.{zero}"
        fine(train(2, f"{common.replace('-x 6', '-x 3')} -n 3 -z {zero} --grad-clip 0 -o {folder}"), f"masters, -z {zero}", 3)
    ends = []
    for zero in "10":  # each in the other stage
        r = train(2, f"{common} -n 3 -z {zero} --grad-clip 0 -o masters.{'01'[zero == '0']} --resume")
        fine(r, f"masters, resumed with -z {zero}", 3)
        c.check("masters; they start from" not in r.outs[0], "masters are kept", str(r))
        ends.append((r.losses, get(f"{tmp}/masters.{'01'[zero == '0']}/model_00000006.bin")))
    r = train(2, f"{common} -n 6 -z 1 --grad-clip 0 -o masters.straight")
    c.check(all(x == (r.losses[3:], get(f"{tmp}/masters.straight/model_00000006.bin")) for x in ends), "float8 with masters: two ranks go on to the bit, in the other stage too",
            f"{[x[0] for x in ends]} should be {r.losses[3:]}")
    sequences = sum(len(s) - 1 for s in SHARDS) // T
    steps = sequences // batch
    common = f"{LOOKUP_RUN} --dtype float32 -d {batch * T} -b 2 -n 4"
    straight = train(1, f"{common} -x {steps}")
    parts, at = [], 0
    for P in (2, 1, 3):
        end = steps if P == 3 else at + 4
        r = train(P, f"{common} -x {end} -o tokens --resume --schedule constant")
        parts += r.losses
        at = end
    c.check(largest_difference(parts, straight.losses) <= 2e-6, "every sequence once across two resumes with other ranks", f"{parts}\n{straight.losses}")


def check_damage():
    """The newest checkpoint is damaged or incomplete: the one before it is resumed from, with a message."""
    common = f"{STEPS} --dtype float8 -w 1 -b 2 -d {8 * T} --schedule constant -z 1 -o damage"
    fine(train(2, f"{common} -x 4 -n 2"), "two checkpoints", 4)
    files = [f for f in state_files("damage") if "00000004" in f and not f.startswith("DONE")]
    shutil.copytree(f"{tmp}/damage", f"{tmp}/damage.good")
    c.check(len(files) == 3, "model and two states", files)
    for P, file, how in [(2, f, "flip") for f in files] + [(1, files[-1], "flip"), (2, files[0], "cut"), (2, files[1], "remove"), (2, files[2], "remove")]:
        shutil.rmtree(f"{tmp}/damage")
        shutil.copytree(f"{tmp}/damage.good", f"{tmp}/damage")
        path = f"{tmp}/damage/{file}"
        data = bytearray(get(path))
        at = rng.randrange(len(data))
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
            put(path, data)
        elif how == "cut":
            put(path, data[:-1])
        else:
            os.unlink(path)
        r = train(P, f"{common} -x 3 --resume")
        name = f"{how} {file}{f' at byte {at} of {len(data)}' if how == 'flip' else ''}, {P} rank{'s' if P > 1 else ''}"
        c.check(fine(r, name, 1) and any("resuming from step 2 " in line for line in r.lines), f"{name}: the older one is used", str(r))
        c.check(sum("checkpoint of step 4" in line for line in r.lines) == 1 or sum("00000004" in line for line in r.err.splitlines()) == 1, f"{name}: says so", str(r))


def check_kill_in_save():
    """kill -9 of any rank at any moment of a save: what is marked complete loads."""
    chance = random.Random(args.seed)
    for attempt in range(3):
        folder = f"killed.{attempt}"
        common = f"{STEPS} --dtype float8 -w 1 -b 1 -d {6 * T} --schedule constant -z 1 -o {folder} -n 1"
        job = Job("torchrun", 3 if attempt else 2, f"{common} -x 1000000 -nk 2")
        seen = job.seen(rf"Writing checkpoint at step {2 + chance.randrange(3)}\n")
        delay, rank = chance.random() * 0.02, chance.randrange(job.P)
        time.sleep(delay)
        seen = job.send(rank, signal.SIGKILL) and seen
        r = job.wait(20)
        name = f"kill -9 of rank {rank} of {job.P}, {delay * 1e3:.1f} ms into a save (seed {args.seed})"
        c.check(seen and all(r.codes) and not job.alive(), name, str(r))
        newest = max([int(f[5:]) for f in state_files(folder) if f.startswith("DONE_")], default=0)
        c.check(newest > 0, f"{name}: a checkpoint is left", state_files(folder))
        r = train(2, f"{common} -x {newest + 1} --resume")
        c.check(fine(r, f"{name}: resume", 1) and f"resuming from step {newest} in {folder}" in r.lines, f"{name}: the newest complete one loads", f"{state_files(folder)}{r}")
        c.check(not [f for f in os.listdir(f"{tmp}/{folder}") if f.endswith(".tmp")], f"{name}: nothing temporary stays", os.listdir(f"{tmp}/{folder}"))


def check_recipes():
    """Every FP8 recipe, and the guard, on two ranks: both stages the same bits, as one rank within the noise of other micro-steps, and resumed to the bit."""
    for recipe, more in [(r, "") for r in ("current", "delayed", "row", "block", "mx")] + [("current", " --fp8-guard-every 2 --fp8-guard-flushed 0.00001 --fp8-guard-steps 2 --fp8-bf16-layers 1.fc")] + [
            (r, " --fp8-head") for r in ("current", "delayed", "block")]:
        common = f"{STEPS} --dtype float8 --fp8-recipe {recipe}{more} -d {8 * T} --grad-clip 0 --check-ranks-every 1 --schedule constant"
        guarded = "guard" in more
        name, folder = recipe + (", guarded" if guarded else more), f"recipe.{recipe}{len(more)}"
        r = train_all({"one": (1, f"{common} -b 2 -x 6"), "cut 1": (1, f"{common} -b 1 -x 6"), "cut 4": (1, f"{common} -b 4 -x 6"), "cut 8": (1, f"{common} -b 8 -x 6"), "0": (2, f"{common} -b 2 -x 6 -z 0"), "1": (2, f"{common} -b 2 -x 6 -z 1 -n 3 -o {folder}")})
        if not all([fine(x, f"{name}: {key}", 6) for key, x in r.items()]):
            continue
        noise = max(largest_difference(r[a].losses, r[b].losses) for a, b in itertools.combinations(("one", "cut 1", "cut 4", "cut 8"), 2))
        c.check(r["0"].losses == r["1"].losses, f"{name}: both stages the same losses", f"{r['0'].losses}\n{r['1'].losses}")
        c.check(largest_difference(r["1"].losses, r["one"].losses) <= 2 * max(noise, 1e-6), f"{name}: two ranks as one", f"{r['1'].losses}\n{r['one'].losses}, noise {noise}")
        c.check(not guarded or any("fp8 guard: step 2: " in line for line in r["1"].lines) and any("in FP8 again" in line for line in r["1"].lines), f"{name}: moves layers and moves them back", str(r["1"]))
        os.unlink(f"{tmp}/{folder}/DONE_00000006")
        again = train(2, f"{common} -b 2 -x 6 -z 1 -n 3 -o {folder} --resume")
        c.check(fine(again, f"{name}: resume", 3) and again.losses == r["1"].losses[3:], f"{name}: goes on to the bit", f"{again.losses}, {r['1'].losses}")


def check_calibration():
    """A calibration is the same file on any number of ranks, and may be of a checkpoint; ranks train by it, and report, as one does; another file on one of them is refused."""
    common = f"{STEPS} --calibrate 3 -b 2 -d {8 * T}"
    runs = {"1": (1, f"{common} --calibration-file one.tsv"), "2": (2, f"{common} --calibration-file two.tsv"), "4": (4, f"{common} --calibration-file four.tsv"),
            "uneven": (2, f"{common} -b 4 --calibration-file uneven.tsv"), "uneven alone": (1, f"{common} -b 4 --calibration-file alone.tsv")}
    r = train_all(runs)
    for key in runs:
        c.check(r[key].ok and not any(r[key].outs[1:]), f"calibrating, {key}", str(r[key]))
    c.check(get(f"{tmp}/one.tsv") == get(f"{tmp}/two.tsv") == get(f"{tmp}/four.tsv"), "the same file of 1, 2 and 4 ranks", get(f"{tmp}/two.tsv").decode())
    c.check(get(f"{tmp}/uneven.tsv") == get(f"{tmp}/alone.tsv"), "the same file of other batches", get(f"{tmp}/uneven.tsv").decode())
    text = get(f"{tmp}/one.tsv").decode()
    lines = [line.split("\t") for line in text.split("\n")]
    names = [name.strip() for name in next(line for line in lines if line[0].strip() == "role")]
    for line in lines:
        what = [field.strip() for field in line[:3]]
        if what in (["w", "1", "fc"], ["dy", "0", "qkv"]):
            for recipe in ("current", "delayed"):
                line[names.index(recipe)] = "bf16" if what[0] == "w" else "e5m2"
    put(f"{tmp}/edited.tsv", "\n".join("\t".join(line) for line in lines).encode())
    put(f"{tmp}/other.tsv", text.encode())
    for recipe in ("current", "delayed"):
        common = f"{STEPS} --dtype float8 --fp8-recipe {recipe} --fp8-calibration edited.tsv -b 2 -d {8 * T} --grad-clip 0 --schedule constant --check-ranks-every 1 --fp8-log-every 1"
        folder = f"calibrated.{recipe}"
        r = train_all({"1": (1, f"{common} -x 6"), "2": (2, f"{common} -x 6 -z 1 -n 3 -o {folder}")})
        if not all([fine(x, f"calibrated {recipe}: {key}", 6) for key, x in r.items()]):
            continue
        c.check("calibration edited.tsv: 1 of 8 linear layers stay in BF16; of the other tensors 1 are E5M2, the rest E4M3" in r["2"].lines, f"calibrated {recipe}: says what it applies", str(r["2"]))
        c.check(largest_difference(r["1"].losses, r["2"].losses) < 0.002, f"calibrated {recipe}: two ranks as one", f"{r['1'].losses}\n{r['2'].losses}")
        found = get(f"{tmp}/{folder}/fp8.jsonl").decode().split("\n")[-25:]
        e5m2 = [line for line in found if '"format":"e5m2"' in line]
        bf16 = [line for line in found if '"bf16":true' in line]
        c.check(len(e5m2) == 1 and "l0.qkv.dy" in e5m2[0] and len(bf16) == 3 and all("l1.fc." in line for line in bf16), f"calibrated {recipe}: formats and BF16 as the file says", str(found))
        os.unlink(f"{tmp}/{folder}/DONE_00000006")
        again = train(2, f"{common} -x 6 -z 1 -n 3 -o {folder} --resume")
        c.check(fine(again, f"calibrated {recipe}: resume", 3) and again.losses == r["2"].losses[3:], f"calibrated {recipe}: goes on to the bit", f"{again.losses}, {r['2'].losses}")
    r = train(1, f"{STEPS} --calibrate 1 -b 2 --resume -o calibrated.current")
    c.check(r.ok and ", weights of step 6," in get(f"{tmp}/calibrated.current/calibration.tsv").decode(), "the weights of a checkpoint", str(r))
    put(f"{tmp}/rank1/edited.tsv", text.encode())
    for name in ("train.bin", "val.bin"):
        os.symlink(f"{tmp}/{name}", f"{tmp}/rank1/{name}")
    r = train(2, f"{STEPS} --dtype float8 --fp8-calibration edited.tsv -b 2 -x 2", wrap=lambda rank: ["env", "-C", f"{tmp}/rank1"] if rank else [])
    c.check(not r.ok and "model and data" in r.err and "calibration" in r.err, "another file on another machine is refused", str(r))


def check_failures():
    """A rank that dies or stops ends all of them, in time, with one message; a full disk on one rank ends nothing."""
    endless = f"{STEPS} --dtype float8 -b 2 -x 1000000 --watchdog-seconds 3 --log-every 1"
    cases = [("torchrun", 3, 0, signal.SIGKILL), ("torchrun", 3, 2, signal.SIGKILL)] + [("mpirun", 3, 1, signal.SIGKILL)] * bool(MPIRUN)
    cases += [("torchrun", 3, 1, signal.SIGSTOP), ("srun", 3, 0, signal.SIGSTOP)] + [("mpirun", 2, 1, signal.SIGSTOP)] * bool(MPIRUN)
    started = [Job(kind, P, endless) for kind, P, _, _ in cases]  # all at once: they mostly wait
    trains = [job.seen(r"step +3/") for job in started]
    time.sleep(1.2)  # what a rank does is told once a second
    began = time.monotonic()
    for job, (_, _, rank, what) in zip(started, cases):
        job.send(rank, what)
    for job, ready, (kind, P, rank, what) in zip(started, trains, cases):
        r = job.wait(30)
        took, name = time.monotonic() - began, f"{what.name} of rank {rank} of {P} by {kind}"
        c.check(ready and took < (2 if what == signal.SIGKILL else 3) + 3, f"{name}: ends within the bound", f"{took:.1f} s{r}")
        found = messages(r.err)
        c.check(len(found) == 1 and f"rank {rank} (host {HOST})" in found[0] and re.search(r"step \d+", found[0]) and re.search(r"training step|update", found[0]),
                f"{name}: one message with rank, host, step and operation", str(r))
        c.check(all(code not in (0, 124) for code in r.codes), f"{name}: exit codes", str(r))
        end = time.monotonic() + 2
        while job.alive() and time.monotonic() < end:
            time.sleep(0.05)
        c.check(not job.alive(), f"{name}: no process is left", str(job.alive()))
        job.kill()
    limited = ["bash", "-c", 'ulimit -f 2700; exec "$@"', "limited"]  # KiB a file: rank 1's part is larger, the shared memory is not
    for P in (2, 3):
        folder, name = f"full.{P}", f"a full disk on {P - 1} of {P} ranks"
        r = train(P, f"{STEPS.replace('--layers 2', '--layers 24')} --dtype float32 -b 2 -x 4 -n 2 -o {folder}", wrap=lambda rank: limited if rank else [])
        c.check(len(r.losses) == 4 and r.err.count("WARNING: checkpoint at step 2 was not written") == 1, f"{name}: one warning, and training goes on", str(r))
        c.check(all(r.codes) and len(messages(r.err)) == 1 and "last checkpoint could not be written" in messages(r.err)[0], f"{name}: the end says that nothing was saved", str(r))
        c.check(not [f for f in os.listdir(f"{tmp}/{folder}") if f not in ("main.log", "goodput.log")], f"{name}: nothing half is left", os.listdir(f"{tmp}/{folder}"))


def refused(job):
    """The steps whose checkpoints found no room, in order; each as often as a rank said so."""
    return sorted(int(x) for x in re.findall(r"WARNING: checkpoint at step (\d+) was not written: .*No space left on device", job_text(job, "err")))


def check_full_disk():
    """A disk that is full, or fills up while a checkpoint is written: a warning, the older checkpoint stays, training goes on, and with room again the next one succeeds."""
    disk = f"{tmp}/disk"
    os.makedirs(disk, exist_ok=True)
    code, out = run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk]) if shutil.which("mount") else (127, "there is no mount")
    if code:
        c.skip("a full disk", f"cannot mount a small one: {out.strip()}")
        return
    common = f"{STEPS} --dtype float32 -b 2 -z 1 --schedule constant"
    job = Job("torchrun", 2, f"{common} -x 1000000 -n 100 -nk 1 -o disk/run")
    try:
        ready = wait_for(lambda: "DONE_00000200" in state_files("disk/run") or job.processes[0].poll() is not None)
        for name, room in (("no room", 0), ("room for a part", 600 << 10)):
            before = len(refused(job))

            def refuses():
                fill(f"{disk}/filler", room)  # again and again: an older checkpoint that is removed makes room as well
                return len(refused(job)) > before
            wait_for(refuses)
            freeze(job)
            failed, err = refused(job), job_text(job, "err")
            c.check(ready and len(failed) > before and len(failed) == len(set(failed)) == err.count("HINT:  free space there"),
                    f"a full disk, {name}: one warning for each checkpoint, with a hint", err or "none")
            failed = failed[before:]
            done = [int(f[5:]) for f in state_files("disk/run") if f.startswith("DONE_")]
            c.check(done and failed and max(done) < min(failed), f"a full disk, {name}: the older checkpoint stays", state_files("disk/run"))
            shutil.rmtree(f"{tmp}/disk.copy", ignore_errors=True)
            shutil.copytree(f"{disk}/run", f"{tmp}/disk.copy")
            r = train(3, f"{common} -x {max(done, default=0) + 1} -o disk.copy --resume")
            c.check(fine(r, f"a full disk, {name}: resume", 1) and f"resuming from step {max(done, default=0)} in disk.copy" in r.lines, f"a full disk, {name}: the older checkpoint loads", str(r))
            os.unlink(f"{disk}/filler")
            printed = len(job_text(job, "out"))
            thaw(job)
            c.check(wait_for(lambda: any(int(f[5:]) > max(failed, default=0) for f in state_files("disk/run") if f.startswith("DONE_"))), f"a full disk, {name}: with room again the next one succeeds",
                    f"{state_files('disk/run')}\n{job_text(job, 'err')[-1500:]}")
            c.check(re.search(r"step +\d+/", job_text(job, "out")[printed:]), f"a full disk, {name}: training goes on", job_text(job, "out")[-500:])
        job.send(1, signal.SIGTERM)
        r = job.wait(30)
        last = max([int(f[5:]) for f in state_files("disk/run") if f.startswith("DONE_")], default=0)
        c.check(r.codes == [75, 75] and last == len(r.losses), "after a full disk: a signal saves as ever", f"{state_files('disk/run')}{r}")
        c.check(not [f for f in os.listdir(f"{disk}/run") if f.endswith(".tmp")], "after a full disk: nothing half is left", os.listdir(f"{disk}/run"))
        r = train(1, f"{common} -x {last + 1} -o disk/run --resume")
        c.check(fine(r, "after a full disk: resume", 1) and f"resuming from step {last} in disk/run" in r.lines, "after a full disk: resume", str(r))
    finally:
        job.kill()
        job.wait()
        run(["umount", "-l", disk])


def check_minutes():
    """--save-every-minutes, here of a part of a minute: as often as that, and no oftener."""
    seconds = 0.9
    job = Job("torchrun", 2, f"{STEPS} --dtype float32 -b 2 -z 1 --schedule constant -x 1000000 --save-every-minutes {seconds / 60} -o minutes")
    seen = []
    end = time.monotonic() + 40
    while len(seen) < 4 and time.monotonic() < end and job.processes[0].poll() is None:
        found = re.findall(r"Writing checkpoint at step (\d+)\n", job_text(job, "out"))
        seen += [(int(step), time.monotonic()) for step in found[len(seen):]]
        time.sleep(0.01)
    job.send(0, signal.SIGTERM)
    r = job.wait(30)
    c.check(r.codes == [75, 75] and len(seen) >= 4, "--save-every-minutes saves", str(r))
    took = seen[-1][1] - seen[0][1] if seen else 0.0
    c.check(took > (len(seen) - 1) * seconds - 0.5 and min([b - a for (a, _), (b, _) in zip(seen, seen[1:])], default=0) > 1, "--save-every-minutes: after that time",
            f"steps {[step for step, _ in seen]} in {took:.1f} s")
    c.check(all(f"DONE_{s:08d}" in state_files("minutes") for s, _ in seen), "--save-every-minutes: whole checkpoints", state_files("minutes"))
    for f in state_files("minutes"):  # the last one of these, not that of the signal
        if f"{len(r.losses):08d}" in f:
            os.unlink(f"{tmp}/minutes/{f}")
    last = max([int(f[5:]) for f in state_files("minutes") if f.startswith("DONE_")], default=0)
    r = train(3, f"{STEPS} --dtype float32 -b 2 --schedule constant -x {last + 1} -o minutes --resume")
    c.check(fine(r, "--save-every-minutes: resume", 1) and f"resuming from step {last} in minutes" in r.lines and last > 0, "--save-every-minutes: what it saved loads", str(r))


def check_signals():
    """A signal to any rank: all save, within a step, and end with the exit code that the restart script knows."""
    endless = f"{STEPS} --dtype float8 -b 2 -x 1000000 -z 1"
    cases = [("torchrun", [1], signal.SIGTERM), ("torchrun", [0], signal.SIGINT), ("srun", [0, 1, 2], signal.SIGUSR1)]
    for n, (kind, ranks, what) in enumerate(cases):
        job = Job(kind, 3, f"{endless} -o signal.{n}")
        ready = job.seen(r"step +3/")
        for rank in ranks:
            ready = job.send(rank, what) and ready
        r, name = job.wait(20), f"{what.name} to rank {' and '.join(map(str, ranks))} of 3"
        last = len(r.losses)
        c.check(ready and r.codes == [75] * 3 and not r.err, f"{name}: exit codes", str(r))
        c.check(f"Writing checkpoint at step {last}" in r.lines and f"DONE_{last:08d}" in state_files(f"signal.{n}"), f"{name}: a checkpoint of the last step", f"{state_files(f'signal.{n}')}{r}")
        r = train(2, f"{endless.replace('-x 1000000', f'-x {last + 1}')} -o signal.{n} --resume --schedule constant")
        c.check(fine(r, f"{name}: resume", 1) and f"resuming from step {last} in signal.{n}" in r.lines, f"{name}: goes on from there", str(r))
    if MPIRUN:
        job = Job("mpirun", 2, f"{endless} -o signal.mpirun")
        job.seen(r"step +3/")
        job.processes[0].send_signal(signal.SIGUSR1)
        r = job.wait(20)
        c.check(r.codes == [75] and f"DONE_{len(r.losses):08d}" in state_files("signal.mpirun"), "SIGUSR1 to mpirun: saved, and its exit code", f"{state_files('signal.mpirun')}{r}")


DISK_C = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// A disk that hangs for good, or is slow: of files whose path has a word, in a call that writes (or reads, DISK_READS).
static size_t disk(int fd, size_t n, int reads) {
    char link[64], path[1024] = "";
    const char *hangs = getenv("DISK_HANGS"), *slow = getenv("DISK_IS_SLOW");
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (!!getenv("DISK_READS") != reads || readlink(link, path, sizeof(path) - 1) < 0) { return n; }
    while (hangs && strstr(path, hangs)) { pause(); }
    if (!slow || !strstr(path, slow)) { return n; }
    usleep(250000);
    return n < 16384 ? n : 16384;
}
ssize_t pwrite(int fd, const void* p, size_t n, off_t at) { return ((ssize_t (*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, p, disk(fd, n, 0), at); }
ssize_t pread(int fd, void* p, size_t n, off_t at) { return ((ssize_t (*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, p, disk(fd, n, 1), at); }
"""


def check_slow_disks():
    """A disk that never answers ends the run within the bound, with one message; one that is slow does not, however long a checkpoint takes."""
    put(f"{tmp}/disk.c", DISK_C.encode())
    code, out = run(["cc", "-shared", "-fPIC", "-o", f"{tmp}/disk.so", f"{tmp}/disk.c", "-ldl"])
    if code:
        c.skip("slow disks", f"cannot build the library that plays one: {out[-200:]}")
        return
    bound, words = 3, "--watchdog-seconds 3"
    common = f"{STEPS} --dtype float32 -b 2 -z 1 --schedule constant {words}"

    def disk(**which):
        return ["env", f"LD_PRELOAD={tmp}/disk.so"] + [f"DISK_{key}={value}" for key, value in which.items()]
    fine(train(2, f"{common} -x 2 -n 2 -o disk.read"), "a checkpoint to read", 2)
    cases = [
            (3, 1, "-x 1000000 -n 4 -o disk.0", dict(HANGS="state_00000004_00001"), "writing a checkpoint"),
            (3, 0, "-x 1000000 -n 4 -o disk.1", dict(HANGS="model_00000004"), "writing a checkpoint"),
            (2, 1, "-x 1000000 -n 4 -o disk.2 --no-background-save", dict(HANGS="state_00000004_00001"), "writing a checkpoint"),
            (2, None, "-x 1000000 -n 4 -o disk.3 --no-background-save", dict(HANGS="state_00000004"), "writing a checkpoint"),
            (2, None, "-x 1000000 -n 4 -o disk.4", dict(HANGS="state_00000004"), "writing a checkpoint"),
            (2, 1, "-x 1000000 -n 4 -nk 1 -o disk.5", dict(HANGS="state_00000004", READS=1), "reading a checkpoint back"),
            (2, 1, "-x 4 -o disk.read --resume", dict(HANGS="state_00000002", READS=1), "looking for a checkpoint"),
            (2, 0, "-x 4", dict(HANGS="train.bin", READS=1), "opening the data"),
            (1, 0, "-x 1000000 -n 4 -o disk.6", dict(HANGS="state_00000004"), "writing a checkpoint")]
    shutil.copytree(f"{tmp}/disk.read", f"{tmp}/disk.slow3")
    slow = [("written", "-x 4 -n 4 -o disk.slow1", dict(IS_SLOW="state_00000004"), 4),
            ("written while training waits", "-x 4 -n 4 -o disk.slow2 --no-background-save", dict(IS_SLOW="state_00000004"), 4),
            ("read", "-x 4 -n 4 -o disk.slow3 --resume", dict(IS_SLOW="state_00000002", READS=1), 2)]
    slow_jobs = [Job("torchrun", 2, f"{common} {arguments}", wrap=lambda r: disk(**which) if r else []) for _, arguments, which, _ in slow]  # they mostly wait
    started = [Job("torchrun" if P > 1 else "alone", P, f"{common} {arguments}", wrap=lambda r: disk(**which) if rank in (r, None) else []) for P, rank, arguments, which, _ in cases]
    for job, (P, rank, arguments, which, doing) in zip(started, cases):
        start = job.seen("Writing checkpoint at step 4\n") and time.monotonic() if "-n 4" in arguments else time.monotonic()
        r = job.wait(40)
        name = f"a disk that hangs while {doing}, {'all ranks' if rank is None else f'rank {rank}'} of {P}{', training waits' if 'no-back' in arguments else ''}"
        found = messages(r.err)
        c.check(start and time.monotonic() - start < bound + 4, f"{name}: ends within the bound", f"{time.monotonic() - (start or 0):.1f} s{r}")
        c.check(len(found) == 1 and re.search(rf"rank {rank if rank is not None else '[01]'} \(host {HOST}\) makes no progress", found[0]) and f"in '{doing}' for {bound}." in found[0] and
                (" at step 4 " in found[0] or "-n 4" not in arguments), f"{name}: one message with rank, host, step and operation", str(r))
        c.check(all(code not in (0, 124) for code in r.codes) and not job.alive(), f"{name}: all end", str(r))
    for job, (name, _, _, steps) in zip(slow_jobs, slow):
        r = job.wait()
        took = os.stat(f"{tmp}/{job.name}.0.out").st_mtime - (time.time() - (time.monotonic() - job.began))  # until its last word
        c.check(fine(r, f"a slow disk, {name}", steps) and took > 2 * bound and not r.err, f"a slow disk, {name}: longer than the bound, and no hang", f"{took:.1f} s{r}")


def check_slow_steps():
    """A micro-step that takes longer than the bound is no hang; a rank that is stopped in one is found as ever."""
    bound = 2
    common = f"{DATA} {QUIET} --layers 24 --heads 4 --channels 128 --vocab-size {V} --dtype float32"
    tried = train(2, f"{common} -b 2 -x 3")
    batch = math.ceil(2 * 3e3 * bound / min(float(step["ms"]) for step in tried.run.steps)) if fine(tried, "a step of a batch of 2", 3) else 2
    common += f" -b {batch} --watchdog-seconds {bound}"
    r = train(2, f"{common} -x 2")
    c.check(fine(r, "slow steps", 2) and all(float(step["ms"]) > 1.25e3 * bound for step in r.run.steps), "a micro-step longer than the bound is no hang", f"{r.run.steps}{r}")
    job = Job("torchrun", 2, f"{common} -x 1000")
    ready = job.seen(r"step +1/")
    time.sleep(0.5 * bound)
    began = time.monotonic()
    ready = job.send(1, signal.SIGSTOP) and ready
    r = job.wait(30)
    found = messages(r.err)
    c.check(ready and time.monotonic() - began < bound + 4, "stopped in a slow step: ends within the bound", f"{time.monotonic() - began:.1f} s{r}")
    c.check(len(found) == 1 and f"rank 1 (host {HOST})" in found[0] and "a training step" in found[0], "stopped in a slow step: one message", str(r))


def check_signals_in_evaluation():
    """A signal while the model is evaluated: that ends at once, all save and end."""
    questions_file(f"{tmp}/many.bin", [(i % 4, random_tokens(rng, 3 + i % 5), [random_tokens(rng, 4 + k) for k in range(4)]) for i in range(4000)])
    common = f"{MODEL} --dtype float32 -b 1 -z 1 --sample-every {{}} --sample-length 100000 --val-every {{}} --val-steps {{}} --schedule constant"
    slow = common.replace("--layers 2", "--layers 12")
    cases = [("validation", slow.format(0, 3, -1), "-x 100", 1), ("validation", slow.format(0, 3, -1), "-x 100", 0), ("the last validation", slow.format(0, 1000, -1), "-x 3", 1),
             ("questions", slow.format(0, 3, 1) + " --hellaswag --eval-data many.bin", "-x 100", 1), ("a sample", common.format(3, 0, 0), "-x 100", 0)]
    for n, (what, arguments, steps, rank) in enumerate(cases):
        job = Job("torchrun", 2, f"{arguments} {steps} -o told.{n}")
        seen = job.seen(r"step +3/.*\n(?:val loss .*\n)?generating:" if what == "a sample" else r"step +3/.*\n(?:val loss .*\n)?evaluating" if what == "questions" else r"step +3/")
        time.sleep(0.3)
        began = time.monotonic()
        seen = job.send(rank, signal.SIGTERM) and seen
        r = job.wait(60)
        took, last, name = time.monotonic() - began, len(r.losses), f"SIGTERM to rank {rank} in {what}"
        c.check(seen and r.codes == [75, 75] and took < 3 and last in (3, 4) and not r.err, f"{name}: all end", f"{took:.1f} s{r}")
        c.check(f"DONE_{last:08d}" in state_files(f"told.{n}") and f"ending at step {last} of {steps[3:]}, as a signal asked; go on with --resume" in r.lines, f"{name}: saved", f"{state_files(f'told.{n}')}{r}")
        if "last" in what:
            r = train(2, f"{common.format(0, 1000, 2)} {steps} -o told.{n} --resume".replace("--layers 2", "--layers 12"))
            c.check(r.ok and len(r.vals) == 1 and r.losses == [], f"{name}: the resumed run does it", str(r))


def check_start():
    """What must be the same for all ranks is compared before the first step: the program, the output folder; who does not come is waited for as long as asked."""
    shutil.copy(program, f"{tmp}/other_build")
    with open(f"{tmp}/other_build", "ab") as f:
        f.write(b"x")
    r = Job("torchrun", 2, f"{STEPS} -b 2 -x 2", wrap=lambda rank: ["bash", "-c", f'shift; exec {tmp}/other_build "$@"', "x"] if rank else []).wait()
    found = messages(r.err)
    c.check(all(r.codes) and len(found) == 1 and re.search(r"rank 1 .*build [0-9a-f]{16}', rank 0 .*build [0-9a-f]{16}'", found[0]), "two builds: a message", str(r))
    os.makedirs(f"{tmp}/elsewhere", exist_ok=True)
    for f in ("train.bin", "val.bin"):
        shutil.copy(f"{tmp}/{f}", f"{tmp}/elsewhere/{f}")
    r = Job("torchrun", 3, f"{STEPS} -b 2 -x 2 -n 1 -o not_shared --watchdog-seconds 4", wrap=lambda rank: ["env", "-C", f"{tmp}/elsewhere"] if rank == 2 else []).wait()
    found = messages(r.err)
    c.check(all(r.codes) and len(found) == 1 and f"rank 2 (host {HOST}) does not see what rank 0 writes into --output-dir 'not_shared'" in found[0] and "loss" not in r.outs[0] and r.seconds < 16,
            "a folder that one rank does not see: found before the first step", str(r))
    c.check(not os.listdir(f"{tmp}/not_shared") or train(2, f"{STEPS} -b 2 -x 1 -n 1 -o not_shared").ok, "what the search left is removed by the next run", os.listdir(f"{tmp}/not_shared"))
    r = Job("tcp", 2, f"{STEPS} -b 2 -x 2 --join-seconds 2", wrap=lambda rank: ["true"] if rank else []).wait()
    c.check(r.codes[0] == 1 and "1 of 2 ranks have not joined within 2.0 s" in r.err and "--join-seconds" in r.err and r.seconds < 8, "--join-seconds", str(r))
    common = f"{STEPS} --dtype float32 -b 2 -z 1 --schedule constant -o kept"
    fine(train(2, f"{common} -x 6 -n 2"), "three checkpoints", 6)
    path = f"{tmp}/kept/state_00000006_00001.bin"
    data = bytearray(get(path))
    data[len(data) // 2] ^= 1
    put(path, data)
    fine(train(2, f"{common} -x 7 -n 7 -nk 3 --resume"), "one of them damaged", 3)
    done = [f for f in state_files("kept") if f.startswith("DONE")]
    c.check(done == [f"DONE_{k:08d}" for k in (2, 4, 6, 7)], "a damaged checkpoint does not count in --checkpoint-keep", done)


def check_drift():
    """--check-ranks-every finds one bit of one weight of one rank that is another (here: changed in the memory of its process)."""
    job = Job("torchrun", 3, f"{LOOKUP_RUN} -b 2 -x 1000000 --check-ranks-every 5 --dtype float32")
    if not job.seen(r"step +3/"):
        c.check(False, "drift", f"did not train{job.wait(1)}")
        return
    pid, found = job.pid(2), 0
    needle = array.array("f", weights(LOOKUP, True)["fcw"][:256]).tobytes()  # the learning rate is 0: it stays as it was
    job.processes[2].send_signal(signal.SIGSTOP)
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in maps:
                begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                if not line.split()[1].startswith("rw") or end - begin > 1 << 27 or "[v" in line:
                    continue
                memory.seek(begin)
                try:
                    data = memory.read(end - begin)
                except OSError:
                    continue
                at = (data or b"").find(needle)
                while at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([needle[0] ^ 1]))
                    found += 1
                    at = data.find(needle, at + 1)
    except PermissionError as e:
        job.kill()
        job.wait()
        c.skip("a planted difference", f"no access to the memory of a process ({e})")
        return
    job.processes[2].send_signal(signal.SIGCONT)
    r = job.wait(20)
    c.check(found > 0, "drift: the weight was found", f"{found}")
    one_message(r, "one bit of fcw on rank 2", ["rank 2", "fcw", "rank 0", "step"])


def bytes_due(P, zero, dtype, reduce):
    """MiB that a rank sends a step, by class: ring algorithms over what is summed and gathered. Padded: a matrix is dealt out in shards of whole 256 elements."""
    low = 4 if dtype == "float32" else 2
    gradients = weights_sent = 0
    for name, layers, part in Shape(2, 64, 4, T).tensors:
        linear, matrix = name in ("qkvw", "attprojw", "fcw", "fcprojw"), name in ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")
        padded = P * 256 * math.ceil(math.ceil(part / P) / 256) if matrix else part
        size = low if linear else 4
        if zero and matrix:
            gradients += layers * padded * size * (P - 1) / P
            weights_sent += layers * padded * (1 if linear and dtype == "float8" else low) * (P - 1) / P
        else:
            exact = reduce == "float32" and linear and low == 2  # dealt out, added, and gathered again
            gradients += layers * (padded if exact else part) * size * 2 * (P - 1) / P
    scales = 2 * 4 * 4 * 2 * (P - 1) / P if zero and dtype == "float8" else 0  # u32 of four layers' weights, twice
    return {"gradients": gradients / 2**20, "weights": weights_sent / 2**20, "scales": scales / 2**20, "scalars": 2 * 4 * 2 * (P - 1) / P / 2**20}


def check_bytes():
    """What the last step sent is what the formulas say; hidden and exposed are all of the time."""
    for P, zero, dtype, reduce in [(2, 0, "float32", "nccl"), (3, 0, "float8", "nccl"), (2, 1, "float8", "nccl"), (3, 1, "bfloat16", "nccl"), (4, 1, "float8", "nccl"), (4, 0, "bfloat16", "float32")]:
        r, due = train(P, f"{STEPS} --dtype {dtype} -z {zero} --grad-reduce {reduce} -b 1 -x 3"), bytes_due(P, zero, dtype, reduce)
        name = f"bytes sent: {dtype}, {P} ranks, -z {zero}, --grad-reduce {reduce}"
        fine(r, name, 3)
        line = [line for line in r.lines if line.startswith("sent by each rank and step, MiB: ")]
        found = {x: float(value) for x, value in re.findall(r"(\w+) (\d+\.\d+)[, ]", line[0].split("|")[0])} if line else {}
        c.check(len(line) == 1 and set(found) == set(due) and all(abs(found[x] - due[x]) <= 6e-4 for x in due), name, f"{line}, due {due}{r}")
        times = re.search(r" \| collectives (\d+\.\d+) ms: (\d+\.\d+) hidden, (\d+\.\d+) exposed$", line[0]) if line else None
        x = [float(t) for t in times.groups()] if times else []
        c.check(times and x[0] > 0 and abs(x[1] + x[2] - x[0]) < 0.02, f"{name}: times", line)
        c.check(r.lines.index(line[0]) > max(i for i, text in enumerate(r.lines) if text.startswith("step ")) if line else False, f"{name}: at the end", str(r))
    r = train(1, f"{STEPS} --dtype float32 -b 1 -x 2")
    c.check(fine(r, "one rank", 2) and "sent by each rank" not in r.outs[0], "one rank sends nothing, and says nothing of it", str(r))


def goodput_rows(folder):
    """Of goodput.log: (first step, last step, {class: seconds}, begin, written, how it ended) of each start."""
    data = get(f"{tmp}/{folder}/goodput.log").decode()
    c.check(len(data) % 128 == 0 and all(line.endswith("\n") and "\n" not in line[:-1] for line in re.findall(r"[\s\S]{128}", data)), f"{folder}/goodput.log: lines of 128 bytes", data)
    head, *lines = data.splitlines()
    names = head.split()[8:-1]
    rows = []
    for line in lines:
        begin, written, first, last, *seconds, end = line.split()
        rows.append((int(first), int(last), dict(zip(names, map(float, seconds))), float(begin), float(written), end))
    return rows


def duration_seconds(text):
    return sum(float(n) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))


def check_goodput():
    """The share of the time that trained, over a run that was killed, ended by a signal, and done by other ranks."""
    common = f"{STEPS} --dtype float32 -b 2 -z 1 --schedule constant -o goodput"
    job = Job("torchrun", 2, f"{common} -x 1000000 -n 200 -nk 1")
    ready = wait_for(lambda: "DONE_00000200" in state_files("goodput") or job.processes[0].poll() is not None)
    time.sleep(1.3)  # a line a second
    job.kill()
    r = job.wait()
    c.check(ready and "\ngoodput " not in r.outs[0], "killed: says nothing", str(r))
    time.sleep(0.5)
    job = Job("torchrun", 3, f"{common} -x 1000000 --resume")
    job.seen(r"step +\d+/")
    time.sleep(0.3)
    job.send(2, signal.SIGTERM)
    r = job.wait(30)
    lines = [[line for line in r.lines if line.startswith("goodput ")]]
    c.check(r.codes == [75] * 3, "ended by a signal", str(r))
    saved = max([int(f[5:]) for f in state_files("goodput") if f.startswith("DONE_")], default=0)
    time.sleep(0.4)
    r = train(1, f"{common} -x {saved + 2} -n 1 --resume".replace("--val-every 0 --val-steps 0", "--val-every 1 --val-steps 2"))
    fine(r, "goodput: done on one rank", 2)
    lines.append([line for line in r.lines if line.startswith("goodput ")])
    r = train(2, f"{common} -x {saved + 4} -n 1 --resume")
    fine(r, "goodput: and on, on two", 2)
    lines.append([line for line in r.lines if line.startswith("goodput ")])
    rows = goodput_rows("goodput")
    c.check([x[5] for x in rows] == ["running", "saved", "done", "done"], "goodput.log: how each start ended", rows)
    if len(rows) != 4:
        return
    resumed = rows[1][0]
    c.check([x[:2] for x in rows[1:]] == [(resumed, saved), (saved, saved + 2), (saved + 2, saved + 4)] and rows[0][0] == 0 < resumed and rows[0][1] > 0, "goodput.log: steps", rows)
    c.check(all(x[2]["loading"] > 0 and x[2]["training"] > 0 and abs(sum(x[2].values()) - (x[4] - x[3])) < 0.1 for x in rows), "goodput.log: the classes are all of the time", rows)
    c.check(rows[2][2]["evaluating"] > 0 and rows[3][2]["evaluating"] == 0 and rows[2][2]["saving"] > 0, "goodput.log: evaluating and saving", rows)
    lost = rows[0][2]["training"] * max(0, rows[0][1] - resumed) / rows[0][1]  # 0: its last second, which no line tells of, began before that checkpoint
    for starts, line in zip((2, 3, 4), lines):
        name = f"goodput after {starts} starts"
        found = re.fullmatch(r"goodput (\d+\.\d)% of (\S+): (training .*) \((\d+) starts\)", line[0]) if len(line) == 1 else None
        c.check(found and int(found.group(4)) == starts, f"{name}: one line", line)
        if not found:
            continue
        between = sum(max(0.0, b[3] - a[4]) for a, b in zip(rows[:starts], rows[1:starts]) if a[5] != "done")
        due = {x: sum(row[2][x] for row in rows[:starts]) for x in rows[0][2]}
        due.update({"training": due["training"] - lost, "lost steps": lost, "between starts": between})
        parts = {" ".join(x.split()[:-1]): duration_seconds(x.split()[-1]) for x in found.group(3).split(", ")}
        c.check(all(abs(parts.get(x, 0.0) - due[x]) <= (0.06 if due[x] < 9.9 else 0.6) for x in due) and set(parts) <= set(due), f"{name}: its parts", f"{line}, due {due}")
        c.check(abs(float(found.group(1)) - 100 * due["training"] / sum(due.values())) < 0.2 and between > 0.5, f"{name}: its share", f"{line}, due {due}")


def check_script():
    """llm.c's 124M script, small, on two ranks: a loop that starts the program again until the marker of the last step is there."""
    if not MPIRUN:
        return
    shape = Shape(2, 64, 4, 64)
    put(f"{tmp}/d6.bin", model_bytes(shape, 5, weights(shape, False)))
    shard(f"{tmp}/fineweb_train_000001.bin", text[:512 * 10 + 1])
    put(f"{tmp}/run.sh", f"""#!/bin/bash
out_dir=log_script
done_file=$out_dir/DONE_00000010
n=0
while true; do
    if [ -f "$done_file" ]; then
        echo "File $done_file exists. Exiting the loop."
        break
    fi
    if [ $n = 0 ]; then
        (while [ ! -f $out_dir/DONE_00000005 ]; do sleep 0.02; done; kill -9 $(cat first_rank)) &
    fi
    {MPIRUN} -np 2 --oversubscribe bash -c 'echo $$ >first_rank; exec "$@"' x {program} \\
        -i "fineweb_train_*.bin" -j val.bin -o $out_dir -e d6.bin -b 2 -t 64 -d 512 -r 1 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 7 -n 5 -v 5 -s 20000 -h 0 \\
        -nk 5 -nm 50 -ge 1 -y 1
    n=$((n + 1))
    if [ $n -gt 5 ]; then break; fi
done
echo started $n times
""".encode())
    r = Job("script", 2, "run.sh").wait()
    out = r.outs[0] + r.err
    log = get(f"{tmp}/log_script/main.log").decode()
    found = [int(x) for x in re.findall(r"^s:(\d+) trl:", log, flags=re.M)]
    c.check("DONE_00000010 exists" in out and found == list(range(10)), "llm.c's restart loop with mpirun -np 2 and -z 1", f"main.log has steps {found}{r}")
    c.check(re.search(r"resuming from step 5", out) and re.search(r"started [23] times", out), "the loop went on from step 5", str(r))


if MPIRUN is None:
    c.skip("mpirun", "not installed")
sections = [(name[6:], f) for name, f in list(globals().items()) if name.startswith("check_")]
if args.only and args.only not in dict(sections):
    parser.error(f"there is no section '{args.only}', only {', '.join(dict(sections))}")
for name, f in sections:
    if args.only in ("", name):
        c.section(name, f, 400)
        end_jobs()
c.end()
