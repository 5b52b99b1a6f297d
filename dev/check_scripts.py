#!/usr/bin/env python3
"""check_scripts.py [PROGRAM] - scripts/run_until_done.sh with commands that fail as told, and the scripts of scripts/multi_node with two ranks on this machine

srun and scontrol are stand-ins made here, mpirun is the real one (skipped where it is missing). PROGRAM: a trainer, not to build one.
"""
import atexit
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from checking import Checks, ROOT, WAIT_FOR_ALL, run, trainer
from llmc_files import Shape, get, model_bytes, put, shard, weights

c = Checks()
tmp = tempfile.mkdtemp(prefix="check_scripts.")
atexit.register(shutil.rmtree, tmp, ignore_errors=True)
SCRIPT = os.path.join(ROOT, "scripts/run_until_done.sh")
program = trainer(c, sys.argv[1] if len(sys.argv) > 1 else None)

# The n-th start does what the n-th word of $PLAN says: a number: ends with it; a number and +: after a new checkpoint; wait: until a signal, which is noted, then
# a checkpoint and 75; deaf: as wait, but the first signal is only noted. What was given, and which signals came, is in the folder of the checkpoints.
FAKE = r"""#!/bin/bash
mkdir -p "$FOLDER"
printf '%s\n' "$@" >"$FOLDER/arguments"
n=$(cat "$FOLDER/starts" 2>/dev/null || echo 0)
n=$((n + 1))
echo $n >"$FOLDER/starts"
read -ra plan <<<"$PLAN"
what=${plan[n - 1]}
checkpoint() { touch "$FOLDER/DONE_$(printf %08d $((n * 8)))"; }
came() { echo "$1" >>"$FOLDER/signals"; if [ $what != deaf ]; then checkpoint; exit 75; fi; what=wait; }
echo "start $n says $what" >&2
echo "output of start $n"
for s in USR1 TERM INT; do trap "came $s" $s; done
case $what in
    wait | deaf) touch "$FOLDER/waits.$n"; while true; do sleep 0.02; done ;;
    *+) checkpoint; exit ${what%+} ;;
    *) exit $what ;;
esac
"""
put(f"{tmp}/fake", FAKE.encode())
put(f"{tmp}/torchrun", b'#!/bin/bash\nexec "$@"\n')
for name in ("fake", "torchrun"):
    os.chmod(f"{tmp}/{name}", 0o755)
count = 0


class Fake:
    """run_until_done.sh with a plan. arguments: of the command, {out} is its output folder."""
    def __init__(self, plan, arguments="--output-dir {out}", before="", **env):
        global count
        count += 1
        self.folder = f"{tmp}/run{count}"
        words = before.split() + [f"{tmp}/fake"] + [w.replace("{out}", self.folder) for w in arguments.split()]
        self.process = subprocess.Popen([SCRIPT] + words, cwd=tmp, env=dict(os.environ, **{"PLAN": plan, "FOLDER": self.folder, "RESTART_SECONDS": "0", **env}),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.began = time.monotonic()

    def waits(self, start):
        end = time.monotonic() + 20
        while not os.path.exists(f"{self.folder}/waits.{start}") and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.01)

    def end(self):
        try:
            self.out, self.err = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
        self.code, self.seconds = self.process.returncode, time.monotonic() - self.began
        self.starts = int(self.read("starts") or 0)
        self.log = self.read("restarts.log")
        return self

    def read(self, name):
        path = f"{self.folder}/{name}"
        return get(path).decode() if os.path.exists(path) else ""

    def __str__(self):
        return f"\n  exit code {self.code} after {self.seconds:.1f} s, {self.starts} starts\n  stdout: {self.out}\n  stderr: {self.err}\n  log: {self.log}"


