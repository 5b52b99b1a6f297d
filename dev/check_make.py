#!/usr/bin/env python3
"""check_make.py - the Makefile, setup.sh and run_tests.sh do what they say, on machines that are made up: stubs of nvcc, nvidia-smi, apt-get on PATH

Everything happens in a temporary folder with the real Makefile and scripts and with sources of three lines, so nothing depends on what is installed here; but
for the last part, which compiles the real trainer with this machine's compilers, without NCCL, without MPI, and without both.
"""
import os
import random
import re
import shutil
import subprocess
import tempfile
import time

from checking import Checks, ROOT, clean_environment, read, run
from llmc_files import Run, V, random_tokens, shard

c = Checks()
tmp = tempfile.mkdtemp(prefix="check_make.")
tree, stubs = os.path.join(tmp, "tree"), os.path.join(tmp, "stubs")
for folder in ("dev/test", "scripts", "data", "llmc/cpu"):
    os.makedirs(os.path.join(tree, folder))
for f in ("Makefile", "scripts/setup.sh", "scripts/train_text.sh", "dev/run_tests.sh", "dev/doctor.sh"):
    shutil.copy2(os.path.join(ROOT, f), os.path.join(tree, f))


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(os.path.join(tmp, path)), exist_ok=True)
    with open(os.path.join(tmp, path), "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(os.path.join(tmp, path), mode)


def machine(tools, name="stubs"):
    """A PATH with the tools named here ({name: script}) and the usual small ones, but no nvcc, nvidia-smi, apt-get, sudo of this machine."""
    path = os.path.join(tmp, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for tool in ("bash sh env sed sort grep egrep tr cut head tail cat cp mv rm mkdir mktemp basename dirname echo printf test true false uname nproc timeout expand xargs cmp touch "
                 "date sleep ls wc awk tee chmod expr make g++ cc1plus as ld collect2 python3 id dpkg find").split():
        where = shutil.which(tool)
        if where and tool not in tools:
            os.symlink(where, os.path.join(path, tool))
    for tool, script in tools.items():
        if script is not None:
            write(f"{name}/{tool}", script, 0o755)
    return {"PATH": path, "HOME": tmp, "LC_ALL": "C"}


def smi(caps):
    return "#!/bin/sh\n" + "".join(f"echo {x}\n" for x in caps)


def nvcc(codes="sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120"):
    return "#!/bin/sh\n[ \"$1\" = --list-gpu-code ] && for x in " + codes + "; do echo $x; done\nexit 0\n"


def make(args, env):
    return run(f"make {args}", cwd=tree, env=env, timeout=120)


def archs(out):
    return [word.split("=")[-1] for word in out.split() if word.startswith("arch=compute_") for word in [word.split("code=")[-1]]]


write("tree/train_gpt_fp8.cu", "int main() { return 0; }\n")
write("tree/test_gpt_fp8.cu", '#include <stdio.h>\nint main() { puts("3 passed, 0 failed, 0 skipped"); }\n')
write("tree/dev/bench.cu", "int main() { return 0; }\n")
write("tree/dev/test/test_kernel.cu", '#include <stdio.h>\n#if 0\n#include "llmc/x.cuh"\n#endif\nint main() { puts("2 passed, 0 failed, 1 skipped"); }\n')
write("tree/dev/test/test_fibers.cu", '// CPU device only\n#include <stdio.h>\n#if 0\n#include "llmc/x.cuh"\n#endif\nint main() { puts("5 passed, 0 failed"); }\n')
write("tree/data/make_text.py", "")

# ---- architectures
NO_GPU = "#!/bin/sh\necho \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"\nexit 9\n"
for name, tools, args, expected in [
    ("no GPU: all that are supported", {"nvcc": nvcc()}, "", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]),
    ("no GPU, an older toolkit: what it knows", {"nvcc": nvcc("sm_80 sm_86 sm_89 sm_90")}, "", ["sm_80", "sm_89", "sm_90a"]),
    ("a toolkit that does not say what it knows", {"nvcc": "#!/bin/sh\nexit 1\n"}, "", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]),
    ("H100, H200", {"nvcc": nvcc(), "nvidia-smi": smi(["9.0"])}, "", ["sm_90a"]),
    ("eight equal GPUs", {"nvcc": nvcc(), "nvidia-smi": smi(["9.0"] * 8)}, "", ["sm_90a"]),
    ("4090", {"nvcc": nvcc(), "nvidia-smi": smi(["8.9"])}, "", ["sm_89"]),
    ("B200", {"nvcc": nvcc(), "nvidia-smi": smi(["10.0"])}, "", ["sm_100a"]),
    ("5090 and 3090", {"nvcc": nvcc(), "nvidia-smi": smi(["12.0", "8.6"])}, "", ["sm_120a", "sm_86"]),
    ("nvidia-smi without a driver", {"nvcc": nvcc(), "nvidia-smi": NO_GPU}, "", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]),
    ("ARCH= of the user", {"nvcc": nvcc(), "nvidia-smi": smi(["8.9"])}, "ARCH='90a 100a'", ["sm_90a", "sm_100a"]),
]:
    code, out = make(f"-n gpu {args}", machine(tools))
    command = [line for line in out.splitlines() if "-o train_gpt_fp8" in line]
    found = archs(command[0]) if command else []
    c.check(code == 0 and sorted(found) == sorted(expected), f"make gpu: {name}", f"exit {code}, {found}, should be {expected}: {out[-500:]}")
    for flag in ("-lineinfo", "-Xptxas -warn-spills", "-Xcompiler -fopenmp,-Wall,-Wextra", "-std=c++17", "-O3", "-I.", "-lcublasLt", "-ldl"):
        c.check(command and flag in command[0], f"make gpu: {name}: {flag}", out[-500:])
    c.check(command and "llmc/cpu" not in command[0], f"make gpu: {name}", "llmc/cpu on the include path of nvcc")

