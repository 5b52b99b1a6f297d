#!/usr/bin/env python3
"""check_options.py - README.md's table of options is what the program says (--help-markdown); with --write it is brought up to date

The table stands in README.md between the lines <!-- options --> and <!-- /options -->.
"""
import os
import re
import sys

from checking import Checks, ROOT, read, run

c = Checks()
code, out = run("make -s train_gpt_fp8_cpu && ./train_gpt_fp8_cpu --help-markdown")
c.check(code == 0 and "|" in out, "./train_gpt_fp8_cpu --help-markdown", f"exit code {code}: {out[-500:]}")
if code != 0 or not os.path.exists(os.path.join(ROOT, "README.md")):
    c.check(code != 0, "README.md", "is missing")
    c.end()
readme = read("README.md")
place = re.search(r"(<!-- options -->\n)(.*?)(\n?<!-- /options -->)", readme, flags=re.S)
c.check(place, "README.md", "has no lines <!-- options --> and <!-- /options -->")
if place and "--write" in sys.argv[1:]:
    with open(os.path.join(ROOT, "README.md"), "w", encoding="utf-8") as f:
        f.write(readme[:place.start(2)] + out.strip() + readme[place.end(2):])
    print("README.md written")
elif place:
    ours, theirs = place.group(2).strip().splitlines(), out.strip().splitlines()
    differing = [(a, b) for a, b in zip(ours + [""] * len(theirs), theirs + [""] * len(ours)) if a != b]
    c.check(not differing, "README.md: table of options", f"run dev/check_options.py --write. First difference: README {differing[:1] and differing[0][0]!r}, program {differing[:1] and differing[0][1]!r}")
c.end()
