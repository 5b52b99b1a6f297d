#!/usr/bin/env python3
"""check_readme.py - the commands in the README files work: each ```bash block is executed here, or says why it cannot be

The last line before a block that is not blank marks it:
    <!-- run -->             executed with bash, stopping at the first command that fails
    <!-- run NAME=value -->  the same with these variables set, to make it short: STEPS=20 for `make train`. The command itself stays as printed
    <!-- run if COMMAND NAME=value -->  the same if there is such a command; skipped otherwise
    <!-- ci -->              a command that CI runs as such (make test, .ci/run, dev/run_tests.sh): executing it here would go round in circles
    ... (GPU) ...            needs a GPU: visible to the reader, not executed
    ... (network) ...        downloads something or installs packages: visible to the reader, not executed
A block without a mark is a failure, and so is a command that stands in no such block but indented or in a block without a language. All blocks run one after the other in one temporary copy of the tree, in the order of the files below.
"""
import os
import re
import shutil
import sys
import tempfile
import time

from checking import Checks, ROOT, repository_files, run

README_FILES = ["README.md", "data/README.md", "llmc/README.md", "dev/README.md", "dev/reference/README.md"]
CI_COMMANDS = r"(make test|bash \.ci/run|\.ci/run|dev/run_tests\.sh( \w+)?|make test-asan|make gpu-compile)"
TIMEOUT = 400  # seconds for one block


def blocks(text):
    """(line number, mark, commands) of each bash block."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        if re.match(r"\s*```\w*\s*$", lines[i]):
            fence, start = lines[i].strip(), i
            j = i + 1
            while j < len(lines) and not re.match(r"\s*```\s*$", lines[j]):
                j += 1
            if fence in ("```bash", "```sh", "```console", "```shell"):
                before = [line.strip() for line in lines[:start] if line.strip()]
                yield start + 1, before[-1] if before else "", "\n".join(lines[start + 1:j])
            i = j
        i += 1


def stray_commands(text):
    """(line number, line) of commands that hide from this check: indented by four blanks, or in a block without a language."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*```(\w*)\s*$", line)
        if mark:
            fence = mark.group(1) if fence is None else None
        elif (fence == "" or (fence is None and line.startswith("    "))) and re.match(r"\s*(\$ )?(sudo |python3? |make( |$)|bash |\./|dev/\w+\.|scripts/\w+\.|mpirun |git clone|apt-get |pip )", line):
            yield number, line.strip()


def copy_tree(target):
    for f in repository_files():
        os.makedirs(os.path.join(target, os.path.dirname(f)), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, f), os.path.join(target, f))
    os.symlink("../data", os.path.join(target, "dev/data"))  # a link to a folder, which is no file of the list
    for made in ["build", "train_gpt_fp8_cpu", "data/text"]:  # what is there need not be made again: make compares times, which copy2 keeps
        path = os.path.join(ROOT, made)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(target, made), symlinks=True, ignore=shutil.ignore_patterns("asan", "compile"))
        elif os.path.exists(path):
            shutil.copy2(path, os.path.join(target, made))


def main():
    c = Checks()
    with tempfile.TemporaryDirectory(prefix="check_readme.") as tree:
        copy_tree(tree)
        for name in README_FILES:
            path = os.path.join(ROOT, name)
            if not os.path.exists(path):
                c.check(False, name, "is missing")
                continue
            with open(path, encoding="utf-8") as f:
                text = f.read()
            stray = list(stray_commands(text))
            c.check(not stray, name, f"commands outside of ```bash blocks: {stray}")
            for line, mark, commands in blocks(text):
                where = f"{name}:{line}"
                marked = re.fullmatch(r"<!-- run(?: if (\w+))?((?: [A-Z_]+=\S*)*) -->", mark)
                if marked and marked.group(1) and not shutil.which(marked.group(1)):
                    c.skip(where, f"there is no {marked.group(1)}")
                elif marked:
                    env = dict(os.environ)
                    env.pop("MAKEFLAGS", None)
                    env.update(v.split("=", 1) for v in marked.group(2).split())
                    start = time.time()
                    code, out = run(["bash", "-euo", "pipefail", "-c", commands], cwd=tree, env=env, timeout=TIMEOUT)
                    c.check(code == 0, where, f"exit code {code} from\n{commands}\n--- its output ends with\n{out[-3000:]}")
                    print(f"note {where}: {time.time() - start:.0f} s: {commands.splitlines()[0] if commands else ''}")
                elif mark == "<!-- ci -->":
                    other = [x for x in commands.splitlines() if x.strip() and not re.fullmatch(CI_COMMANDS + r"(\s*#.*)?", x.strip())]
                    c.check(not other, where, f"marked <!-- ci -->, but CI does not run as such: {other}")
                else:
                    c.check("(GPU)" in mark or "(network)" in mark, where, f"the line before this block marks it neither to be run nor (GPU) nor (network): {mark!r}")
    c.end()


if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        for name in README_FILES:
            if os.path.exists(os.path.join(ROOT, name)):
                for line, mark, commands in blocks(open(os.path.join(ROOT, name), encoding="utf-8").read()):
                    print(f"{name}:{line} [{mark[-40:]}]\n{commands}\n")
    else:
        main()
