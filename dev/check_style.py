#!/usr/bin/env python3
"""check_style.py - the rules of the house that a script can see

asm only where it belongs, one launch syntax, recipes named in their own files only, header guards, file headers, no machine paths, only known files at the
top, no mutable globals but the listed ones (read from the compiler's symbol table), every header compiles alone and all of them together in two
translation units, shell and Python scripts parse. Needs g++; uses shellcheck where it is installed.
"""
import os
import re
import shutil
import sys
import tempfile

from checking import Checks, ROOT, line_of, read, repository_files, run, strip_c

ASM_FILES = {"llmc/ptx.cuh", "llmc/cpu/fiber.h"}
LAUNCH_FILES = {"llmc/device.cuh"}
TOP_LEVEL = {"Makefile", "README.md", "LICENSE", "train_gpt_fp8.cu", "test_gpt_fp8.cu", "llmc", "dev", "scripts", "data"}
RECIPES = "current|delayed|row|block|mx"

# Mutable statics: what holds them, and why they may exist. Everything else belongs into a struct that is passed (two runs in one process must work).
# The CPU device's own (names that begin with cpu_ or Cpu) stand for a GPU's state, of which a process has one.
GLOBALS = {
    "error_context()::context": "rank, step and what to do before the end: for messages only",
    "run_signal_flag()::flag": "set by signal handlers, which get no argument",
    "run_on_signal(int)::first": "when the first of two signals came; the same reason",
    "option_specs()::specs": "the table of options: const, filled in at its first use",
    "profiler()::p": "the ring of the last launches and the profiler",
}
FLAGS = "-x c++ -std=c++17 -ffp-contract=off -fno-strict-aliasing -fopenmp -Wall -Wextra -Wno-unknown-pragmas -Werror -Illmc/cpu -I."

c = Checks()
files = repository_files()
c_files = [f for f in files if re.search(r"\.(cu|cuh|h)$", f)]
# a header that is a part of another one says so itself: #error "include ..." where it is included alone
headers = [f for f in c_files if f.startswith("llmc/") and not f.endswith(".cu") and not re.search(r'#error "include ', read(f))]


def complain(name, found):
    """One check of a rule for the whole tree: found = list of 'file:line: what'."""
    c.check(not found, name, "\n    " + "\n    ".join(found[:20]))


def text_rules():
    asm, launches, recipes, guards, tops, comments, paths, width = [], [], [], [], [], [], [], []
    guard_names = {}
    machine_path = re.compile(r"/(work|root|home)/")  # of one machine: never in a file that others get
    for f in files:
        raw = read(f)
        paths += [f"{f}:{line_of(raw, m.start())}: {m.group(0)}" for m in machine_path.finditer(raw) if f != "dev/check_style.py"]
        top = f.split("/")[0]
        if not top.startswith(".") and top not in TOP_LEVEL:
            tops.append(f"{f}: only {', '.join(sorted(TOP_LEVEL))} at the top")
    for f in c_files:
        raw = read(f)
        code, no_comments = strip_c(raw), strip_c(raw, strings=False)
        if f not in ASM_FILES:
            # an empty template is a barrier to the optimizer, not assembly
            asm += [f"{f}:{line_of(code, m.start())}" for m in re.finditer(r'\b(asm|__asm|__asm__)\b(?!\s*(volatile|__volatile__)?\s*\(\s*"")', code)]
        if f not in LAUNCH_FILES:
            launches += [f"{f}:{line_of(code, m.start())}" for m in re.finditer(r"<<<", code)]
        if not (f.startswith("llmc/fp8_") or f.startswith("dev/test/") or f.startswith("dev/cuda/") or os.path.basename(f).startswith("test_")):
            recipes += [f"{f}:{line_of(no_comments, m.start())}: {m.group(0)}" for m in re.finditer(rf'(?i)\brecipe_({RECIPES})\b|\w+_recipe_({RECIPES})\b|"({RECIPES})"', no_comments)]
        if not f.endswith(".cu"):
            m = re.search(r"^\s*#ifndef (\w+)\n#define \1\n", no_comments, flags=re.M)
            name = m.group(1) if m else None
            first = re.search(r"^\s*#\s*\w+", no_comments, flags=re.M)
            # a header of CUDA's names may be a one-line alias of another of ours
            if not m or m.start() > (first.start() if first else 0) or not re.search(r"#endif\s*$", no_comments):
                guards.append(f"{f}: no #ifndef NAME / #define NAME ... #endif around everything")
            elif guard_names.setdefault(name, f) != f:
                guards.append(f"{f}: guard {name} is also that of {guard_names[name]}")
        base = os.path.basename(f)
        if not re.match(rf"/\* {re.escape(base)} - \S", raw):
            comments.append(f"{f}: does not begin with /* {base} - what it is")
        else:
            lines = raw[:raw.index("*/")].count("\n") + 1
            if lines > 25:
                comments.append(f"{f}: a file header of {lines} lines (25 at most)")
        width += [f"{f}:{i}: {len(line)} columns" for i, line in enumerate(raw.splitlines(), 1) if len(line) > 200 and not line.endswith("\\")]
    for f in files:
        base = os.path.basename(f)
        if f.endswith((".sh", ".py")) or f == ".ci/run":
            head = read(f)[:1000]
            if f != ".ci/run" and not re.search(rf'^(# |"""|r""")({re.escape(base)}|{re.escape(base[:-3])}\b).* - \S', head, flags=re.M):
                comments.append(f"{f}: does not begin with its name and what it is")
    complain("asm only in " + ", ".join(sorted(ASM_FILES)), asm)
    complain("<<<>>> only in llmc/device.cuh", launches)
    complain("recipes are named only in llmc/fp8_*, option_table.h and tests", recipes)
    complain("header guards", guards)
    complain("the top level holds only what belongs there", tops)
    complain("file headers", comments)
    complain("no paths of a machine", paths)
    complain("no line of more than 200 columns (rows of a macro's table may be longer)", width)


