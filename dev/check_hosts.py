#!/usr/bin/env python3
"""check_hosts.py [PROGRAM] - ranks on several hosts, which are name spaces of this machine: strangers on the network, hosts that vanish, mpirun and its script

gpu1 and gpu2 have a name, two networks, mounts and shared memory of their own, and share the numbers of processes: to the CPU device's collectives, which know a
machine by these, they are one machine, while all that the ranks tell each other to meet and to watch goes over the network. gpu3 has its own numbers, too: there
the collectives need MPI. Everything lives below a process that is killed with this script. Skipped where name spaces may not be made (they need root). PROGRAM: a
trainer, not to build one. --only NAME: one section.
"""
import argparse
import atexit
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from checking import Checks, ROOT, clean_environment, run, trainer
from llmc_files import Run, Shape, V, get, model_bytes, put, shard, weights

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?")
parser.add_argument("--only", default="")
args = parser.parse_args()
c = Checks()
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
tmp = os.environ.get("CHECK_HOSTS_INSIDE", "")

if not tmp:  # the outer process: makes the name spaces, and this script again as their process 1
    missing = [x for x in ("ip", "mount", "nsenter", "unshare") if not shutil.which(x)]
    if missing:
        c.skip("hosts", f"no {' and no '.join(missing)}")
        c.end()
    program = trainer(c, args.program)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET):
        c.skip("hosts", f"name spaces may not be made here ({os.strerror(ctypes.get_errno())})")
        c.end()
    tmp = tempfile.mkdtemp(prefix="check_hosts.")
    atexit.register(shutil.rmtree, tmp, ignore_errors=True)
    PR_SET_PDEATHSIG = 1
    atexit.register(libc.umount2, tmp.encode(), 2)
    child = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), program, "--only", args.only], env=dict(os.environ, CHECK_HOSTS_INSIDE=tmp),
                             preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    sys.exit(child.wait() and 1)

program = args.program
MPIRUN = shutil.which("mpirun")
CLEAN = dict(clean_environment(), OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=tmp, GPT_JOB_TOKEN="of this check")
T, WATCHDOG = 32, 3
STEPS = f"--train-data train.bin --val-data train.bin --seq-len {T} --learning-rate 1e-3 --layers 2 --heads 4 --channels 64 --vocab-size {V} --sample-every 0 --val-every 0 --val-steps 0 -b 2"

# ---------------------------------------------------------------------------- hosts


def shell(command, where=None):
    """A command line that must work."""
    code, out = run((where.words() if where else []) + ["bash", "-ec", command], env=CLEAN, timeout=30)
    if code:
        raise RuntimeError(f"{command}: {out}")
    return out


