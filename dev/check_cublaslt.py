#!/usr/bin/env python3
"""check_cublaslt.py - the CPU device's cuBLASLt against the real one, as far as that goes without a GPU; and our plans, read back from both

Builds dev/cublaslt_readback.cu twice, with the CPU device and with nvcc and the real library, and runs it: every attribute of every plan. Then compares what
the two sides call things: the value of every enumerator in llmc/cpu/cublasLt.h and library_types.h, and the bytes and defaults of every attribute.
Without nvcc, with a toolkit older than CUDA 12.9, or where the library does not load, its half is skipped. Needs g++.
"""
import os
import re
import shutil
import tempfile

from checking import Checks, ROOT, read, run, strip_c

HOST = "g++ -x c++ -std=c++17 -O1 -fopenmp -ffp-contract=off -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -Werror -Illmc/cpu -I."
c = Checks()
folder = tempfile.mkdtemp(prefix="check_cublaslt_")


def build(name, compiler, source, libraries):
    """Path of the program, or None and a failed check."""
    path = os.path.join(folder, name)
    code, out = run(f"{compiler} {source} -o {path} {libraries}")
    c.check(code == 0, f"building {name}", out[-2000:])
    return path if code == 0 else None


def readback(program, side):
    """Runs the comparison; its checks count as ours."""
    code, out = run([program])
    end = re.search(r"^(\d+) passed, (\d+) failed, 0 skipped$", out, flags=re.M)
    c.check(end and (code != 0) == (end.group(2) != "0"), f"plans read back from {side}", f"exit code {code}\n{out[-2000:]}")
    if end:
        c.passed += int(end.group(1))
        c.failed += int(end.group(2))
        print("".join(f"{side}: {line}\n" for line in out.splitlines() if line.startswith("FAIL")), end="")


def attributes(program):
    """{"desc 3": "4 00000000"} of every attribute that this side knows."""
    code, out = run([program, "--attributes"])
    found = {" ".join(line.split()[:2]): " ".join(line.split()[2:]) for line in out.splitlines()}
    c.check(code == 0 and len(found) > 40, f"{os.path.basename(program)} --attributes", f"exit code {code}, {len(found)} attributes: {out[-500:]}")
    return found


def names():
    """Every enumerator of the CPU device's headers. Macros and the markers at the end of an enumeration are no part of the interface."""
    text = strip_c(read("llmc/cpu/cublasLt.h") + read("llmc/cpu/library_types.h"))
    found = set(re.findall(r"\b(?:CUBLAS|CUBLASLT|CUDA_[RC])_\w+", text)) - set(re.findall(r"#define (\w+)", text))
    return sorted(n for n in found if not n.endswith("_END"))


def values(name, compiler, wanted, libraries=""):
    """{enumerator: value} as this side's headers have it."""
    source = os.path.join(folder, name + ".cu")
    with open(source, "w", encoding="utf-8") as f:
        f.write("#include <cublasLt.h>\n#include <stdio.h>\nint main() {\n" + "".join(f'    printf("{n} %lld\\n", (long long){n});\n' for n in wanted) + "}\n")
    program = build(name, compiler, source, libraries)
    code, out = run([program]) if program else (1, "")
    c.check(code == 0, name, f"exit code {code}: {out[-500:]}")
    return dict(line.split() for line in out.splitlines()) if code == 0 else {}


def toolkit():
    """(nvcc, text of the real headers), or None after a skip."""
    nvcc = os.environ["NVCC"] if "NVCC" in os.environ else shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else "")
    if not nvcc:
        c.skip("the real cuBLASLt", "no nvcc")
        return None
    probe = os.path.join(folder, "probe.cu")
    with open(probe, "w", encoding="utf-8") as f:
        f.write("#include <cublasLt.h>\n")
    code, out = run(f"{nvcc} -M {probe}")
    headers = [h for h in out.replace("\\\n", " ").split() if os.path.basename(h) in ("cublasLt.h", "cublas_api.h", "library_types.h")]
    if code or len(headers) < 2:
        c.skip("the real cuBLASLt", f"{nvcc} finds no cublasLt.h: {out[-200:]}")
        return None
    text = "".join(open(h, encoding="utf-8", errors="replace").read() for h in headers)
    if "CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F" not in text:
        c.skip("the real cuBLASLt", "a toolkit older than CUDA 12.9 has no vectors and blocks of scales")
        return None
    return nvcc, strip_c(text)


def compare(nvcc, header, ours, wanted):
    """The real side, and the two sides' names and attributes."""
    real = build("readback_real", f"{nvcc} -O1 -std=c++17 -Xcompiler -fopenmp,-Wall,-Wextra,-Wno-unknown-pragmas -I.", "dev/cublaslt_readback.cu", "-lcublasLt -ldl")
    missing = [n for n in wanted if not re.search(rf"\b{n}\b", header)]
    if missing:
        c.skip("enumerators that this toolkit lacks", " ".join(missing))
    known = [n for n in wanted if n not in missing]
    theirs, mine = values("values_real", nvcc, known), values("values_cpu", HOST, wanted)
    for name in known:
        c.check(theirs.get(name) == mine.get(name), name, f"{theirs.get(name)} in the toolkit, {mine.get(name)} on the CPU device")
    c.check(len(known) > 120, "enumerators compared", f"only {len(known)}")
    if not real:
        return
    code, out = run([real, "--attributes"])
    if code == 127 or "error while loading shared libraries" in out:
        c.skip("plans read back from cuBLASLt", f"the library does not load: {out.strip()[-200:]}")
        return
    readback(real, "cuBLASLt")
    theirs = attributes(real)
    for attribute, value in sorted(attributes(ours).items()):
        if attribute in theirs:
            c.check(value == theirs[attribute], f"attribute {attribute}: bytes and default", f"{theirs[attribute]} in cuBLASLt, {value} on the CPU device")
        else:
            c.skip(f"attribute {attribute}", "this cuBLASLt does not know it")


try:
    cpu = build("readback_cpu", HOST, "dev/cublaslt_readback.cu", "-ldl")
    if cpu:
        readback(cpu, "the CPU device")
        found = toolkit()
        if found:
            compare(*found, cpu, names())
finally:
    shutil.rmtree(folder, ignore_errors=True)
c.end()
