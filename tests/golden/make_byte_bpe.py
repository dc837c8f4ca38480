#!/usr/bin/env python3
"""Makes byte_bpe_{tokenizer,ids}.json with `tokenizers` (pip install tokenizers).

The ids of hard texts, with and without a blank before them, with added tokens too, and the class
that every code point has in GPT-2's pattern.
"""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

folder = pathlib.Path(__file__).parent

texts = [
    "", " ", "  ", "   a", "the", " the", "The lowest lowers the low.", "Lower lower LOWER lowest",
    "newer newest widest wider", "the end\n", "the\n\nend", "\n", "\n\n\n", "a\n \n b",
    # Blanks: several, at the end, other ones, line ends of Windows.
    "a b  c   d    e", "a  ", "  a  ", "a\tb\t\tc", "\t\t", " \t a", "a \t", "a\r\nb\r\n\r\nc",
    "a\rb", "a\x0bb\x0cc", "a\x1cb\x1fc", "a\x85b\x85\x85", "a\u00a0b \u00a0c\u00a0 d",
    "a\u1680b\u2003c\u2028d\u2029e\u202ff\u205fg\u3000h", "a\u200bb\u2060c\ufeffd", "\u3000 \u3000a",
    # Contractions.
    "don't I'll they're we've I'm he's she'd", "DON'T I'LL THEY'RE", "'s", "''s", " 's 't", "'sa 'rea",
    "a's'd'll", "'r 'v 'l", "it\u2019s don\u2019t", "'", "''", "'\u00e9", "rock 'n' roll", "'S'T",
    # Numbers of several scripts.
    "1 12 123 1234567890", "3.14 1,000 10% $5 1st 2nd", "a1b2", "1a 2b", "\u0660\u0661\u0662 \u0967\u0968",
    "\u00bd \u00b2 \u2082 \u2167 \u2460", "\uff11\uff12", "\U0001d7d8\U0001d7d9", "\u4e00\u4e8c\u4e09", "\u3007\u3021",
    # Letters, marks, scripts.
    "caf\u00e9 cafe\u0301 CAF\u00c9", "na\u00efve nai\u0308ve", "\u0301a", "a\u0301\u0302b", "stra\u00dfe STRASSE \u1e9e",
    "\u039f\u0394\u039f\u03a3 \u1f48\u0394\u03a5\u03a3", "\u0439\u0419 \u0438\u0306", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645", "\u0e44\u0e17\u0e22 \u0e01\u0e33", "\u91ce\u53e3\u91cc\u4f73 Noguchi", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\u30ab\u30bf\u30ab\u30ca\u3000\u3072\u3089\u304c\u306a", "\u02b0\u02b1 \u00aa\u00ba", "\u01c5 \ufb01 \ufb00", "\U00020bb7", "\U00010400\U00010428",
    # Emoji, joiners, variation selectors, tags, flags.
    "\U0001f44d", " \U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467 a", "a\U0001f44db", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea",
    "\U0001f3f4\U000e0067\U000e007f", "1\ufe0f\u20e3",
    # Control characters, what is no character.
    "a\x00b\x01c\x7fd\x80e\x9ff", "\x00\x00", "a\u00adb", "\ufffd\ufffe\uffff", "\ue000 \U000f0000 \U0010ffff", "\u0378",
    # Punctuation.
    "!?", "a!b?c", "(a) [b] {c} <d>", "a--b - c \u2014 d", "...a... ...", "\u00abx\u00bb \u201eb\u201c", "a_b __c__", "x=y+z", "http://a.b/c?d=e&f#g",
    "$+<=>^`|~", "\u00a2\u00a3\u00a9\u00ae", "a\u2260b",
    # Long words.
    "low" * 40, "lowestnewestwidest" * 8, "a" * 70, "=" * 70, " " * 70 + "a", "\n" * 40, "\u00e9" * 30, "1" * 50, "ab" * 60 + " x",
    # Tokens in the text.
    "<|endoftext|>", "a<|endoftext|>b", "a <|endoftext|> b", "<|endoftext|><|endoftext|>", "<|endoftext|", "<<|endoftext|>>", "<|ENDOFTEXT|>", "\n<|endoftext|>\n",
]
library = Tokenizer(models.BPE())
library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
library.decoder = decoders.ByteLevel()
library.train_from_iterator(
    texts * 2, trainers.BpeTrainer(vocab_size=560, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                   special_tokens=["<|endoftext|>"], show_progress=False))
library.save(str(folder / "byte_bpe_tokenizer.json"), pretty=False)

# Tokens that were added: found where they stand, before and after those that are normalized.
added = [
    AddedToken("<pad>", special=True), AddedToken("<pad>x", special=True), AddedToken("caf\u00e9", normalized=False),
    AddedToken("two words", normalized=False), AddedToken("end", normalized=True), AddedToken("dof", normalized=False),
    AddedToken("the e", normalized=True), AddedToken("\n\n", normalized=False), AddedToken("\u0120qq", normalized=False),
    AddedToken(" ", normalized=True),
]
added_texts = [
    "", " ", "a<pad>b <pad>x <pad", "the caf\u00e9s cafe\u0301", "two words two  words twowords", "the end endof bend", "the endof", "the ends the then",
    "a\n\n\nb\n", "\u0120qq qqx \u0120 x", "a b", "<|endoftext|><pad><|end", "the<|endoftext|>the e",
]


def tokenizer(prefix):
    made = Tokenizer.from_file(str(folder / "byte_bpe_tokenizer.json"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return made


def code_point_classes():
    """Runs of code points that are letters, numbers or spaces: first, how many, class."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    runs = []
    for point in range(0x110000):
        if 0xD800 <= point < 0xE000:
            continue
        together = [len(splitter.pre_tokenize_str(x + chr(point))) == 1 for x in "a1!"]
        kind = "LNO"[together.index(True)] if any(together) else "S"
        if kind == "O":
            continue
        if runs and sum(runs[-1][:2]) == point and runs[-1][2] == kind:
            runs[-1][1] += 1
        else:
            runs.append([point, 1, kind])
    return " ".join(f"{first:x} {count:x} {kind}" for first, count, kind in runs)


variants = []
for prefix in (False, True):
    made = tokenizer(prefix)
    variants.append({"add_prefix_space": prefix, "ids": [made.encode(text).ids for text in texts]})
for prefix in (False, True):
    made = tokenizer(prefix)
    made.add_tokens(added)
    variants.append({"add_prefix_space": prefix, "added_tokens": json.loads(made.to_str())["added_tokens"],
                     "ids": [made.encode(text).ids for text in added_texts]})

golden = {"texts": texts, "added_texts": added_texts, "variants": variants, "classes": code_point_classes()}
parts = []
for key, value in golden.items():
    lines = [value] if isinstance(value, str) else value
    body = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    parts.append(json.dumps(key) + ": " + (body if isinstance(value, str) else "[\n" + body + "\n]"))
(folder / "byte_bpe_ids.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