def processes():
    """{process id: its network} of all that live here."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                    found[int(pid)] = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            pass
    return found


class Host:
    """gpuN: eth0 is 10.77.0.N, eth1 is 10.78.0.N, and docker0 has the same address everywhere. own_pids: its processes are numbered from 1."""
    def __init__(self, number, own_pids=False):
        self.name, self.number, self.own_pids = f"gpu{number}", number, own_pids
        more = ["--pid", "--fork", "--kill-child", "--mount-proc"] if own_pids else []
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--mount"] + more + ["sleep", "100000"])
        self.pid = self.holder.pid
        end = time.monotonic() + 10
        while time.monotonic() < end and not (get(f"/proc/{self.pid}/comm") == b"sleep\n"):
            children = get(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").split()
            self.pid = int(children[0]) if children else self.holder.pid
            time.sleep(0.005)
        self.net = os.readlink(f"/proc/{self.pid}/ns/net")
        for n in (0, 1):
            shell(f"ip link add v{number}.{n} type veth peer name eth{n} netns {self.pid}; ip link set v{number}.{n} master net{n} up")
        self.names = f"{tmp}/hosts.{self.name}"
        self.set_names({})
        boot = "" if own_pids else "; mount --bind /dev/null /proc/sys/kernel/random/boot_id"  # by this and the numbers of processes ranks know which of them they can kill
        shell(f"hostname {self.name}; ip link set lo up; ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up; "
              f"for n in 0 1; do ip addr add 10.7$((7 + n)).0.{number}/24 dev eth$n; ip link set eth$n up; done; "
              f"mount -t tmpfs none /dev/shm; mount --bind {self.names} /etc/hosts" + boot, self)

    def set_names(self, other):
        names = dict({f"gpu{n}": f"10.77.0.{n}" for n in (1, 2, 3)}, **other)
        put(self.names, "".join(f"{address} {name}\n" for name, address in [("localhost", "127.0.0.1")] + list(names.items())).encode())

    def words(self):
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-i", "-m"] + (["-p"] if self.own_pids else []) + ["env", "-C", tmp]

    def listeners(self):
        """[(address, port)] of all TCP sockets that listen here."""
        found = []
        for name in ("tcp", "tcp6"):
            for line in get(f"/proc/{self.pid}/net/{name}").decode().splitlines()[1:]:
                address, state = line.split()[1], line.split()[3]
                if state == "0A":
                    number, port = address.split(":")
                    found.append((socket.inet_ntoa(struct.pack("<I", int(number, 16))) if name == "tcp" else number, int(port, 16)))
        return sorted(found)

    def alive(self):
        return [pid for pid, net in processes().items() if net == self.net and pid not in (self.pid, self.holder.pid)]

    def kill(self, what=signal.SIGKILL):
        for pid in self.alive():
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                pass

    def link(self, state):
        """eth0 and eth1 of a host that loses power, or gets it back."""
        for n in (0, 1):
            shell(f"ip link set v{self.number}.{n} {state}")


# ---------------------------------------------------------------------------- jobs

jobs = []
next_port = iter(range(21000, 60000))  # this network is this script's alone


class Job:
    """kind: whose variables are given to the ranks, or how they meet. hosts: of each rank, those of one host in a row. late: ranks that begin() starts."""
    def __init__(self, kind, hosts, arguments, late=(), each=None, **env):
        self.hosts, self.what, self.name = hosts, f"{kind} on {' '.join(h.name for h in hosts)}: {arguments}", f"job{len(jobs)}"
        jobs.append(self)
        P, self.port = len(hosts), next(next_port)
        next(next_port)
        order = list(dict.fromkeys(hosts))
        self.processes, self.commands = {}, []
        for r, host in enumerate(hosts):
            local, on_host, more = r - hosts.index(host), hosts.count(host), []
            e = dict(CLEAN)
            if kind == "torchrun":
                e.update(RANK=str(r), WORLD_SIZE=str(P), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(on_host), MASTER_ADDR=hosts[0].name, MASTER_PORT=str(self.port - 1))
            elif kind == "srun":
                nodes = f"gpu[{','.join(str(h.number) for h in order)}]"
                e.update(SLURM_PROCID=str(r), SLURM_STEP_NUM_TASKS=str(P), SLURM_LOCALID=str(local), SLURM_NODEID=str(order.index(host)), SLURM_STEP_ID="0", SLURM_JOB_ID="7",
                         SLURM_STEP_TASKS_PER_NODE=",".join(str(hosts.count(h)) for h in order), SLURM_STEP_NODELIST=nodes, SLURM_JOB_NODELIST=nodes)
                more = ["--server-port", str(self.port)]
            elif kind == "tcp":
                more = f"-pn {P} -pr {r} -pg {hosts.count(hosts[0])} -pi tcp -ps 10.77.0.{hosts[0].number} --server-port {self.port}".split()
            elif kind == "fs":
                more = f"-pn {P} -pr {r} -pg {hosts.count(hosts[0])} -pi fs -pf {tmp}".split()
            self.commands.append((host.words() + [program] + arguments.split() + more + (each(r) if each else []), dict(e, **env)))
        for r in range(P):
            if r not in late:
                self.begin(r)
        self.began = time.monotonic()

    def begin(self, rank):
        command, env = self.commands[rank]
        with open(f"{tmp}/{self.name}.{rank}.out", "wb") as out, open(f"{tmp}/{self.name}.{rank}.err", "wb") as err:
            self.processes[rank] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def text(self, rank, what):
        path = f"{tmp}/{self.name}.{rank}.{what}"
        return get(path).decode("utf-8", "replace") if os.path.exists(path) else ""

    def seen(self, pattern, seconds=30):
        """Waits until rank 0 has printed it. False: it ended without, or time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            running = self.processes[0].poll() is None
            if re.search(pattern, self.text(0, "out")):
                return True
            if not running:
                return False
            time.sleep(0.01)
        return False

    def wait(self, seconds=60):
        """Waits for the end of all; then codes, err (of all ranks), losses (as rank 0 printed them) and seconds since now are set."""
        began = time.monotonic()
        late = ""
        for p in self.processes.values():
            try:
                p.wait(max(0.01, began + seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = f"(no end after {seconds} s)\n"
        self.seconds = time.monotonic() - began
        if late:
            for h in set(self.hosts):
                h.kill()
        self.codes = [self.processes[r].wait() for r in sorted(self.processes)]
        self.errs = [self.text(r, "err") for r in sorted(self.processes)]
        self.err = late + "".join(self.errs)
        self.losses = Run(self.what, self.codes[0], self.text(0, "out"), self.err).losses
        return self

    def __str__(self):
        return f"\n  job: {self.what}\n  exit codes {self.codes}, {self.seconds:.1f} s\n  stderr: {self.err[-2500:]}\n  stdout of rank 0 ends: {self.text(0, 'out')[-1200:]}"


def messages(err):
    return re.findall(r"^(?:ERROR|usage error|error): .*", err, flags=re.M)


def fine(job, name, losses):
    ok = not any(job.codes) and not job.err
    c.check(ok and job.losses == losses, name, f"losses {job.losses}, should be {losses}{job}")


def wait_for(holds, seconds=10):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def nobody_left(name):
    c.check(wait_for(lambda: not any(h.alive() for h in hosts), 5), f"{name}: no process stays behind", {h.name: [get(f"/proc/{p}/cmdline") for p in h.alive()] for h in hosts})
    for h in hosts:
        h.kill()


# ---------------------------------------------------------------------------- strangers


def connect(address, what, source="10.77.0.254"):
    """A connection that has said something (None: reset at once, as a port scan does); None if it was refused."""
    s = socket.socket()
    try:
        s.settimeout(2)
        s.bind((source, 0))
        s.connect(address)
        if what is None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
            return None
        s.sendall(what)
        return s
    except OSError:
        s.close()
        return None


rng = random.Random(3)
HELLO = b"llmfp8c1"
WORDS = [b"", None, b"GET / HTTP/1.1\r\nHost: gpu1\r\n\r\n", b"\0" * 4096, rng.randbytes(4096), HELLO, HELLO + rng.randbytes(16), HELLO + rng.randbytes(2000), HELLO[:5], b"\x16\x03\x01\x02"]


def bother(addresses, times):
    """Connections that stay open, a number of each kind to each address."""
    return [s for address in addresses for what in WORDS for _ in range(times) for s in [connect(address, what)] if s]


# ---------------------------------------------------------------------------- the checks


def check_meet():
    """However they meet over a network: the run of one host. Nobody listens on anything but the address that was given."""
    steps = f"{STEPS} -d {12 * T} -x 4"
    for kind in ("torchrun", "srun", "tcp", "fs"):
        job = Job(kind, [gpu1, gpu1, gpu2], steps).wait()
        fine(job, f"{kind}: two ranks on one host and one on another", whole.losses)
    for kind, loopback in (("fs", {"gpu1": "127.0.1.1"}), ("srun", {})):  # a host that knows its own name as loopback, as Debian does; the other network
        gpu1.set_names(loopback)
        job = Job(kind, [gpu1, gpu2, gpu2], steps, each=lambda r: ["--server-ip", "10.78.0.1"] if not loopback else []).wait()
        fine(job, f"{kind}: one rank on one host and two on another", whole.losses)
    gpu1.set_names({"gpu1": "127.0.1.1"})
    job = Job("srun", [gpu1, gpu2], f"{steps} --watchdog-seconds {WATCHDOG}", late=[1]).wait(20)
    due = ("'gpu1'", "loopback", "10.77.0.1, 10.78.0.1, 172.17.0.1", "--server-ip")
    c.check(job.codes == [1] and len(messages(job.err)) == 1 and all(x in job.err for x in due), "a name that is loopback on rank 0's host", str(job))
    gpu1.set_names({})
    job = Job("torchrun", [gpu1, gpu2], steps, late=[1], MASTER_ADDR="10.77.0.2").wait(20)
    c.check(job.codes == [1] and len(messages(job.err)) == 1 and all(x in job.err for x in ("10.77.0.2", "gpu1", "10.77.0.1, 10.78.0.1, 172.17.0.1")), "MASTER_ADDR is another host's", str(job))
    nobody_left("meeting")


def check_sockets():
    """Rank 0 listens on the address given, and only until all have come; then each other rank on the address of its link."""
    job = Job("tcp", [gpu1, gpu1, gpu2], f"{STEPS} -d {12 * T} -x 1000000 -o sockets", late=[1, 2])
    c.check(wait_for(lambda: gpu1.listeners() == [("10.77.0.1", job.port)]), "rank 0 listens on --server-ip alone", gpu1.listeners())
    c.check(connect(("10.78.0.1", job.port), b"", "10.78.0.254") is None, "from the other network: refused")
    code, out = run(gpu1.words() + [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {job.port}))"])
    c.check(code == 1 and "refused" in out, "from the host itself by loopback: refused", out)
    s = connect(("10.77.0.1", job.port), b"")
    c.check(s is not None, "from the network of --server-ip: accepted")
    job.begin(1)
    job.begin(2)
    c.check(job.seen(r"step +2/"), "they meet", str(job.text(0, "out")))
    found = gpu1.listeners() + gpu2.listeners()
    c.check([x[0] for x in found] == ["10.77.0.1", "10.77.0.2"] and job.port not in [x[1] for x in found], "while they train: one socket of each other rank, on the same network", found)
    job.processes[0].send_signal(signal.SIGTERM)
    job.wait(20)
    c.check(job.codes == [75] * 3, "a signal ends all", str(job))
    c.check(not gpu1.listeners() and not gpu2.listeners(), "afterwards nobody listens")
    nobody_left("sockets")


def check_strangers():
    """Connections that say nothing, too little or nonsense, while the ranks meet and while they train: neither join, stall nor end them."""
    steps = f"{STEPS} -d {12 * T} --watchdog-seconds {WATCHDOG}"
    job = Job("tcp", [gpu1, gpu1, gpu2], f"{steps} -x 4", late=[2])
    wait_for(lambda: gpu1.listeners() and gpu1.listeners()[0][1] == job.port)
    open_ones = bother([("10.77.0.1", job.port)], 20)
    for port in range(job.port - 200, job.port + 200):  # a scan
        connect(("10.77.0.1", port), None)
    began = time.monotonic()
    job.begin(2)
    open_ones += bother([("10.77.0.1", job.port)], 20)
    c.check(job.seen("step +1/"), "strangers while the ranks meet: they meet", job.text(0, "err"))
    took = time.monotonic() - began
    job.wait(20)
    fine(job, "strangers while the ranks meet: the same run", whole.losses)
    c.check(took < 5, "strangers while the ranks meet: in time", f"{took:.1f} s")
    for s in open_ones:
        s.close()
    job = Job("tcp", [gpu1, gpu1, gpu2], f"{steps} -x 1000000 -o strangers")
    ready = job.seen(r"step +2/")
    addresses = gpu1.listeners() + gpu2.listeners()
    open_ones = bother(addresses, 20)
    at = len(re.findall(r"^step ", job.text(0, "out"), flags=re.M))
    time.sleep(WATCHDOG + 1)
    later = len(re.findall(r"^step ", job.text(0, "out"), flags=re.M))
    job.processes[2].send_signal(signal.SIGTERM)
    job.wait(20)
    c.check(ready and len(addresses) == 2 and open_ones and later > at + 10, "strangers while they train: it goes on", f"steps {at} and {later}, {len(open_ones)} connections to {addresses}{job}")
    c.check(job.codes == [75] * 3 and not job.err and job.losses[:4] == whole.losses[:4], "strangers while they train: the same run", str(job))
    job = Job("tcp", [gpu1, gpu2], f"{steps} -x 4", late=[1], GPT_JOB_TOKEN="right")
    command, env = job.commands[1]
    impostor = subprocess.Popen(command, env=dict(env, GPT_JOB_TOKEN="wrong"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    joined = job.processes[0].poll() is not None or re.search("step +1/", job.text(0, "out"))
    job.begin(1)
    job.wait(20)
    c.check(not joined and job.codes == [0, 0] and impostor.poll() is None, "a rank with another GPT_JOB_TOKEN does not join", str(job))
    impostor.kill()
    impostor.wait()
    for s in open_ones:
        s.close()
    nobody_left("strangers")


def check_lost():
    """A host whose power fails, whose cable is pulled, or whose processes are killed: all ends in time, and one message says which rank, host, step and operation."""
    placed = [gpu1, gpu2, gpu2]
    for victim, how in ((gpu2, "killed"), (gpu2, "power"), (gpu1, "power, and NCCL finds out first"), (gpu1, "cable")):
        job = Job("tcp", placed, f"{STEPS} -d {12 * T} -x 1000000 --watchdog-seconds {WATCHDOG}")
        name = f"{how}: {'rank 0' if victim is gpu1 else 'ranks 1 and 2'}"
        ready = job.seen(r"step +20/")  # so long that the last sign of life tells of a step
        began = time.monotonic()
        if how != "killed":
            victim.link("down")
        if how != "cable":
            victim.kill(signal.SIGSTOP if how == "power" else signal.SIGKILL)
        left, behind = [[r for r in range(3) if (placed[r] is victim) == x] for x in (False, True)]
        wait_for(lambda: all(job.processes[r].poll() is not None for r in left), WATCHDOG + 8)
        took = time.monotonic() - began
        if how == "power":
            victim.kill()
        job.wait(5)
        if how != "killed":
            victim.link("up")
        found = messages("".join(job.errs[r] for r in left))
        lost = rf"rank {'0' if victim is gpu1 else '[12]'} "
        c.check(ready and len(found) == 1 and re.search(rf"{lost}\(host {victim.name}\).* at step \d+ in '[^']+'", found[0]),
                f"{name}: one message", f"{found}{job}")
        c.check(all(job.codes[r] == 1 for r in left) and took < WATCHDOG + 2.5, f"{name}: the others end in time", f"{took:.1f} s{job}")
        if how == "cable":  # they are alone, and cannot agree with the others on who prints
            found = messages("".join(job.errs[r] for r in behind))
            c.check(len(found) == 1 and re.search(r"rank [12] \(host gpu2\).* at step \d+ in '[^']+'", found[0]) and all(job.codes[r] == 1 for r in behind),
                    f"{name}: those behind it end, too", str(job))
        nobody_left(name)


def check_shared_memory():
    """Ranks of two machines never share memory: without MPI the CPU device says that it cannot."""
    job = Job("tcp", [gpu1, gpu3], f"{STEPS} -d {8 * T} -x 2 --watchdog-seconds {WATCHDOG}").wait(20)
    c.check(job.codes == [1, 1] and len(messages(job.err)) == 1 and "another machine" in job.err and "mpirun" in job.err and "rank 1" in messages(job.err)[0], "two machines without MPI", str(job))
    nobody_left("two machines")


def check_mpirun():
    """run_mpirun.sh on two machines; nsenter stands in for ssh. A machine that vanishes: all ends, and the script starts it again from the last checkpoint."""
    if not MPIRUN:
        c.skip("mpirun on two machines", "not installed")
        return
    if "built without MPI" in run([program] + STEPS.split() + "-pi mpi -pn 2 -pr 0".split(), env=CLEAN)[1]:
        c.skip("mpirun on two machines", "the program is built without MPI")
        return
    put(f"{tmp}/ssh", f"""#!/bin/bash
while [[ $1 == -* ]]; do shift; done
if [ $1 != gpu3 ]; then echo "no host $1"; exit 255; fi
shift
exec {' '.join(gpu3.words())} bash -c "$*"
""".encode())
    os.chmod(f"{tmp}/ssh", 0o755)
    shutil.copytree(f"{ROOT}/scripts", f"{tmp}/scripts")
    shape = Shape(2, 64, 4, T)
    put(f"{tmp}/small.bin", model_bytes(shape, 5, weights(shape, False)))
    shard(f"{tmp}/fineweb_val_000000.bin", tokens[:2000])
    env = dict(CLEAN, TRAINER=program, DATA=".", MODEL="small.bin", SEQ_LEN=str(T), BATCH="2", TOTAL=str(12 * T), INTERFACE="eth0", OMPI_MCA_plm_rsh_agent=f"{tmp}/ssh", RESTART_SECONDS="0")

    def start(hosts, out, steps, more=()):
        shard(f"{tmp}/fineweb_train_000001.bin", [tokens[i % len(tokens)] for i in range(12 * T * steps + 1)])
        log = open(f"{tmp}/{out}.log", "wb")
        p = subprocess.Popen(gpu1.words() + ["scripts/multi_node/run_mpirun.sh", *more], env=dict(env, HOSTS=hosts, OUT=out), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()
        return p

    def text(out, name):
        return get(f"{tmp}/{out}/{name}").decode() if os.path.exists(f"{tmp}/{out}/{name}") else ""

    def end(p, seconds=60):
        try:
            return p.wait(seconds)
        except subprocess.TimeoutExpired:
            for h in hosts:
                h.kill()
            return p.wait()
    for out, where in (("one", "gpu1:3"), ("two", "gpu1:1,gpu3:2")):
        code = end(start(where, out, 6))
        c.check(code == 0 and text(out, "main.log").count("trl:") == 6, f"run_mpirun.sh on {where}", f"exit code {code}\n{get(f'{tmp}/{out}.log').decode()[-3000:]}")
    c.check(text("two", "main.log") == text("one", "main.log"), "run_mpirun.sh: the same run on one machine and on two", f"{text('one', 'main.log')}\n{text('two', 'main.log')}")
    nobody_left("run_mpirun.sh")
    p = start("gpu1:1,gpu3:2", "lost", 60, ["--save-every-minutes", "0.005", "--watchdog-seconds", str(WATCHDOG)])
    ready = wait_for(lambda: "DONE_" in " ".join(os.listdir(f"{tmp}/lost") if os.path.isdir(f"{tmp}/lost") else []), 30)
    gpu3.link("down")
    gpu3.kill()
    ready = ready and wait_for(lambda: "start 1 ended" in text("lost", "restarts.log"), WATCHDOG + 20)
    gpu3.link("up")
    code, out = end(p), get(f"{tmp}/lost.log").decode()
    found = [int(x) for x in re.findall(r"^s:(\d+) trl:", text("lost", "main.log"), flags=re.M)]
    c.check(ready and code == 0 and re.search(r"resuming from step [1-9]", out) and found == list(range(60)), "run_mpirun.sh: a machine vanishes, and comes back",
            f"exit code {code}, steps {found}\n{text('lost', 'restarts.log')}\n{out[-3000:]}")
    nobody_left("a machine that vanishes")


tokens, x = [], 1
for _ in range(24000):
    x = (x * 5 + rng.randrange(3)) % V
    tokens.append(x)
try:
    shell(f"mount --make-rprivate /; mount -t proc proc /proc; mount -t tmpfs none {tmp}")
    shell("ip link set lo up; for n in 0 1; do ip link add net$n type bridge; ip addr add 10.7$((7 + n)).0.254/24 dev net$n; ip link set net$n up; done")
    gpu1, gpu2, gpu3 = hosts = [Host(1), Host(2), Host(3, own_pids=True)]
except RuntimeError as e:
    c.skip("hosts", f"they cannot be made here: {e}")
    c.end()
shard(f"{tmp}/train.bin", tokens)
whole = Job("torchrun", [gpu1] * 3, f"{STEPS} -d {12 * T} -x 4").wait()
c.check(not any(whole.codes) and len(whole.losses) == 4, "three ranks on one host", str(whole))
sections = [(name[6:], f) for name, f in list(globals().items()) if name.startswith("check_")]
if args.only and args.only not in dict(sections):
    parser.error(f"there is no section '{args.only}', only {', '.join(dict(sections))}")
for name, f in sections:
    if args.only in ("", name):
        c.section(name, f, 200)
c.end()