def check_restarts():
    r = Fake("0").end()
    c.check(r.code == 0 and r.starts == 1 and r.read("arguments").split("\n")[:3] == ["--output-dir", r.folder, "--resume"], "--resume is added", str(r))
    c.check("output of start 1" in r.out and "start 1 says 0" in r.err, "both outputs pass", str(r))
    for arguments in ("-o {out} -y 1", "--output_dir={out} --resume"):
        r = Fake("0", arguments).end()
        c.check(r.code == 0 and r.read("arguments").split() == arguments.replace("{out}", r.folder).split(), f"{arguments}: nothing is added", str(r))
    r = Fake("1+ 139+ 7+ 1+ 0").end()
    c.check(r.code == 0 and r.starts == 5, "failures with progress never end it", str(r))
    entries = re.findall(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) start (\d) ended with exit code (\d+) after \d+ s, newest checkpoint: (.*)$", r.log, flags=re.M)
    c.check([e[1:] for e in entries] == [("1", "1", "step 8"), ("2", "139", "step 16"), ("3", "7", "step 24"), ("4", "1", "step 32"), ("5", "0", "step 32: done")], "the log says why", str(r))
    c.check("    | start 2 says 139+" in r.log, "the log has the last lines of stderr", str(r))
    r = Fake("1 1+ 1 1 5").end()
    c.check(r.code == 5 and r.starts == 5 and "given up" in r.log, "three failures in a row without progress: given up, with the last exit code", str(r))
    r = Fake("3 4 5", MAX_FAILURES="2").end()
    c.check(r.code == 4 and r.starts == 2, "MAX_FAILURES", str(r))
    for n in (2, 126, 127):
        r = Fake(f"{n} 0").end()
        c.check(r.code == n and r.starts == 1 and "not tried again" in r.log, f"exit code {n} is not tried again", str(r))
    r = Fake("75+ 75+ 0", RESTART_SECONDS="20").end()
    c.check(r.code == 0 and r.starts == 3 and r.seconds < 15, "saved by a signal: at once again", str(r))
    r = Fake("75 75 75 0").end()
    c.check(r.code == 75 and r.starts == 3, "75 without a new checkpoint is a failure", str(r))
    r = Fake("1 0", RESTART_SECONDS="1").end()
    c.check(r.code == 0 and r.seconds >= 1, "RESTART_SECONDS", str(r))
    folder = f"{tmp}/run{count + 1}"
    os.makedirs(folder)
    for name in ("DONE_00000009", "DONE_", "DONE_00000099.tmp", "DONE_x"):  # 9 is no octal number
        put(f"{folder}/{name}", b"")
    r = Fake("1 1 1").end()
    c.check(r.code == 1 and r.starts == 3 and "newest checkpoint: step 9\n" in r.log, "only whole DONE_ names count", str(r))


def check_signals():
    r = Fake("wait 0", RESTART_SECONDS="20")
    r.waits(1)
    r.process.send_signal(signal.SIGUSR1)
    r.end()
    c.check(r.code == 0 and r.starts == 2 and r.read("signals") == "USR1\n" and r.seconds < 15, "USR1: saved, started again at once", str(r))
    for what in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        r = Fake("wait 0")
        r.waits(1)
        r.process.send_signal(what)
        r.end()
        c.check(r.code == 75 and r.starts == 1 and r.read("signals") == "USR1\n" and "stopped by a signal" in r.log, f"{what.name}: the command saves, and is not started again", str(r))
    r = Fake("deaf 0")
    r.waits(1)
    for n in (1, 2):
        r.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while r.read("signals").count("\n") < n and time.monotonic() < end:
            time.sleep(0.01)
    r.end()
    c.check(r.code == 75 and r.starts == 1 and r.read("signals") == "USR1\nUSR1\n", "a second TERM goes on to the command", str(r))
    r = Fake("wait 0")
    r.waits(1)
    os.killpg(r.process.pid, signal.SIGINT)  # a Ctrl-C
    r.end()
    c.check(r.code == 75 and r.read("signals") == "USR1\n", "Ctrl-C reaches the command once", str(r))
    r = Fake("wait 0", before=f"{tmp}/torchrun")
    r.waits(1)
    r.process.send_signal(signal.SIGTERM)
    r.end()
    c.check(r.code == 75 and r.read("signals") == "TERM\n", "torchrun gets TERM", str(r))
    r = Fake("1 0", RESTART_SECONDS="20")
    while r.process.poll() is None and "ended with" not in r.read("restarts.log"):
        time.sleep(0.02)
    time.sleep(0.1)
    r.process.send_signal(signal.SIGTERM)
    r.end()
    c.check(r.code == 1 and r.starts == 1 and r.seconds < 15, "TERM between two starts ends it", str(r))


def check_usage():
    for name, words, env in (("no command", [], {}), ("no output folder", ["true"], {}), ("--no-resume", ["true", "-o", "x", "--no-resume"], {}),
                             ("MAX_FAILURES=0", ["true", "-o", "x"], {"MAX_FAILURES": "0"}), ("RESTART_SECONDS=a", ["true", "-o", "x"], {"RESTART_SECONDS": "a"})):
        code, out = run([SCRIPT] + words, cwd=tmp, env=dict(os.environ, **env))
        c.check(code == 2 and "usage:" in out, f"run_until_done.sh: {name}", f"exit code {code}: {out}")
    code, out = run([os.path.join(ROOT, "scripts/multi_node/run_mpirun.sh")], env=dict(os.environ, HOSTS="a:8,b"))
    c.check(code == 2 and "HOSTS='a:8,b'" in out, "run_mpirun.sh: HOSTS", f"exit code {code}: {out}")


# srun of one node: TASKS processes with slurm's variables; hands USR1 on, ends with the largest exit code
SRUN = r"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
pids=() step=$RANDOM
trap 'told=1; kill -USR1 "${pids[@]}" 2>/dev/null' USR1
for ((i = 0; i < TASKS; i++)); do
    SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=$TASKS SLURM_STEP_TASKS_PER_NODE=$TASKS SLURM_STEP_NODELIST=localhost SLURM_STEP_ID=$step "$@" &
    pids+=($!)