# ---- targets
gpu, plain = {"nvcc": nvcc(), "nvidia-smi": smi(["9.0"])}, {}
for name, tools, args, wanted, unwanted in [
    ("all with nvcc", gpu, "-n all", ["-o train_gpt_fp8 "], ["train_gpt_fp8_cpu"]),
    ("all without nvcc says so", plain, "NVCC= -n all", ["-o train_gpt_fp8_cpu", "no nvcc found"], ["gencode"]),
    ("NVCC= hides nvcc", gpu, "NVCC= -n all", ["-o train_gpt_fp8_cpu"], ["gencode"]),
    ("cpu flags", plain, "-n cpu CPU_ARCH=x86-64-v3", ["-march=x86-64-v3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fopenmp",
                                                        "-Wall -Wextra", "-Illmc/cpu -I.", "-O3"], ["-Werror", "-ffast-math"]),
    ("WERROR=1", plain, "-n cpu WERROR=1", ["-Werror"], []),
    ("ONEDNN=0", plain, "-n cpu ONEDNN=0", [], ["dnnl", "GPT_WITH_ONEDNN"]),
    ("ONEDNN=1", plain, "-n cpu ONEDNN=1", ["-ldnnl", "-DGPT_WITH_ONEDNN"], []),
    ("train with a GPU", gpu, "-n train", ["scripts/setup.sh", "make_text.py", "-o train_gpt_fp8 ", "train_text.sh ./train_gpt_fp8\n"], ["--text", "_cpu"]),
    ("train without a GPU", {"nvcc": nvcc()}, "-n train TEXT='my text.txt'", ['--text "$TEXT"', "-o train_gpt_fp8_cpu", "train_text.sh ./train_gpt_fp8_cpu"], ["gencode"]),
    ("bench on the CPU", plain, "NVCC= -n bench", ["dev/bench.cu -o build/bench"], ["gencode"]),
    ("bench with a GPU", gpu, "-n bench", ["-o build/gpu/bench"], []),
    ("gpu-compile", {"nvcc": nvcc(), "nvidia-smi": smi(["8.9"])}, "-n gpu-compile", ["-Werror all-warnings", "-c train_gpt_fp8.cu -o build/compile/train_gpt_fp8.o", "build/compile/test_gpt_fp8.o",
                                                                   "build/compile/bench.o", "build/compile/test_kernel.o", "code=sm_80 ", "code=sm_120a "], ["test_fibers"]),
    ("gpu-tests", gpu, "-n gpu-tests", ["-o build/gpu/test_kernel", "-o build/gpu/test_gpt_fp8"], ["test_fibers"]),
    ("asan", plain, "-n asan-tests", ["-fsanitize=address,undefined", "-o build/asan/test_fibers", "-o build/asan/test_gpt_fp8", "-g "], ["dnnl"]),
]:
    code, out = make(args, machine(tools))
    c.check(code == 0, f"make: {name}", f"exit {code}: {out[-800:]}")
    for text in wanted:
        c.check(text in out, f"make: {name}", f"{text!r} is not in: {out[-1500:]}")
    for text in unwanted:
        c.check(text not in out, f"make: {name}", f"{text!r} should not be in: {out[-1500:]}")
