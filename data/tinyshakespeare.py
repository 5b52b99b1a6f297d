#!/usr/bin/env python3
"""tinyshakespeare.py - the tinyshakespeare data set as token shards, as llm.c has it

    python3 data/tinyshakespeare.py                        GPT-2's tokens: 32,768 for validation, 305,260 to train on
    python3 data/tinyshakespeare.py --tokenizer bytes      a byte is a token

Writes into --out (default data/tinyshakespeare): tiny_shakespeare_val.bin, tiny_shakespeare_train.bin, tokenizer.bin, and the text, tiny_shakespeare.txt.
The text is cut behind each pair of line ends, which stays with the section before it; the end-of-text token precedes each section. The first 32,768 tokens
are for validation. Layouts, resuming and exit codes: data/common.py. Tests: dev/check_data.py
"""
import argparse
import sys

import common
from common import Refusal
from download import fetch, source_of
from tokenizer import open_tokenizer

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"  # 1,115,394 bytes
VAL_TOKENS = 32768
MIN_TRAIN_TOKENS = 1025  # one sequence of 1024 and its last target


def sections(text):
    """Documents that together are the text."""
    parts = text.split(b"\n\n")
    return [part + b"\n\n" for part in parts[:-1]] + [parts[-1]]


def make(arguments):
    folder = common.Folder(arguments.out or common.beside("tinyshakespeare"))
    request = {"maker": "tinyshakespeare 1", "tokenizer": arguments.tokenizer, "source": source_of(arguments)}
    if common.finished(folder, request, arguments.force):
        return
    tokenizer = open_tokenizer(arguments.tokenizer, folder)
    with open(fetch(arguments.url, folder.file("tiny_shakespeare.txt"), arguments.sha256, arguments.force), "rb") as file:
        text = file.read()
    tokens = tokenizer.encode(sections(text))
    count = len(tokens) // 2
    if count < VAL_TOKENS + MIN_TRAIN_TOKENS:
        raise Refusal(f"the text has {count:,} tokens; {VAL_TOKENS + MIN_TRAIN_TOKENS:,} are needed", "data/make_text.py takes shorter texts")
    if count - VAL_TOKENS > common.MAX_SHARD_TOKENS:
        raise Refusal(f"the text has {count:,} tokens; a shard holds at most {common.MAX_SHARD_TOKENS:,}", "take a part of it")
    made = {}
    for name, part in (("tiny_shakespeare_val.bin", tokens[:2 * VAL_TOKENS]), ("tiny_shakespeare_train.bin", tokens[2 * VAL_TOKENS:])):
        made[name] = len(part) // 2
        common.write_file(folder.file(name), [common.shard_header(made[name]), part])
    common.finish(folder, request, "tinyshakespeare", made, tokenizer)


def main():
    parser = argparse.ArgumentParser(description="Makes token shards of tinyshakespeare: 32,768 tokens for validation, the rest to train on.")
    common.add_common_options(parser, "tinyshakespeare", URL, "TINYSHAKESPEARE_URL")
    common.add_checksum_option(parser, SHA256)
    return common.run_maker(make, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
