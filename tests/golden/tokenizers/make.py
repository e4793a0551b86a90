#!/usr/bin/env python3
"""Writes ids.json: small tokenizer.json documents and the ids that the `tokenizers` package gives for hostile texts.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/golden/tokenizers/make.py

Byte-level BPE, SentencePiece BPE and Unigram, each as a base; variants replace members of the base: Metaspace in all
its schemes, normalizers, added tokens with every flag.
"""
import json
import pathlib

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

SPACE = "\u2581"
WORDS = ["the", "then", "there", "here", "her", "he", "is", "in", "ing", "caf\u00e9", "naive", "token", "tokens", "to",
         "on", "one",
         "123", "12", "23", "ll", "ello", "hello", "world", "or", "...", "..", "\u4e2d\u6587", "\u4e2d"]
TEXTS = [
    "", " ", "  ", "hello world", " hello  world ", "the tokens, then there...", "caf\u00e9 cafe\u0301 naive",
    "12345 one", "\u4e2d\u6587\u4e2d\u5b57",
    "<s>hello<s> hello <s>", "<l>a <l> b  <l>  c\t\n<l>", "<r>a <r> b <r>  \t\nc<r>", "<b> x  <b>  y<b>",
    "<w>x <w> y<w> z_<w> <w>.<w>\u00e9 (<w>)",
    "<n>x <n> e\u0301e\u0301<n>", "\u212bng e\u0301 x\u00e9y \u00e9", "  <l>  <r>  <b>  ", "<l><r><b><w><n>",
    "<w><w> <w>\u2460<w>\u24b6<w>\u200d<w>\u0301<w>", "a\u3000<l>\u00a0<b>\u2003b",
    "\u2581hello \u2581 x", "hello\u2581world", "\n\nhello\n", "\U0001f600\U0001f601 \U0001f600", "x\U0001f600y",
    "tokentokens one's", "Hello WORLD",
    "ththethenhereing", "....... ....", "<s>", "<s> ", " <s>", "hello<w>", "<b>\n\n<b>", "\x00\x01",
]


def added(first, normalized):
    flags = {"<s>": {"special": True}, "<l>": {"lstrip": True, "special": True},
             "<r>": {"rstrip": True, "special": True},
             "<b>": {"lstrip": True, "rstrip": True}, "<w>": {"single_word": True}, "<n>": {"normalized": True},
             "x\u00e9": {"normalized": True, "single_word": True}, "tokentok": {}}
    if not normalized:
        flags = {text: flag for text, flag in flags.items() if "normalized" not in flag}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [{"id": first + i, "content": text, **plain, **flag} for i, (text, flag) in enumerate(flags.items())]


def merges_of(words):
    """Every word grows letter by letter."""
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            merge = [word[:end - 1], word[end - 1]]
            if merge not in merges:
                merges.append(merge)
    return merges


def document(model, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts, "model": model}


def byte_level():
    alphabet = sorted(ByteLevel.alphabet())
    words = ["".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word))
             for word in WORDS]
    merges = merges_of(words + ["\u0120" + word for word in words])
    pieces = alphabet + list(dict.fromkeys(a + b for a, b in merges))
    return document({"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges},
                    pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                   "use_regex": True})


def spelled():
    """Pieces of SentencePiece models."""
    letters = sorted(set("".join(WORDS) + "Habcdfxyz<>.,'_" + SPACE))
    return ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + letters


def sentence_bpe():
    merges = merges_of(WORDS + [SPACE + word for word in WORDS] + [SPACE * 2])
    pieces = list(dict.fromkeys(spelled() + [a + b for a, b in merges]))
    return document({"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                     "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges})


def unigram():
    pieces = list(dict.fromkeys(spelled() + WORDS + [SPACE + word for word in WORDS] + [SPACE * 2]))
    scores = [0.0 if i < 257 else -2.0 - (i * 37 % 101) / 16 for i in range(len(pieces))]
    return document({"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                     "vocab": [[p, s] for p, s in zip(pieces, scores)]})


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def main():
    bases = {"byte_level": byte_level(), "sentence_bpe": sentence_bpe(), "unigram": unigram()}
    size = {name: len(base["model"]["vocab"]) for name, base in bases.items()}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}
    idle = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    variants = [("byte_level", {}), ("byte_level", {"added_tokens": added(size["byte_level"], True)}),
                ("byte_level", {"added_tokens": added(size["byte_level"], True), "normalizer": {"type": "NFC"}}),
                ("sentence_bpe", {"normalizer": prepend, "added_tokens": added(size["sentence_bpe"], False)}),
                ("sentence_bpe", {"normalizer": replace, "pre_tokenizer": idle,
                                  "added_tokens": added(size["sentence_bpe"], False)})]
    for base in ("sentence_bpe", "unigram"):
        for scheme in ("always", "first", "never"):
            for split in (True, False):
                variants.append((base, {"pre_tokenizer": metaspace(scheme, split),
                                        "added_tokens": added(size[base], True)}))
    variants.append(("unigram", {"pre_tokenizer": metaspace("always", True),
                                 "model": {**bases["unigram"]["model"], "byte_fallback": True}}))
    rows = []
    for base, change in variants:
        tokenizer = Tokenizer.from_str(json.dumps({**bases[base], **change}))
        rows.append({"base": base, "change": {k: v if k != "model" else {"byte_fallback": v["byte_fallback"]} for k,
                                              v in change.items()},
                     "ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]})
    dump = lambda value: json.dumps(value, separators=(",", ":"))
    lines = [f'"texts":{dump(TEXTS)}'] + [f'"{name}":{dump(base)}' for name, base in bases.items()]
    lines.append('"variants":[\n' + ",\n".join(dump(row) for row in rows) + "]")
    pathlib.Path(__file__).with_name("ids.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
