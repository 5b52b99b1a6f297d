#!/usr/bin/env python3
"""check_unicode.py - llmc/unicode_table.h is what dev/make_unicode.py makes, where this Python knows the same version of Unicode"""
import re

from checking import Checks, read
import make_unicode

c = Checks()
table = read("llmc/unicode_table.h")
stated = re.search(r'#define UNICODE_TABLE_VERSION "([\d.]+)"', table)
c.check(stated, "llmc/unicode_table.h", "states no version of Unicode")
if stated and stated.group(1) != make_unicode.VERSION:
    c.skip("llmc/unicode_table.h", f"it is of Unicode {stated.group(1)}, this Python knows {make_unicode.VERSION}")
elif stated:
    ours, theirs = table.splitlines(), make_unicode.header().splitlines()
    differing = [i + 1 for i in range(max(len(ours), len(theirs))) if ours[i:i + 1] != theirs[i:i + 1]]
    c.check(not differing, "llmc/unicode_table.h", f"run dev/make_unicode.py --write. First different line: {differing[:1]}")
c.end()