def scripts():
    for f in files:
        path = os.path.join(ROOT, f)
        if f.endswith(".sh") or f == ".ci/run":
            code, out = run(["bash", "-n", path])
            c.check(code == 0, f, out)
            c.check(os.access(path, os.X_OK), f, "is not executable")
        elif f.endswith(".py"):
            code, out = run([sys.executable, "-c", f"compile(open({path!r}).read(), {f!r}, 'exec')"])
            c.check(code == 0, f, out)
    shell = [f for f in files if f.endswith(".sh") or f == ".ci/run"]
    if shutil.which("shellcheck"):
        code, out = run(["shellcheck"] + shell)
        c.check(code == 0, "shellcheck", out)
    else:
        c.skip("shellcheck", "not installed")


def headers_compile():
    onednn = "-ldnnl" if run("echo '#include <dnnl.h>' | g++ -x c++ -fsyntax-only -")[0] == 0 else ""
    with tempfile.TemporaryDirectory(prefix="check_style.") as tmp:
        for f in headers:
            if not onednn and "dnnl.h>" in read(f):
                c.skip(f"{f} compiles alone", "oneDNN is not installed")
                continue
            source = os.path.join(tmp, "alone.cu")
            with open(source, "w") as out:
                out.write(f'#include "{f}"\n#include "{f}"\n')
            code, out = run(f"g++ {FLAGS} -march=native -fsyntax-only {source}")
            c.check(code == 0, f"{f} compiles alone", out[:2000])
        order_all = [f for f in headers if "dnnl.h>" not in read(f)]  # the one that includes oneDNN is included by another where it is there
        for name, order, main in (("one", order_all, "int main() { return 0; }\n"), ("two", order_all[::-1], "")):
            with open(os.path.join(tmp, name + ".cu"), "w") as out:
                out.write("".join(f'#include "{f}"\n' for f in order) + main)
        # both orders of all headers, each in one unit, linked: a function without static or inline would be defined twice
        both = f"{tmp}/one.cu {tmp}/two.cu -o {tmp}/both"
        code, out = run(f"g++ {FLAGS} -march=native -O0 {'-DGPT_WITH_ONEDNN' if onednn else ''} {both} {onednn} && {tmp}/both")
        c.check(code == 0, "all headers in two translation units", out[:3000])
        # and for the least machine of this kind: no AVX, no oneDNN
        code, out = run(f"g++ {FLAGS} -O0 {both} && {tmp}/both")
        c.check(code == 0, "all headers in two translation units, without -march and oneDNN", out[:3000])


def globals_listed():
    source = "train_gpt_fp8.cu"
    if not os.path.exists(os.path.join(ROOT, source)):
        c.check(False, source, "is missing")
        return
    with tempfile.TemporaryDirectory(prefix="check_style.") as tmp:
        # without -fno-pie constant tables of pointers would count as data that is written (by the loader)
        code, out = run(f"g++ {FLAGS} -march=native -O0 -fno-pie -c {source} -o {tmp}/a.o && nm -C {tmp}/a.o")
        c.check(code == 0, f"{source} compiles for the table of symbols", out[:2000])
        if code != 0:
            return
        found = []
        for line in out.splitlines():
            m = re.match(r"[0-9a-f]+ ([bBdDuVvCcsSgG]) (.+)", line)
            if not m or re.match(r"(guard variable for |typeinfo|vtable|DW\.ref|std::|__gnu|construction vtable)", m.group(2)):
                continue
            name = re.sub(r"\[abi:\w+\]", "", m.group(2))
            if re.search(r"(^|[ :*&<])(cpu_|Cpu)\w*", name):
                continue
            if name not in GLOBALS:
                found.append(f"{name}: put it into a struct that is passed, or list it in dev/check_style.py with the reason")
        complain("no mutable globals but the listed ones", found)


text_rules()
scripts()
headers_compile()
globals_listed()
c.end()
