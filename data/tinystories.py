#!/usr/bin/env python3
"""tinystories.py - the TinyStories data set as token shards, as llm.c has it

    python3 data/tinystories.py                        GPT-2's tokens: 19,043,638 for validation, 925,653,391 to train on
    python3 data/tinystories.py --tokenizer bytes      a byte is a token

Writes into --out (default data/tinystories): TinyStories_val.bin, TinyStories_train.bin, tokenizer.bin. Fetches 1.6 GB, and needs some 12 GB while it works
(the archive, what is in it, the shards); afterwards the archive and its content go, unless --keep.
Stories are stripped of white space around them; the end-of-text token precedes each. The archive's files are taken in the order of their names, the first for
validation; the stories of the n-th file of either part are shuffled by Python's random.Random(1337 + n), as llm.c does. TinyStories_val.bin is thus the same;
in TinyStories_train.bin llm.c has the same files in the order in which its processes happened to finish.
Layouts, resuming and exit codes: data/common.py. Tests: dev/check_data.py
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tarfile
import zlib

import common
from common import Refusal
from download import download_path, fetch, source_of
from tokenizer import open_tokenizer

URL = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStories_all_data.tar.gz"
SHA256 = "26cf7605aca15bc4ea6fa637256400d9d01317b28ed296172b2d1dd160cd7699"  # 1,608,001,638 bytes
SHUFFLE_SEED = 1337


def unpack(archive, folder):
    """Unpacks the archive's .json files into a new folder. It is FOLDER.part until it is complete."""
    progress = common.Progress("unpack " + os.path.basename(archive), "MB")
    size, count = common.file_size(archive), 0
    try:
        os.makedirs(folder + ".part", exist_ok=True)
        with open(archive, "rb") as compressed, tarfile.open(fileobj=compressed, mode="r|*") as files:
            for member in files:
                name = os.path.basename(member.name)
                if not member.isfile() or not name.endswith(".json") or name.startswith("."):
                    continue
                count += 1
                path = os.path.join(folder + ".part", name)
                if common.file_size(path) != member.size:
                    content = files.extractfile(member)
                    common.write_file(path, iter(lambda content=content: content.read(1 << 20), b""))
                progress.show(compressed.tell(), compressed.tell() / size)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise Refusal(f"'{common.shown(archive)}' cannot be unpacked: {error}", "remove it and run again")
    progress.end()
    if count < 2:
        raise Refusal(f"'{common.shown(archive)}' holds {count} .json files; at least one for validation and one to train on are needed")
    with common.Writing(folder):
        os.rename(folder + ".part", folder)


def remove_unpacked(folder):
    """Removes what was unpacked in any run, of any source."""
    for name in os.listdir(folder.path):
        if name.startswith("unpacked."):
            shutil.rmtree(folder.file(name))


def read_stories(path, number):
    """The stories of the number-th file of its part, as bytes, shuffled."""
    try:
        with open(path, "rb") as file:
            items = json.loads(file.read().decode("utf-8"))
        random.Random(SHUFFLE_SEED + number).shuffle(items)
        stories = [common.to_utf8(item["story"].strip()) for item in items]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refusal(f"'{common.shown(path)}' is no list of stories: {type(error).__name__}: {error}", "remove its folder and run again")
    if not stories:
        raise Refusal(f"'{common.shown(path)}' holds no story", "remove its folder and run again")
    return stories


def layout(shard):
    return ("TinyStories_train.bin" if shard else "TinyStories_val.bin"), None


def make(arguments):
    folder = common.Folder(arguments.out or common.beside("tinystories"))
    request = {"maker": "tinystories 1", "tokenizer": arguments.tokenizer, "source": source_of(arguments)}
    if common.finished(folder, request, arguments.force):
        return
    tokenizer = open_tokenizer(arguments.tokenizer, folder)
    name = folder.file("TinyStories_all_data.tar.gz")
    unpacked = folder.file("unpacked." + hashlib.sha256(request["source"].encode()).hexdigest()[:8])  # of another source: another folder
    if arguments.force:
        remove_unpacked(folder)
    if not os.path.isdir(unpacked):
        unpack(fetch(arguments.url, name, arguments.sha256, arguments.force), unpacked)
    files = [os.path.join(unpacked, name) for name in sorted(os.listdir(unpacked))]
    stream = common.TokenStream(folder, request, layout)
    progress = common.Progress("tokenize", "M tokens")
    for source in range(stream.source, len(files)):
        stories = read_stories(files[source], max(source - 1, 0))
        common.tokenize(stream, source, stories[stream.document:], tokenizer.encode, arguments.workers,
                        lambda done: progress.show(stream.total(), (source + done / len(stories)) / len(files)))
        if source in (0, len(files) - 1) and stream.count:
            stream.end_shard()
        stream.next_source()
    progress.end()
    common.finish(folder, request, "TinyStories", stream.done, tokenizer)
    if not arguments.keep:
        remove_unpacked(folder)
        common.remove(download_path(arguments.url, name, arguments.sha256))


def main():
    parser = argparse.ArgumentParser(description="Makes token shards of TinyStories: the first file of 50 for validation, the others to train on.")
    common.add_common_options(parser, "tinystories", URL, "TINYSTORIES_URL")
    common.add_checksum_option(parser, SHA256)
    common.add_workers_option(parser)
    parser.add_argument("--keep", action="store_true", help="keep the archive and what was unpacked from it")
    return common.run_maker(make, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