code, out = make("gpu NVCC=", machine(plain))
c.check(code != 0 and "no nvcc found" in out and "make cpu" in out, "make gpu without nvcc", out)
code, out = make("help", machine(plain))
for target in "all gpu cpu train test test-asan reference bench gpu-compile gpu-tests clean help doctor".split():
    c.check(f"make {target} " in out, "make help", f"does not name {target}: {out}")
code, out = make("doctor", machine(gpu))
c.check(code == 0 and "would build and run train_gpt_fp8" in out and "nvcc" in out and "90a" in out, "make doctor", out)
c.check(read("Makefile").count("\n") <= 100, "Makefile", "more than 100 lines")

# ---- rebuilding: nothing twice, everything after a change of flags or of a header
write("tree/llmc/y.h", "#define Y 1\n")
write("tree/train_gpt_fp8.cu", '#include "llmc/y.h"\nint main() { return Y - 1; }\n')
env = machine(plain)
for name, before, args, rebuilt in [("first build", None, "ONEDNN=0", True), ("again", None, "ONEDNN=0", False), ("other flags", None, "ONEDNN=0 CPU_ARCH=x86-64", True),
                                    ("a header changed", "llmc/y.h", "ONEDNN=0 CPU_ARCH=x86-64", True), ("and again", None, "ONEDNN=0 CPU_ARCH=x86-64", False)]:
    if before:
        os.utime(os.path.join(tree, before), (2e9, 2e9))
    code, out = make(f"cpu {args}", env)
    c.check(code == 0 and ("-o train_gpt_fp8_cpu" in out) == rebuilt, f"rebuild: {name}", out)
    if before:
        os.utime(os.path.join(tree, before))
        os.utime(os.path.join(tree, "train_gpt_fp8_cpu"))

# ---- run_tests.sh: adds up, goes on after failures, one closing line
write("tree/llmc/y.h", "#define Y 1\n")
write("tree/dev/test/test_broken.cu", "int main() { this does not compile }\n")
write("tree/dev/test/test_crash.cu", '#include <stdlib.h>\nint main() { abort(); }\n')
write("tree/dev/test/test_lies.cu", '#include <stdio.h>\nint main() { puts("4 passed, 0 failed, 0 skipped"); return 1; }\n')
write("tree/dev/test/test_silent.cu", "int main() { return 0; }\n")
write("tree/dev/test/test_slow.cu", "#include <unistd.h>\nint main() { sleep(60); }\n")
write("tree/dev/check_one.py", 'print("7 passed, 2 failed, 3 skipped")\nraise SystemExit(1)\n')
env = machine(plain)
env.update(NVCC="", TEST_TIMEOUT="8", ONEDNN="0")
code, out = run("dev/run_tests.sh unit", cwd=tree, env=env, timeout=300)
# kernel 2+1 skipped, fibers 5, gpt 3, lies 4 + 1 failed; broken, crash, silent, slow 1 failed each
closing = [line for line in out.splitlines() if " passed, " in line]
c.check(code == 1 and closing == ["14 passed, 5 failed, 1 skipped"] and out.splitlines()[-1] == closing[0], "run_tests.sh unit", f"exit {code}: {out}")
for word in ("test_broken", "test_crash", "test_lies", "test_silent", "test_slow", "ran out of time", "does not compile", "nothing was counted"):
    c.check(word in out, "run_tests.sh unit", f"{word!r} is not in: {out}")
for f in ("broken", "crash", "lies", "silent", "slow"):
    os.remove(os.path.join(tree, f"dev/test/test_{f}.cu"))
