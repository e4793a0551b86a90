#!/usr/bin/env python3
"""Token ids of the text that models/train_mtp_head.py trains a head on, and of the text that it evaluates heads on.

    python3 models/mtp_tokens.py --text TEXT.xz --tokenizer tokenizer.json --held models/wikitext-2-excerpt.txt --out tokens.npz

Documents of the text are separated by lines of <|endoftext|>. The last 80 are kept out, for evaluation. Every fourth of the others is
rewritten in WikiText's spelling, so that a head has seen it. The file has uint16 arrays: `train` (id 0 in front of every document), `held`
(the text of --held, one row) and `wiki` (the beginning of each document kept out). The head of ridge-ref was trained on text of Wikipedia
(CC BY-SA 3.0) without the articles of WikiText-2's test and validation sets. Takes a minute; needs tokenizers and numpy.
"""
import argparse
import lzma
import pathlib
import re

import numpy

END = "<|endoftext|>"
N_KEPT_OUT = 80
N_BEGINNING = 400  # shorter documents do not serve for evaluation


def spaced(document):
    """A document in WikiText's spelling: punctuation apart, `@-@` inside words, `= Title =`."""
    lines = [line for line in document.split("\n") if line.strip()]
    out = [f" \n = {lines[0]} = \n \n"]
    for line in lines[1:]:
        heading = line.endswith(".") and len(line) < 60 and line.count(" ") < 7 and not re.search(r"[,;:]", line)
        text = re.sub(r"(\d)([.,])(\d)", r"\1 @\2@ \3", line.rstrip("." if heading else ""))
        text = re.sub(r"(\w)-(\w)", r"\1 @-@ \2", text)
        text = re.sub(r"([;:!?()\[\]\"]|,(?!@)(?=\s|$))", r" \1 ", text)
        text = re.sub(r"(\w\w|\d|[)\"])\.(?=\s|$)", r"\1 .", text)
        text = re.sub(r"(\w)('s|'t|'re|'ve|'ll)\b", r"\1 \2", text)
        text = " ".join(text.split())
        out.append(f" \n = = {text} = = \n \n" if heading else f" {text} \n")
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="packed by xz")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--held", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=14_000_000, help="most tokens to train on")
    options = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    encode = lambda texts: [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    text = lzma.open(options.text, "rt", encoding="utf-8").read()
    documents = [d.strip("\n") for d in text.split(END) if d.strip()]
    train = []
    for first in range(0, len(documents) - N_KEPT_OUT, 64):
        part = documents[first:min(first + 64, len(documents) - N_KEPT_OUT)]
        for ids in encode([spaced(d) if (first + i) % 4 == 3 else d for i, d in enumerate(part)]):
            train += [0, *ids]
        if len(train) >= options.tokens:
            break
    wiki = [ids[:N_BEGINNING] for ids in encode(documents[-N_KEPT_OUT:]) if len(ids) >= N_BEGINNING]
    held = encode([options.held.read_text(encoding="utf-8")])[0]
    train = train[:options.tokens]
    numpy.savez_compressed(options.out, **{name: numpy.array(ids, numpy.uint16) for name, ids in
                                           (("train", train), ("held", held), ("wiki", wiki))})
    print(f"{len(train)} tokens, {len(held)} of the held-out text, {len(wiki)} beginnings; {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
