#!/usr/bin/env python3
"""Made tokenizer.json beside it: byte-level BPE of Qwen2's kind, learnt from a plain ASCII text.

    bible -f Gen1:1-Rev22:21 | cut -d' ' -f2- | examples/tiny_qwen2/learn_tokenizer.py

Not needed to build, run or test anything; it is here so that the file can be made again.
"""

import collections
import json
import re
import sys
from pathlib import Path

VOCAB_SIZE = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's pattern, and what it comes to in Python's words for ASCII text.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ASCII_PATTERN = (PATTERN.replace(r"\s\p{L}\p{N}", r"\sA-Za-z0-9")
                 .replace(r"\r\n\p{L}\p{N}", r"\r\nA-Za-z0-9")
                 .replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]"))


def byte_letters():
    """The printable stand-in of each byte: itself where it is printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(0x100 + index) for index, byte in enumerate(hidden)})
    order = printable + hidden
    return [letters[byte] for byte in order], letters


def learn_merges(text, num_merges):
    """The most frequent pair is joined first; among equals the one that sorts first."""
    _, letters = byte_letters()
    words = collections.Counter(re.findall(ASCII_PATTERN, text))
    pieces = [([letters[byte] for byte in word.encode()], count) for word, count in words.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for index, (symbols, count) in enumerate(pieces):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += count
            where[pair].add(index)

    merges = []
    for _ in range(num_merges):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for index in where.pop(best):
            symbols, count = pieces[index]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= count
            at = 0
            while at + 1 < len(symbols):
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at:at + 2] = ["".join(best)]
                at += 1
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
                where[pair].add(index)
        del pairs[best]
    return merges


def main():
    text = sys.stdin.read()
    text.encode("ascii")
    alphabet, _ = byte_letters()
    merges = learn_merges(text, VOCAB_SIZE - len(alphabet) - len(SPECIAL))
    tokens = alphabet + ["".join(pair) for pair in merges]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(tokens) + index, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for index, content in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated",
             "invert": False},
            byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False,
                  "vocab": {token: index for index, token in enumerate(tokens)},
                  "merges": [list(pair) for pair in merges]},
    }
    path = Path(__file__).with_name("tokenizer.json")
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n")
    print(f"{path}: {len(tokens)} tokens and {len(SPECIAL)} special ones")


if __name__ == "__main__":
    main()