code, out = run("dev/run_tests.sh", cwd=tree, env=env, timeout=300)
c.check(code == 1 and out.splitlines()[-1] == "27 passed, 2 failed, 6 skipped", "run_tests.sh: unit, asan, checks, no nvcc", f"exit {code}: {out}")
os.remove(os.path.join(tree, "dev/check_one.py"))
code, out = run("make -s test", cwd=tree, env=env, timeout=300)
c.check(code == 0 and out.splitlines()[-1] == "20 passed, 0 failed, 3 skipped", "make test", f"exit {code}: {out}")
env.pop("NVCC")
env.update(machine(gpu))
write("stubs/nvcc", "#!/bin/sh\n[ \"$1\" = --list-gpu-code ] && echo sm_90 && exit 0\necho 'warning: spilled'\nexit 1\n", 0o755)
code, out = run("dev/run_tests.sh gpu", cwd=tree, env=env, timeout=300)
c.check(code == 1 and "spilled" in out and out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped", "run_tests.sh gpu with a compiler that fails", f"exit {code}: {out}")

# ---- setup.sh
LACKS = {"g++": "#!/bin/sh\nexit 1\n", "dpkg": "#!/bin/sh\nexit 1\n"}  # a compiler, but no dnnl.h
APT = '#!/bin/sh\necho "apt-get frontend=$DEBIAN_FRONTEND $*" >> "$HOME/apt.log"\n'
USER = "#!/bin/sh\necho 1000\n"
for name, tools, args, wanted, unwanted, log in [
    ("nothing is missing", {"g++": "#!/bin/sh\nexit 0\n", "apt-get": APT}, "", [], ["setup"], []),
    ("root", dict(LACKS, **{"apt-get": APT, "id": "#!/bin/sh\necho 0\n"}), "", ["installing libdnnl-dev"], ["by hand"],
     ["frontend=noninteractive -q -y -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 -o Acquire::Retries=1 update", "frontend=noninteractive -q -y -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 -o Acquire::Retries=1 install --no-install-recommends libdnnl-dev"]),
    ("root, further packages", dict(LACKS, **{"apt-get": APT, "id": "#!/bin/sh\necho 0\n"}), "shellcheck", ["installing libdnnl-dev shellcheck"], [], ["libdnnl-dev shellcheck"]),
    ("sudo without a password", dict(LACKS, **{"apt-get": APT, "id": USER, "sudo": '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n'}), "", ["installing libdnnl-dev"], [], ["install"]),
    ("sudo that asks", dict(LACKS, **{"apt-get": APT, "id": USER, "sudo": "#!/bin/sh\nexit 1\n"}), "", ["not installed: libdnnl-dev", "apt-get install -y libdnnl-dev"], [], []),
    ("no sudo", dict(LACKS, **{"apt-get": APT, "id": USER}), "", ["apt-get update && apt-get install -y libdnnl-dev"], [], []),
    ("no Debian", dict(LACKS, **{"id": "#!/bin/sh\necho 0\n"}), "", ["not found: libdnnl-dev", "Going on without"], [], []),
    ("apt-get fails", dict(LACKS, **{"apt-get": APT + "exit 100\n", "id": "#!/bin/sh\necho 0\n"}), "", ["could not install libdnnl-dev", "Going on without"], [], ["install"]),
]:
    apt_log = os.path.join(tmp, "apt.log")
    if os.path.exists(apt_log):
        os.remove(apt_log)
    code, out = run(f"scripts/setup.sh {args}", cwd=tree, env=machine(tools))
    done = open(apt_log, encoding="utf-8").read() if os.path.exists(apt_log) else ""
    c.check(code == 0, f"setup.sh: {name}", f"exit {code}: {out}")
    for text in wanted:
        c.check(text in out, f"setup.sh: {name}", f"{text!r} is not in: {out}")
    for text in unwanted:
        c.check(text not in out, f"setup.sh: {name}", f"{text!r} should not be in: {out}")
    for text in log:
        c.check(text in done, f"setup.sh: {name}", f"{text!r} was not called: {done}")
    c.check(log or not done, f"setup.sh: {name}", f"called {done}")
    c.check("setup" in out or not wanted, f"setup.sh: {name}", out)

# ---- the trainer without NCCL or MPI


def compile_as(target, variables, output, **changes):
    """Runs the Makefile's own command for a target of the repository, with other words and another output; nothing in the repository changes. None: it has none."""
    code, out = run(f"make -n -W train_gpt_fp8.cu {target} {variables}", env=clean_environment())
    command = [line for line in out.splitlines() if f" -o {target} " in line]
    if code or len(command) != 1:
        return None
    words = re.sub(r"-MF \S+", f"-MF {output}.d", command[0]).replace(f" -o {target} ", f" -o {output} ")
    for before, after in changes.items():
        words = words.replace(f"-{before} ", f"-{after} ")
    return run(words, timeout=120)


def several(program, words, P):
    """P processes of it that meet by a shared folder: their exit codes, outputs and standard errors."""
    folder = tempfile.mkdtemp(dir=tmp)
    processes = [subprocess.Popen([program] + words + f"-pn {P} -pr {r} -pi fs -pf {folder}".split(), cwd=tmp, env=dict(clean_environment(), OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") for r in range(P)]
    try:
        texts = [p.communicate(timeout=60) for p in processes]
    finally:
        for p in processes:
            p.kill()
    return [p.returncode for p in processes], [x[0] for x in texts], [x[1] for x in texts]


def build_without(variables):
    """Without optimization, which takes a quarter of the time."""
    program = os.path.join(tmp, "train_" + re.sub(r"\W", "", variables))
    built = compile_as("train_gpt_fp8_cpu", f"{variables} WERROR=1 ONEDNN=0", program, O3="O0")
    c.check(built is not None and built[0] == 0, f"make cpu {variables} compiles", built and built[1][-3000:])
    if built is None or built[0]:
        return
    words = f"--train-data some.bin --val-data some.bin --seq-len 32 --layers 1 --heads 2 --channels 32 --vocab-size {V} --dtype float32 -b 1 -x 2 --val-every 0 --val-steps 0 --sample-every 0".split()
    code, out = run([program] + words, cwd=tmp, env=clean_environment(), timeout=60)
    c.check(code == 0 and len(Run("", code, out, "").losses) == 2, f"{variables}: one process trains", out[-3000:])
    began = time.monotonic()
    codes, outs, errs = several(program, words, 2)
    what = f"exit codes {codes} after {time.monotonic() - began:.1f} s\n{outs}\n{errs}"
    if "NCCL=0" in variables:
        c.check(codes == [1, 1] and "".join(errs).count("ERROR") == 1 and "without NCCL" in "".join(errs) and "HINT" in "".join(errs), f"{variables}: two processes end with one message", what)
        c.check(time.monotonic() - began < 30, f"{variables}: two processes end at once", what)
    else:
        c.check(codes == [0, 0] and len(Run("", 0, outs[0], "").losses) == 2 and not outs[1] and not any(errs), f"{variables}: two processes train", what)
    if "MPI=0" in variables:
        mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2"))}
        code, out = run([program] + words + ["-pi", "mpi"], cwd=tmp, env=dict(clean_environment(), **mpirun), timeout=60)
        c.check(code == 1 and out.count("ERROR") == 1 and "without MPI" in out, f"{variables}: -pi mpi", out)


def build_gpu_without():
    built = compile_as("train_gpt_fp8", "NCCL=0 MPI=0 ARCH=90a", os.path.join(tmp, "train.o"), O3="c -Werror all-warnings -O3")
    if built is None:
        c.skip("make gpu NCCL=0 MPI=0", "no nvcc")
        return
    c.check(built[0] == 0, "make gpu NCCL=0 MPI=0 compiles", built[1][-3000:])


shard(os.path.join(tmp, "some.bin"), random_tokens(random.Random(1), 2000))
for variables in ("NCCL=0 MPI=0", "NCCL=0 MPI=1", "NCCL=1 MPI=0"):
    if "MPI=1" in variables and shutil.which("mpicxx") is None:
        c.skip(f"make cpu {variables}", "no mpicxx")
    else:
        c.section(f"make cpu {variables}", lambda: build_without(variables), 200)
c.section("make gpu NCCL=0 MPI=0", build_gpu_without, 200)

shutil.rmtree(tmp)
c.end()
