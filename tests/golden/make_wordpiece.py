#!/usr/bin/env python3
"""Makes wordpiece_{vocab.txt,tokenizer.json,ids.json} with `tokenizers` (pip install tokenizers).

The ids of hard texts for several normalizers, what every code point does to the word around it, and
the small form of every capital.
"""

import json
import pathlib
import string
import unicodedata

from tokenizers import AddedToken, BertWordPieceTokenizer, Tokenizer, normalizers

folder = pathlib.Path(__file__).parent
vocab_file = folder / "wordpiece_vocab.txt"

letters = string.ascii_lowercase + "ßıσςοδ\u00e9\u00fc\u0307\u0301" + "한국ᄒ\u1161\u11abᄀ" + "нйд" + "न\u0947म"
words = ["the", "un", "##aff", "##able", "want", "##want", "##ed", "wa", "run", "##n", "##ing", "low",
         "straße", "café", "cafe", "UN", "The", "Ä", "İ", "i\u0307", "istanbul", "naïve", "naive", "2", "##2"]
singles = ["野", "口", "里", "豈", "👍", "¢", "’", "“", "—", "。", "、", "￥", "ａ", "ﬁ"]
tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *letters,
          *("##" + c for c in letters), *words, *singles]
tokens = list(dict.fromkeys(tokens))
vocab_file.write_text("".join(t + "\n" for t in tokens), encoding="utf-8")

texts = [
    "", " ", "the", "The unaffable RUNNING", "unwanted,running", "wanted wa2 2nd", "don't (low)-low!?",
    string.punctuation, "a" * 100, "a" * 101, "a" * 300, "é" * 100, "é" * 101, "한" * 33, "한" * 34,
    # Accents, combined and apart; the order of marks; marks alone.
    "café cafe\u0301 CAFÉ", "na\u00efve nai\u0308ve", "a\u0323\u0307 a\u0307\u0323", "\u0301a", "\u0301", "a\u0344b",
    "İstanbul İ ISTANBUL Iı", "straße STRASSE ẞ", "ΟΔΟΣ ὈΔΥΣΣΕΎΣ Σ ς", "ǅ Ǆ ﬁ ﬀ", "Ä ä A\u0308 \u1e0a\u0323",
    "\u212b \u2126 \u00b5", "йЙ и\u0306", "नमस्ते में", "שָׁלוֹם", "السَّلام", "ไทย กำ",
    # CJK, Hangul, kana.
    "野口里佳 Noguchi", "a野b", "豈\uf900\ufa0e", "\U00020bb7a", "\U0002f804", "한국어 각", "ᄒ\u1161\u11ab", "カタカナ　ひらがな が",
    "、。「」￥ａ", "\u3021\u3007",
    # Emoji, joiners, variation selectors, tags, flags.
    "👍", "👍🏽", "👨\u200d👩\u200d👧 a", "a👍b", "❤\ufe0f", "🇩🇪", "\U0001f3f4\U000e0067\U000e007f", "1\ufe0f\u20e3",
    # Control characters, white space of all sorts, what is no character.
    "a\x00b\x01c\x7fd\x80e", "a\tb\rc\x0bd\x0ce\x85f", "a\u00a0b\u1680c\u2003d\u2028e\u2029f\u202fg\u205fh\u3000i",
    "a\u200bb\u200cc\u200ed\u202ee\u2060f\ufeffg\u00adh", "a\ufffdb", "a\ue000b\U000f0000c\U0010fffdd", "a\ufffeb\uffffc\u0378d", "a\ufff9b",
    # Punctuation and symbols.
    "don’t “low” — … ‹a› ¿a? ¡a!", "$+<=>^`|~", "¢£©®°±×÷", "a≠b ≠ ≮", "a\u037eb\u0387c\u1fefd", "a_b‿c", "½ ² ₂ Ⅷ", "†‡•‰′″",
    # Tokens in the text.
    "[MASK]", "a[SEP]b", "[CLS]the[SEP]", "[[MASK]]", "[mask]", "[MASK", "[UNK] [PAD]", "[ MASK ]", "a\u0301[CLS]\u0301b", "##n the##n",
]

