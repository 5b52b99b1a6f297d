#!/usr/bin/env python3
"""check_toc.py - the monolith's table of contents is what its banners say, and each name under "// defines:" exists in the header it introduces"""
import os
import re

from checking import Checks, ROOT, read, strip_c

ATTACHED = {"llmc/option_table.h": ["llmc/options.h"]}  # headers that are part of another one and are never included by themselves
c = Checks()
for source in ("train_gpt_fp8.cu", "test_gpt_fp8.cu"):
    if not os.path.exists(os.path.join(ROOT, source)):
        c.check(source != "train_gpt_fp8.cu", source, "is missing")
        continue
    text = read(source)
    head = text[:text.index("#include")]
    contents = [(tag, title.strip()) for tag, title in re.findall(r"\[([A-Z])\] (.+?)(?=  +\[[A-Z]\]|\s*$|\s*\*/)", head, flags=re.M)]
    banners = re.findall(r"^// -{20,} \[([A-Z])\] (.+?)\s*$", text, flags=re.M)
    c.check(contents == banners, f"{source}: table of contents", f"contents {contents}, banners {banners}")
    c.check(source != "train_gpt_fp8.cu" or len(banners) >= 5, f"{source}: sections", f"only {len(banners)} banners")
    tags = [tag for tag, _ in banners]
    c.check(tags == sorted(set(tags)), f"{source}: order of sections", f"{tags}")

    lines = text.splitlines()
    for i, line in enumerate(lines):
        include = re.match(r'\s*#include "(llmc/[^"]+)"', line)
        if not include:
            continue
        defines = re.match(r"\s*// defines: (.+)", lines[i - 1]) if i else None
        c.check(defines or source != "train_gpt_fp8.cu", f"{source}:{i + 1}", f'no "// defines:" above the include of {include.group(1)}')
        if not defines:
            continue
        path = os.path.join(ROOT, include.group(1))
        if not os.path.exists(path):
            c.check(False, f"{source}:{i + 1}", f"{include.group(1)} does not exist")
            continue
        # a name made by an X-macro or a macro definition counts as well: it must stand in the code, outside comments and strings
        code = "\n".join(strip_c(read(h)) for h in [include.group(1)] + ATTACHED.get(include.group(1), []))
        for name in re.split(r",\s*", defines.group(1).strip()):
            definition = rf"(#define\s+|[\w>*&\]]\s+\**|\b(struct|enum|class)\s+|[}}]\s*\**){re.escape(name)}\b"
            c.check(re.search(definition, code), f"{source}:{i}", f"{include.group(1)} defines no '{name}'")
c.end()
