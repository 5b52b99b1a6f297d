#!/usr/bin/env python3
"""make_unicode.py - writes llmc/unicode_table.h: which code points are letters, numbers and white space, from Python's unicodedata

    python3 dev/make_unicode.py            prints the header
    python3 dev/make_unicode.py --write    writes it to llmc/unicode_table.h

GPT-2's pre-tokenizer needs the classes \\p{L}, \\p{N} and White_Space. The header states the version of Unicode that it was made from; dev/check_unicode.py
compares it with what this script makes where Python knows the same version. Another version changes only how code points that are new in it are split.
"""
import os
import sys
import unicodedata

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "llmc", "unicode_table.h")
VERSION = unicodedata.unidata_version
CLASSES = ["OTHER", "LETTER", "NUMBER", "SPACE"]  # in the order of enum UnicodeClass

HEAD = """/* unicode_table.h - which code points are letters, numbers and white space (Unicode %s)
 *
 * Made by dev/make_unicode.py, do not edit. LETTER = \\p{L}, NUMBER = \\p{N}, SPACE = White_Space, OTHER = all else, unassigned code points included.
 * Each entry is the first code point of a run << 2 | its class; the run ends where the next entry begins, the last one at U+10FFFF.
 * Tests:     dev/check_unicode.py (the numbers), dev/test/test_tokenizer.cu (the lookup) */
#ifndef LLMC_UNICODE_TABLE_H
#define LLMC_UNICODE_TABLE_H

#include <stdint.h>

#define UNICODE_TABLE_VERSION "%s"

enum UnicodeClass { %s };

static const uint32_t unicode_runs[] = {
"""

TAIL = """};
#define UNICODE_NUM_RUNS ((int)(sizeof(unicode_runs) / sizeof(unicode_runs[0])))

// Class of a code point (0..0x10ffff): binary search, about 11 steps.
static inline enum UnicodeClass unicode_class(uint32_t code) {
    int low = 0, high = UNICODE_NUM_RUNS - 1;  // the last run that does not begin after code
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (unicode_runs[middle] >> 2 <= code) { low = middle; } else { high = middle - 1; }
    }
    return (enum UnicodeClass)(unicode_runs[low] & 3);
}

#endif
"""


def code_class(code):
    c = chr(code)
    category = unicodedata.category(c)
    # str.isspace() is White_Space and the four information separators U+001C..U+001F
    if c.isspace() and not 0x1c <= code <= 0x1f:
        return CLASSES.index("SPACE")
    return CLASSES.index({"L": "LETTER", "N": "NUMBER"}.get(category[0], "OTHER"))


def header():
    runs, last = [], None
    for code in range(0x110000):
        this = code_class(code)
        if this != last:
            runs.append("0x%x" % (code << 2 | this))
            last = this
    lines, line = [], "   "
    for run in runs:
        if len(line) + len(run) + 2 > 140:
            lines.append(line)
            line = "   "
        line += " " + run + ","
    enum = ", ".join("UNICODE_" + name for name in CLASSES)
    return HEAD % (VERSION, VERSION, enum) + "\n".join(lines + [line]) + "\n" + TAIL


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        with open(PATH, "w", encoding="ascii", newline="\n") as out:
            out.write(header())
    elif sys.argv[1:]:
        sys.exit("make_unicode.py: the only argument is --write")
    else:
        sys.stdout.write(header())