library = BertWordPieceTokenizer(str(vocab_file), lowercase=True)
library.save(str(folder / "wordpiece_tokenizer.json"))


def tokenizer(**normalizer):
    made = Tokenizer.from_file(str(folder / "wordpiece_tokenizer.json"))
    made.normalizer = normalizers.BertNormalizer(**normalizer)
    return made


def ids(made, text):
    return made.encode(text, add_special_tokens=False).ids


def kind(made, code_point):
    around = ids(made, "a" + chr(code_point) + "a")
    if around == [A, INNER_A]:
        return "dropped"
    if around == [A, A]:
        return "space"
    return "word" if len(around) == 3 and around[0] == A and around[2] == A else "letter"


A, INNER_A = tokens.index("a"), tokens.index("##a")
all_code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
variants, code_points = [], {}
for options in [
    dict(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
    dict(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False),
    dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True),
    dict(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=False),
]:
    made = tokenizer(**options)
    variants.append({"normalizer": {"type": "BertNormalizer", **options}, "ids": [ids(made, t) for t in texts]})
    if options["strip_accents"] is None:
        ranges = []
        for c in all_code_points:
            k = kind(made, c)
            if k == "letter":
                continue
            if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == k:
                ranges[-1][1] = c
            else:
                ranges.append([c, c, k])
        code_points["uncased" if options["lowercase"] else "cased"] = ranges

# Tokens that were added to the vocabulary, found in the text as it is or in its normal form.
added = [
    AddedToken("newtok", normalized=True), AddedToken("New", normalized=True), AddedToken("Café", normalized=True),
    AddedToken("newer", normalized=True), AddedToken("野口", normalized=True), AddedToken("un aff", normalized=True),
    AddedToken("rawtok", normalized=False), AddedToken("Raw", normalized=False), AddedToken("raw", normalized=False),
    AddedToken("##zz", normalized=False), AddedToken("the", normalized=True), AddedToken("<e1>", special=True),
    AddedToken("RÉ", normalized=True), AddedToken("\n", normalized=False),
]
added_texts = [
    "newtok", "newtoks", "anewtokb NEWTOK NewTok", "new news newer New NEW", "café cafe\u0301 CAFÉS cafe", "野口里 x野口y", "un  aff un aff unaffable",
    "UN AFF un\taff", "rawtok rawtoks RAWTOK", "Rawtok RAW raw Raw", "##zz a##zz azz", "the then other THE ##the", "<e1>a <E1>",
    "RÉ ré re ré\u0301rere", "a\nb \n", "newrawtoknew", "new[MASK]tok", "ne\u0301w n\x00ew", "the野口the",
]
for options in [dict(lowercase=True), dict(lowercase=False), dict(lowercase=True, strip_accents=False)]:
    made = tokenizer(clean_text=True, handle_chinese_chars=True, **options)
    made.add_tokens(added)
    document = json.loads(made.to_str())
    variants.append({"normalizer": document["normalizer"], "added_tokens": document["added_tokens"],
                     "ids": [ids(made, t) for t in added_texts]})

lower = normalizers.Lowercase()
capitals = [c for c in map(chr, all_code_points) if lower.normalize_str(c) != c and unicodedata.category(c) != "Cn"]
golden = {
    "texts": texts,
    "added_texts": added_texts,
    "variants": variants,
    "code_points": code_points,
    "capitals": " ".join(capitals),
    "small": " ".join(lower.normalize_str(c) for c in capitals),
}
parts = []
for key, value in golden.items():
    if key in ("variants", "texts", "added_texts"):
        body = "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
    elif key == "code_points":
        body = json.dumps(value, separators=(",", ":")).replace('"cased"', '\n"cased"')
    else:
        body = json.dumps(value, ensure_ascii=False)
    parts.append(json.dumps(key) + ": " + body)
(folder / "wordpiece_ids.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
