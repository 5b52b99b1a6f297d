#!/usr/bin/env python3
"""fineweb.py - FineWeb and FineWeb-Edu samples as token shards, as llm.c has them

    python3 data/fineweb.py                                 10 billion tokens of FineWeb
    python3 data/fineweb.py --type edu --version 100B       100 billion tokens of FineWeb-Edu
    python3 data/fineweb.py --shards 10                     the validation shard and 10 to train on; later --shards 20 adds 10 more

Writes into --out (default: data/fineweb10B, fineweb100B, edu_fineweb10B or edu_fineweb100B) shards of 10^8 tokens, {fineweb|edu_fineweb}_val_000000.bin, then
..._train_000001.bin and so on, the last one shorter; and tokenizer.bin. Documents are taken in the order of the data set's files; the end-of-text token
precedes each; a document may go on in the next shard. A file is fetched while the one before it is tokenized, and goes when its tokens are on disk (unless --keep);
--shards leaves what it did not use up for the next time.
Which files there are is asked once and kept in files.json. --url may be a folder with .parquet, .jsonl or .jsonl.gz files instead (their field "text").
Parquet needs the library pyarrow. Layouts, resuming and exit codes: data/common.py. Tests: dev/check_data.py
"""
import argparse
import gzip
import json
import os
import sys
import zlib

import common
from common import Refusal
from download import download_path, fetch, in_background
from tokenizer import open_tokenizer

URL = "https://huggingface.co"
REPOSITORIES = {"classic": "HuggingFaceFW/fineweb", "edu": "HuggingFaceFW/fineweb-edu"}
LISTING, FILE = "{url}/api/datasets/{repository}/tree/main/sample/{version}T", "{url}/datasets/{repository}/resolve/main/{path}"
PREFIX = {"classic": "fineweb", "edu": "edu_fineweb"}
ENDINGS = (".parquet", ".jsonl", ".jsonl.gz")


def list_files(arguments, folder):
    """[{"path", "sha256"}] of the data set, in order; "": no checksum is known. The answer is kept: a later run goes on with the same files."""
    if "://" not in arguments.url:
        if not os.path.isdir(arguments.url):
            raise Refusal(f"there is no folder '{arguments.url}'", "--url takes an address with ://, or a folder with " + ", ".join(ENDINGS) + " files")
        files = [{"path": name, "sha256": ""} for name in sorted(os.listdir(arguments.url)) if name.endswith(ENDINGS)]
    else:
        kept = (common.read_json(folder.file("files.json")) or {}).get("files")
        if isinstance(kept, list) and all(isinstance(item, dict) and isinstance(item.get("path"), str) and isinstance(item.get("sha256"), str) for item in kept) and not arguments.force:
            return kept
        url = LISTING.format(url=arguments.url.rstrip("/"), repository=REPOSITORIES[arguments.type], version=arguments.version)
        listing = fetch(url, folder.file("listing.json"), force=arguments.force)
        with open(listing, "rb") as file:
            answer = file.read()
        common.remove(listing)
        try:
            files = [{"path": item["path"], "sha256": item.get("lfs", {}).get("oid", "")} for item in json.loads(answer.decode("utf-8")) if item["path"].endswith(ENDINGS)]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refusal(f"what came from {url} is no list of files", "it should be one of Hugging Face's interface, or of a mirror that speaks as it does")
        files.sort(key=lambda item: item["path"])
    if not files:
        raise Refusal(f"there is no {' or '.join(ENDINGS)} file at {arguments.url}")
    if "://" in arguments.url:
        common.write_json(folder.file("files.json"), {"files": files})
    return files


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def open_parquet(path, start):
    """(number of documents, iterator over them from number start on) of a parquet file with a column "text"."""
    import pyarrow
    import pyarrow.parquet
    damage = (pyarrow.ArrowException, OSError, ValueError)
    try:
        file = pyarrow.parquet.ParquetFile(path)
        kinds = [field.type for field in file.schema_arrow if field.name == "text"]
    except damage as error:
        raise Refusal(f"'{common.shown(path)}' is no whole parquet file: {first_line(error)}", "remove it and run again")
    if len(kinds) != 1 or not (pyarrow.types.is_string(kinds[0]) or pyarrow.types.is_large_string(kinds[0])):
        raise Refusal(f"'{common.shown(path)}' has {f'a column text of type {kinds[0]}' if kinds else 'no column text'}; one of strings is needed", "is it a file of this data set?")

    def documents():
        before = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if before + rows > start:
                row = before
                try:
                    for batch in file.iter_batches(1000, row_groups=[group], columns=["text"]):
                        for text in batch.column(0).to_pylist():
                            if row >= start:
                                yield common.to_utf8(text or "")
                            row += 1
                except damage as error:
                    raise Refusal(f"'{common.shown(path)}', row group {group} of {file.num_row_groups}, behind row {row}: {first_line(error)}",
                                  "the file is damaged: remove it and run again")
            before += rows
    return file.metadata.num_rows, documents()


