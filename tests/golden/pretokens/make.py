#!/usr/bin/env python3
"""Writes cuts.json: how the `tokenizers` package cuts hostile texts, for every split pattern that Ridge knows by name.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/golden/pretokens/make.py

The patterns are written here as tokenizer.json files have them, apart from Ridge's own list.
"""
import json
import pathlib
import random

from tokenizers import Regex, pre_tokenizers

TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
AHEAD = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What letters with a case are, by code point: an editor may normalise the characters themselves.
CASED = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1
3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15
1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3
1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f
2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf
fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"""
LETTERS = "".join("-".join(chr(int(end, 16)) for end in one.split("-")) for one in CASED.split())

PATTERNS = {
    "gpt-2": [GPT2],
    "llama-bpe": [CASELESS + "|" + AHEAD + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen2": [CASELESS + "|" + AHEAD + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen35": [CASELESS + "|" + AHEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL],
    "tekken": [AHEAD + UPPER + "*" + LOWER + "+|" + AHEAD + UPPER + "+" + LOWER + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
               + TAIL],
    "gpt-4o": [AHEAD + UPPER + "*" + LOWER + "+" + CASELESS + "?|" + AHEAD + UPPER + "+" + LOWER + "*" + CASELESS
               + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
    "smollm": [r"\p{N}", GPT2],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| "
                    r"?[\p{P}\p{S}]+[\r\n]*"
                    + TAIL],
    "deepseek-llm": [r"[\r\n]", r"\s?[" + LETTERS + "]+",
                     "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                     "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}

TEXTS = [
    "Hello, world!", "  two  spaces   ", "\ttab\t\tx \t y\t", "a\r\nb\r\n\r\nc\n\r\n d \n\n\n", "\n", " ", "   ", "\r",
    " \n \n  x",
    "DON'T I'LL we've it's IT'S 'tis o'clock y'all'd've '\u017f 'S' ''s", "can\u2019t won\u2019t",
    "1 12 123 1234 12345678 3.14 1,000,000 0x1F 1e-5 \u0663\u0664\u0665 \u00bd \u2167 \u2460\u2461 "
    "\u0967\u0968\u0969\u096a",
    "camelCase HTTPServer XMLHttpRequest iPhone McDonald ABCdefGHI \u01c5ungla \u01c4\u01c6",
    "snake_case __init__ a_b1c2 $var @user #tag",
    "https://example.com/a/b?c=d&e=f#g //comment\n/* c */ a/b//\n//\n",
    "x = y + z; i++ <= >= != ^^ || && ~~ `code` ```\nfence\n```",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u30ab\u30bf\u30ab\u30ca\u30fb\u3072\u3089\u304c\u306a "
    "\u4e2d\u6587\uff0c\u6d4b\u8bd5123abc\u4e2d\u6587 \ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "\uff21\uff22\uff23\uff11\uff12\uff13\uff01\uff1f \u3000\u300c\u5f15\u7528\u300d\u3000 \uff5eend\u2018q\u2019 "
    "\u201cq\u201d",
    "na\u00efve caf\u00e9 e\u0301e\u0301 a\u0308\u0323b \u0301x \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 "
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u05e2\u05b4\u05d1\u05b0\u05e8\u05b4\u05d9\u05ea "
    "\u0639\u064e\u0631\u064e\u0628\u0650\u064a",
    "\U0001f999 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 "
    "\U0001f44d\U0001f3fd!\U0001f600\U0001f601",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u039a\u03cc\u03c3\u03bc\u03b5 \u1f7c\u1f79\u1fd3\u1fb6 \u2126\u212a\u212b "
    "\ufb01\ufb02 \u1d2c\u02b0 \u16a0\u16a2 \u0561\u0562 \u10d0\u10d1",
    "a\u00a0b\u00a0 c\u2003d \u2028e\u2029f\u0085g \u200bh\u200b \ufeffi\u00adj", "\x00\x01a\x7f \x1b[0m\x0b\x0cx",
    "...!!!??? ---\u2014\u2014 \u2026\u2026 \u20ac100 \u00a35 \u00b0C \u00b1 \u00d7 \u2211\u222b\u221a \u2190\u2192 "
    "\u2122\u00ae",
    "'s", "'", "''", " 's 't", "!a !\u00e9 ?Abc .\u4e2d \"quoted\" (paren) [x] {y} <z> a-b c--d", "x  \n", "x\n  ",
    "\u3000\u3000x \u3000",
    "\u4e00\u9fa5\u9fa6\u0800\u0900\uac00\ud7a3\u30fb\u309b\u30a0 \u4e001\u4e00",
    "1\u0301 \u0301\u0301 a1b2 1st 2ND 3's 4'S 5'll",
    "A" * 40 + "b", "\u4e00" * 20 + "A\u0301B\u0301c\u0301 \u0301Ab", "a" + " " * 30 + "b",
    "\n" * 9 + " \n" * 4 + "\t\n  z  ",
]


def random_texts(n):
    draw = random.Random(7)
    alphabet = list("aAbZ09'sStTdDlLrReEvV.,/!$`~<_-  \t\n\r") + [
        "\u0301", "\u00e9", "\u00c9", "\u01c5", "\u02b0", "\u4e2d", "\u30a2", "\u309b", "\u30fb", "\ud55c", "\u0663",
        "\u00bd", "\u2019",
        "\u3000", "\u00a0", "\u20ac", "\u2014", "\uff01", "\uff21", "\U0001f600", "\u200d", "\u0e32", "\u0561",
        "\u2028", "\u017f", "\x01"]
    return ["".join(draw.choices(alphabet, k=draw.randint(4, 24))) for _ in range(n)]


def cuts(patterns, text):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    pieces = [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
    assert "".join(pieces) == text
    return [len(piece.encode()) for piece in pieces]


def check_against_byte_level(texts):
    """gpt-2 and smollm are steps of the package too."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    for text in texts:
        for name, step in (("gpt-2", level), ("smollm", digits)):
            assert [len(piece) for piece, _ in step.pre_tokenize_str(text)] == cuts(PATTERNS[name], text), (name, text)


def main():
    texts = TEXTS + random_texts(160)
    check_against_byte_level(texts)
    lines = [f' "texts": {json.dumps(texts)}']
    lines += [f" {json.dumps(name)}: " + json.dumps([cuts(patterns, text) for text in texts], separators=(",", ":"))
              for name, patterns in PATTERNS.items()]
    pathlib.Path(__file__).with_name("cuts.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