done
""" + WAIT_FOR_ALL


def end(job):
    """All that it printed. The process groups that the script made are killed if it does not end."""
    try:
        return job.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if f"{tmp}/".encode() in get(f"/proc/{pid}/environ") and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        return job.communicate()[0] + "\n(no end after 60 s)"


def check_multi_node():
    """Each script trains a small model on two ranks, in a copy of the repository's layout; USR1 to a batch script saves and puts the job back."""
    os.makedirs(f"{tmp}/repository/data")
    shutil.copytree(os.path.join(ROOT, "scripts"), f"{tmp}/repository/scripts")
    shape = Shape(1, 16, 2, 64)
    put(f"{tmp}/repository/tiny.bin", model_bytes(shape, 5, weights(shape, False)))
    shard(f"{tmp}/repository/data/fineweb_val_000000.bin", [i % 200 for i in range(3000)])
    put(f"{tmp}/bin/srun", SRUN.encode())
    put(f"{tmp}/bin/scontrol", f'#!/bin/bash\necho "$@" >>{tmp}/scontrol.log\n'.encode())
    for name in ("srun", "scontrol"):
        os.chmod(f"{tmp}/bin/{name}", 0o755)
    launchers = ("OMPI_", "PMI", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    env = dict({k: v for k, v in os.environ.items() if not k.startswith(launchers)}, PATH=f"{tmp}/bin:{os.environ['PATH']}", OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TASKS="2", SLURM_JOB_ID=str(os.getpid()), SLURM_SUBMIT_DIR=f"{tmp}/repository", SLURM_NTASKS="16", SLURM_PROCID="0",
               TRAINER=program, DATA="data", MODEL="tiny.bin", SEQ_LEN="64", BATCH="2", TOTAL="512", INTERFACE="lo", HOSTS="localhost:2", RESTART_SECONDS="0")
    scripts = ["run_slurm_tcp.sbatch", "run_slurm_fs.sbatch"]
    if shutil.which("mpirun"):
        scripts.append("run_mpirun.sh")
    else:
        c.skip("run_mpirun.sh", "no mpirun")
    for script in scripts:
        def start(out, tokens):
            shard(f"{tmp}/repository/data/fineweb_train_000001.bin", [i % 199 for i in range(tokens)])
            return subprocess.Popen([f"{tmp}/repository/scripts/multi_node/{script}"], cwd=f"{tmp}/repository", env=dict(env, OUT=out), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        job = start(f"{script}.whole", 512 * 4 + 1)
        out = end(job)
        files = os.listdir(f"{tmp}/repository/{script}.whole")
        c.check(job.returncode == 0 and "step    4/4 |" in out and re.search(r"num_processes +\| 2 ", out) and "DONE_00000004" in files, f"{script}: two ranks train", f"{files}\n{out[-3000:]}")
        c.check(not [f for f in files if not re.fullmatch(r"(main|goodput)\.log|restarts\.log|(model|state|DONE)_.*", f)] and not os.path.exists(f"{tmp}/scontrol.log"),
                f"{script}: nothing stays behind, nothing is put back", files)
        # slurm sends USR1 before the time limit: the job goes back into the queue; TERM is scancel's: it does not
        for what, queued in ((signal.SIGUSR1, True), (signal.SIGTERM, False)) if script.endswith(".sbatch") else ((signal.SIGTERM, False),):
            folder = f"{tmp}/repository/{script}.{what.name}"
            job = start(f"{script}.{what.name}", 512 * 100000 // 50 + 1)
            until = time.monotonic() + 30
            while time.monotonic() < until and not (os.path.exists(f"{folder}/main.log") and get(f"{folder}/main.log").count(b"trl:") >= 3) and job.poll() is None:
                time.sleep(0.02)
            job.send_signal(what)
            out = end(job)
            done = [f for f in os.listdir(folder) if f.startswith("DONE_")]
            c.check(job.returncode == 75 and len(done) == 1, f"{script}: {what.name} saves and ends", f"exit code {job.returncode}, {done}\n{out[-3000:]}")
            put_back = get(f"{tmp}/scontrol.log").decode() if os.path.exists(f"{tmp}/scontrol.log") else ""
            c.check(put_back == (f"requeue {os.getpid()}\n" if queued else ""), f"{script}: {what.name} {'puts the job back into the queue' if queued else 'ends the job'}", put_back)
            run(f"rm -f {tmp}/scontrol.log")


def check_text():
    files = sorted(glob.glob(f"{ROOT}/scripts/multi_node/*"))
    if shutil.which("shellcheck"):
        code, out = run(["shellcheck"] + files)
        c.check(code == 0, "shellcheck scripts/multi_node", out)
    else:
        c.skip("shellcheck", "not installed")
    for f in files:
        c.check(os.access(f, os.X_OK) and re.match(rf"#!/usr/bin/env bash\n# {re.escape(os.path.basename(f))} - \S", get(f).decode()), os.path.basename(f), "is executable, and says what it is")


check_restarts()
check_signals()
check_usage()
check_multi_node()
check_text()
c.end()