def open_lines(path, start):
    """The same of a file with a JSON object a line, compressed or not. How many there are is not known: 0."""
    def documents():
        document = number = 0
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                for number, line in enumerate(file):
                    if line.strip():
                        if document >= start:
                            yield common.to_utf8(json.loads(line.decode("utf-8"))["text"])
                        document += 1
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error, OSError) as error:
            raise Refusal(f"'{common.shown(path)}', line {number + 1}: no JSON object with a \"text\" ({type(error).__name__}: {error})", "remove it and run again")
    return 0, documents()


def address(arguments, folder, item):
    """(url, path) of one of the data set's files: where it comes from and goes to."""
    url = FILE.format(url=arguments.url.rstrip("/"), repository=REPOSITORIES[arguments.type], path=item["path"])
    return url, folder.file(os.path.basename(item["path"]))


def get(arguments, folder, item):
    """Path of the file, fetched if it must be."""
    if "://" not in arguments.url:
        return os.path.join(arguments.url, item["path"])
    return fetch(*address(arguments, folder, item), item["sha256"], arguments.force)


def remove_used(arguments, folder, used):
    """Removes fetched files."""
    if "://" in arguments.url and not arguments.keep:
        for item in used:
            common.remove(download_path(*address(arguments, folder, item), item["sha256"]))


def say_kept(folder):
    """What --shards left unused."""
    names = [name for name in sorted(os.listdir(folder.path)) if name.endswith(ENDINGS + tuple(ending + ".part" for ending in ENDINGS))]
    if names:
        kept = ", ".join(f"{name} ({common.file_size(folder.file(name)) / 1e6:,.1f} MB)" for name in names)
        common.say(f"kept for more shards: {kept}")


def make(arguments):
    prefix = PREFIX[arguments.type]
    folder = common.Folder(arguments.out or common.beside(f"{prefix}{arguments.version}"))
    request = {"maker": "fineweb 1", "type": arguments.type, "version": arguments.version, "tokenizer": arguments.tokenizer, "shard_size": arguments.shard_size}
    request["source"] = URL if "://" in arguments.url else os.path.abspath(arguments.url)  # a mirror has the same files
    if common.finished(folder, request, arguments.force, lambda made: made["complete"] or arguments.shards is not None and len(made["tokens"]) > arguments.shards):
        return

    def layout(shard):
        if arguments.shards is not None and shard > arguments.shards:
            return None
        return f"{prefix}_{'train' if shard else 'val'}_{shard:06d}.bin", arguments.shard_size
    tokenizer = open_tokenizer(arguments.tokenizer, folder)
    files = list_files(arguments, folder)
    if any(item["path"].endswith(".parquet") for item in files):
        try:
            import pyarrow.parquet  # noqa: F401 (better said before an hour of downloading)
        except ImportError:
            raise Refusal("the data set's files are parquet files; reading them needs the library pyarrow",
                          "python3 -m venv ~/pyarrow && ~/pyarrow/bin/pip install pyarrow   and run this with ~/pyarrow/bin/python")
    stream = common.TokenStream(folder, request, layout)
    progress = common.Progress("tokenize", "M tokens")
    remove_used(arguments, folder, files[:stream.source])
    ahead = in_background(get, arguments, folder, files[stream.source]) if stream.source < len(files) and not stream.ended else None
    while stream.source < len(files) and not stream.ended:
        source, path = stream.source, ahead.result()
        if source + 1 < len(files):
            ahead = in_background(get, arguments, folder, files[source + 1])
        count, documents = (open_parquet if path.endswith(".parquet") else open_lines)(path, stream.document)
        common.tokenize(stream, source, documents, tokenizer.encode, arguments.workers,
                        lambda done: progress.show(stream.total(), (source + done / count) / len(files) if count else None))
        if not stream.ended:
            stream.next_source()
            remove_used(arguments, folder, files[source:stream.source])
    if stream.count and not stream.ended:
        stream.end_shard()
    progress.end()
    if not stream.done:
        raise Refusal("the data set's files hold no document")
    common.finish(folder, request, f"{prefix}{arguments.version}", stream.done, tokenizer, complete=stream.source == len(files))
    if stream.ended:
        say_kept(folder)


def main():
    parser = argparse.ArgumentParser(description="Makes token shards of FineWeb or FineWeb-Edu, one for validation, the others to train on.")
    parser.add_argument("-t", "--type", choices=["classic", "edu"], default="classic", help="FineWeb or FineWeb-Edu (default: %(default)s)")
    parser.add_argument("-v", "--version", choices=["10B", "100B"], default="10B", help="tokens of the sample (default: %(default)s)")
    parser.add_argument("-s", "--shard-size", "--shard_size", metavar="N", type=common.whole_number(1, common.MAX_SHARD_TOKENS), default=10**8,
                        help="tokens of a shard (default: %(default)s)")
    parser.add_argument("--shards", metavar="N", type=common.whole_number(0, 10**6), help="stop after the validation shard and N others (default: all there is)")
    common.add_common_options(parser, "fineweb10B (or as type and version say)", URL, "FINEWEB_URL")
    common.add_workers_option(parser)
    parser.add_argument("--keep", action="store_true", help="keep the files that were fetched")
    return common.run_maker(make, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
