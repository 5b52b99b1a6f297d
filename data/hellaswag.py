#!/usr/bin/env python3
"""hellaswag.py - HellaSwag, or another set of questions with four answers, as llm.c's evaluation file

    python3 data/hellaswag.py                              the 10,042 questions of HellaSwag's validation set
    python3 data/hellaswag.py --input mmlu.jsonl           your questions, a JSON object a line: data/mmlu/mmlu.bin

A line's fields: "ctx", the beginning of a text (or "question": then the text is "Question: ...\\n\\nAnswer:", as llm.c asks MMLU's); "endings" or "choices",
four ways to go on; "label" or "answer", the right one: 0 to 3, or A to D. An ending is tokenized with a blank before it.

Writes into --out (default data/hellaswag): hellaswag_val.bin, tokenizer.bin, and what was fetched, hellaswag_val.jsonl.

File, little-endian, llm.c's:
    OFFSET  SIZE   TYPE    MEANING
    0       4      i32     magic 20240522
    4       4      i32     version 1
    8       4      i32     number of questions, below 65536
    12      4      i32     bytes of the longest question
    16      1008   i32[]   zero
    1024    ...    u16[]   for each question: 65535, its bytes (all of its words, these two too), its index from 0, label, 4,
                           n, n tokens of the context, then for each of the 4 endings m, m tokens
Resuming and exit codes: data/common.py. Tests: dev/check_data.py
"""
import argparse
import array
import json
import os
import struct
import sys

import common
from common import Refusal
from download import fetch, source_of
from tokenizer import encode_each, open_tokenizer

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"
MAGIC, START, CHOICES = 20240522, 65535, 4


def read_question(line):
    """(label, context, four endings) of a line, texts as bytes; ValueError says what is wrong."""
    try:
        item = json.loads(line.decode("utf-8"))
    except ValueError:
        raise ValueError("no JSON")
    if not isinstance(item, dict):
        raise ValueError("no JSON object")
    context = item.get("ctx")
    if context is None and "question" in item:
        context = f"Question: {item['question']}\n\nAnswer:"
    endings = item.get("endings", item.get("choices"))
    label = str(item.get("label", item.get("answer")))
    if not isinstance(context, str) or not context:
        raise ValueError('no text in "ctx" or "question"')
    if not isinstance(endings, list) or len(endings) != CHOICES:
        raise ValueError(f'no list of {CHOICES} in "endings" or "choices"')
    if label not in tuple("0123ABCD"):
        raise ValueError(f'"label" or "answer" is {label}, not 0 to 3 or A to D')
    return "0123ABCD".index(label) % CHOICES, common.to_utf8(context), [common.to_utf8(f" {ending}") for ending in endings]


def read_questions(path):
    questions = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    questions.append(read_question(line))
                except ValueError as error:
                    raise Refusal(f"'{common.shown(path)}', line {number}: {error}", "each line: {\"ctx\": \"...\", \"endings\": [four], \"label\": 0 to 3}")
    if not 0 < len(questions) < 65536:
        raise Refusal(f"'{common.shown(path)}' holds {len(questions)} questions; 1 to 65535 are possible")
    return questions


def evaluation_file(questions, tokenizer):
    """(bytes of the file, number of tokens, tokens of the longest context with an ending)"""
    tokens = encode_each(tokenizer, [text for _, context, endings in questions for text in [context] + endings])
    body, longest, row = array.array("H"), 0, 0
    for index, (label, _, _) in enumerate(questions):
        parts = tokens[index * (1 + CHOICES):(index + 1) * (1 + CHOICES)]
        size = 2 * (5 + sum(1 + len(part) for part in parts))
        if size > 65535:
            raise Refusal(f"question {index} (from 0) has {size} bytes as tokens; the format holds 65535", "shorten or remove it")
        if not all(parts):
            raise Refusal(f"question {index} (from 0) has an empty context or ending", "complete or remove it")
        body.extend([START, size, index, label, CHOICES])
        for part in parts:
            body.append(len(part))
            body.extend(part)
        longest = max(longest, size)
        row = max(row, len(parts[0]) + max(len(part) for part in parts[1:]))
    header = struct.pack("<256i", MAGIC, 1, len(questions), longest, *[0] * 252)
    return header + body.tobytes(), sum(len(part) for part in tokens), row


def make(arguments):
    name = "hellaswag_val"
    if arguments.input is not None:
        name = os.path.splitext(os.path.basename(arguments.input))[0]
        if name in ("tokenizer", "gpt2_tokenizer"):
            raise Refusal(f"the questions of '{arguments.input}' would be {name}.bin, which is a tokenizer's name", "give the file another name")
        arguments.url, arguments.sha256 = arguments.input, ""
    folder = common.Folder(arguments.out or common.beside("hellaswag" if arguments.input is None else name))
    request = {"maker": "hellaswag 1", "tokenizer": arguments.tokenizer, "source": source_of(arguments)}
    if common.finished(folder, request, arguments.force):
        return
    tokenizer = open_tokenizer(arguments.tokenizer, folder)
    questions = read_questions(fetch(arguments.url, folder.file("hellaswag_val.jsonl"), arguments.sha256, arguments.force))
    content, count, row = evaluation_file(questions, tokenizer)
    common.write_file(folder.file(name + ".bin"), [content])
    common.say(f"{len(questions):,} questions; the longest with an answer has {row} tokens: evaluating them needs a longer sequence length than that")
    common.finish(folder, request, name, {name + ".bin": count}, tokenizer)


def main():
    parser = argparse.ArgumentParser(description="Makes llm.c's evaluation file of HellaSwag, or of your own questions with four answers.")
    common.add_common_options(parser, "hellaswag, or the input's name", URL, "HELLASWAG_URL")
    common.add_checksum_option(parser, SHA256)
    parser.add_argument("--input", metavar="FILE", help="questions of your own, a JSON object a line (ctx or question, endings or choices, label or answer)")
    return common.run_maker(make, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
