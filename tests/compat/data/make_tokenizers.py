"""Writes fixtures/tokenizers/: vocabularies trained by the `tokenizers` package under the rules of three families, and the ids
that it gives to a few thousand texts.

Made with Python 3.11, tokenizers 0.23.3, numpy 2.4.6, torch 2.11.0, megatron-core 0.16.1:
    pip install tokenizers==0.23.3 numpy==2.4.6 torch==2.11.0 megatron-core==0.16.1
    python make_tokenizers.py fixtures/tokenizers

lines.json: the texts. FAMILY.json: a tokenizer.json. FAMILY.bin/.idx: the ids, one document a text, Megatron-LM's format.
cases.json: other rules, each as changes of gpt2.json, with the ids of every eleventh text.
"""
import glob
import json
import random
import sys
import unicodedata

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VERSIONS = {"tokenizers": "0.23.3", "unicodedata": unicodedata.unidata_version, "megatron-core": "0.16.1"}
EVERY = 11
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Blocks of scripts: (first, last) code points, assigned ones only are drawn.
SCRIPTS = [(0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587), (0x591, 0x5F4), (0x600, 0x6FF),
           (0x700, 0x74F), (0x780, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB80, 0xBFF), (0xC00, 0xC7F),
           (0xD00, 0xD7F), (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF),
           (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1400, 0x167F), (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1E00, 0x1EFF),
           (0x1F00, 0x1FFF), (0x2C00, 0x2C5F), (0x2D00, 0x2D2F), (0x3040, 0x309F), (0x30A0, 0x30FF), (0x3130, 0x318F), (0x4E00, 0x9FFF),
           (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFF00, 0xFFEF), (0x10300, 0x1034A), (0x10400, 0x1044F),
           (0x1D400, 0x1D7FF), (0x20000, 0x2A6D6)]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "1️⃣", "❤️", "❤", "🧑🏿‍🚀", "👨‍💻", "⚑", "☺︎", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫠", "🤦🏼‍♂️", "✂", "©️"]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u180e", "\u0085", "\u2028",
          "\u2029", "\x0b", "\x0c", "\x1c", "\x1f", "\ufeff", " \n", "\n ", " \r\n\r\n ", "    \n    "]
ODD = ["\u0000", "\u0001", "\u007f", "\u0378", "\ufdd0", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\U000f0000", "\U000e0041", "\u202e", "\u00ad",
       "\ufffd", "\u2060"]
FORMS = ["e\u0301", "\u00e9", "A\u030a", "\u212b", "\u2126", "\u1e9b\u0323", "\u0958", "\u0915\u093c", "q\u0307\u0323", "q\u0323\u0307",
         "\u1100\u1161\u11a8", "\uac01", "\uac00\u11a8", "\u0344", "\u0f73", "\u2adc", "\ufb1d", "\u0308\u0301", "o\u0302\u0323\u0301", "\u00a0\u0300",
         "\U0001d15e", "\u3099", "\u304b\u3099", "i\u0307\u0327", "\ufb01", "\u1fef", "\u0340"]
NUMBERS = ["0", "7", "12", "345", "6789", "1234567890", "3.14159", "1,000,000", "0x1F", "1e-5", "²³", "½", "Ⅻ", "٣٤٥", "१२३", "①②", "五百", "12:30", "𝟘𝟙"]
WORDS = ["don't", "I'M", "we'LL", "they've", "it's", "'tis", "y'all'd", "’s", "'ſ", "can't've", "RE'RE", "'", "''s", "o'clock"]
SPECIAL = ["<|endoftext|>", "<|endoftext|><|endoftext|>", "<|im_start|>user\n", "<|im_end|>\n", "<|begin_of_text|>", "<|end_of_text|>", "<|endoftext",
           "<|endoftext|>x", " <|endoftext|> ", "[A]", "  [A]  ", "[AB]", "[ABC", "café", "cafe\u0301", "decafé", "café!", "[L] [R] [L]", "\u3000[L]\u00a0"]


def assigned(first, last):
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def texts(rng):
    scripts = [assigned(*block) for block in SCRIPTS]
    everything = [c for c in assigned(0, 0x10FFFF)]
    code = []
    for name in sorted(glob.glob("../../../engine/data/*.cpp") + glob.glob("*.py")):
        code += open(name, encoding="utf-8").read().split("\n")
    code = [line for line in code if len(line) > 20]

    def word(letters):
        return "".join(rng.choice(letters) for _ in range(rng.randint(1, 9)))

    out = ["", " ", "a", "\n"] + [c for group in (EMOJI, SPACES, ODD, FORMS, NUMBERS, WORDS, SPECIAL) for c in group]
    for letters in scripts:
        for _ in range(16):
            out.append(rng.choice(["", " "]) + rng.choice([" ", " ", ", ", ""]).join(word(letters) for _ in range(rng.randint(1, 7))))
    for group in (EMOJI, SPACES, FORMS, NUMBERS, WORDS, SPECIAL, ODD):
        for _ in range(70):
            parts = [rng.choice([rng.choice(group), rng.choice(group), word(scripts[0]), rng.choice(SPACES)]) for _ in range(rng.randint(2, 9))]
            out.append("".join(parts))
    for _ in range(250):
        out.append("\n".join(rng.choice(code) for _ in range(rng.randint(1, 2))))
    for _ in range(150):
        out.append("".join(rng.choice(everything) for _ in range(rng.randint(1, 40))))
    for _ in range(350):
        groups = [EMOJI, SPACES, FORMS, NUMBERS, WORDS, SPECIAL, ODD, [word(rng.choice(scripts))], [word(scripts[0])], [" "]]
        out.append("".join(rng.choice(rng.choice(groups)) for _ in range(rng.randint(3, 20))))
    out.append("x" * 700 + " " * 300 + "na" * 400)  # longer than what is scanned or remembered
    out.append("".join(rng.choice("abcde") for _ in range(3000)))
    return out


def byte_level(add_prefix_space=False, use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def train(lines, size, pre_tokenizer, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder, t.post_processor = pre_tokenizer, decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def write_ids(folder, name, tokenizer, lines):
    builder = IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=numpy.uint16)
    for line in lines:
        builder.add_item(torch.tensor(tokenizer.encode(line, add_special_tokens=False).ids, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{folder}/{name}.idx")


def case(name, base, lines, **changes):
    """`changes`: fields of the tokenizer.json that replace those of gpt2.json; "model" is merged."""
    definition = json.loads(base)
    for key, value in changes.items():
        if key == "model":
            definition["model"].update(value)
        else:
            definition[key] = value
    t = Tokenizer.from_str(json.dumps(definition))
    return {"name": name, "changes": changes, "ids": [t.encode(line, add_special_tokens=False).ids for line in lines]}


def added(base, **flags):
    vocab = json.loads(base)["model"]["vocab"]
    size = max(vocab.values()) + 1
    tokens = [{"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}]
    for i, content in enumerate(["[A]", "[AB]", "café", "[L]", "[R]", "'s", "12"]):
        tokens.append({"id": vocab.get(content, size + i), "content": content, "single_word": False, "lstrip": content == "[L]", "rstrip": content == "[R]",
                       "normalized": False, "special": False} | flags)
    return tokens


def main(folder):
    rng = random.Random(20)
    lines = texts(rng)
    with open(f"{folder}/lines.json", "w") as f:
        json.dump({"versions": VERSIONS, "lines": lines}, f, separators=(",", ":"))
        f.write("\n")
    gpt2 = train(lines, 2000, byte_level())
    llama3 = train(lines, 1800, split(LLAMA3), ignore_merges=True)
    qwen2 = train(lines, 1800, split(QWEN2), normalizers.NFC())
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=[("<|begin_of_text|>", 1800)])])
    qwen2.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens([AddedToken("café", normalized=True), AddedToken("<tool_call>", normalized=False)])
    for name, t in (("gpt2", gpt2), ("llama3", llama3), ("qwen2", qwen2)):
        t.save(f"{folder}/{name}.json", pretty=False)
        write_ids(folder, name, t, lines)
    base, some = gpt2.to_str(), lines[::EVERY]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def before(*steps):
        return {"type": "Sequence", "pretokenizers": list(steps) + [level]}

    def split_json(pattern, behavior, invert=False):
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    cases = [case("GPT-NeoX", base, some, normalizer={"type": "NFC"}, pre_tokenizer=level | {"use_regex": True}),
             case("prefix space", base, some, pre_tokenizer=level | {"use_regex": True, "add_prefix_space": True}),
             case("no pattern", base, some, pre_tokenizer=level),
             case("o200k", base, some, pre_tokenizer=before(split_json({"Regex": O200K}, "Isolated"))),
             case("digits one by one", base, some, pre_tokenizer={"type": "Sequence", "pretokenizers": [
                 {"type": "Digits", "individual_digits": True}, level | {"use_regex": True}]}),
             case("digits", base, some, pre_tokenizer=before({"type": "Digits", "individual_digits": False})),
             case("punctuation", base, some, pre_tokenizer=before({"type": "Punctuation", "behavior": "Isolated"})),
             case("whitespace", base, some, pre_tokenizer=before({"type": "Whitespace"})),
             case("whitespace split", base, some, pre_tokenizer=before({"type": "WhitespaceSplit"})),
             case("ideographs", base, some, pre_tokenizer=before(split_json({"Regex": "\\p{N}{1,3}"}, "Isolated"),
                                                                 split_json({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "Isolated"),
                                                                 split_json({"Regex": "\\p{Han}\\p{Hiragana}?|\\h+|\\w\\W"}, "Isolated"))),
             case("prefix space after a split", base, some, pre_tokenizer={"type": "Sequence", "pretokenizers": [
                 split_json({"String": "-"}, "Isolated"), level | {"add_prefix_space": True, "use_regex": True}]}),
             case("ignore_merges", base, some, model={"ignore_merges": True}),
             case("merges as text", base, some, model={"merges": [" ".join(m) for m in json.loads(base)["model"]["merges"]]}),
             case("NFD", base, some, normalizer={"type": "NFD"}),
             case("NFKC then NFD", base, some, normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "NFD"}]}),
             case("NFKD", base, some, normalizer={"type": "NFKD"}),
             case("added", base, some, added_tokens=added(base)),
             case("added, single words", base, some, added_tokens=added(base, single_word=True)),
             case("added, lstrip and rstrip", base, some, added_tokens=added(base, lstrip=True, rstrip=True)),
             case("added, normalized", base, some, normalizer={"type": "NFD"}, added_tokens=added(base, normalized=True, single_word=True)),
             case("added, special", base, some, normalizer={"type": "NFC"}, added_tokens=added(base, special=True, lstrip=True))]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            cases.append(case(f"{behavior} {invert}", base, some, pre_tokenizer=before(split_json({"Regex": "[a-m.]|\\d\\d"}, behavior, invert))))
    with open(f"{folder}/cases.json", "w") as f:
        json.dump({"versions": VERSIONS, "every": EVERY, "cases": cases}, f, separators=(",", ":"))
        f.write("\n")
    print(len(lines), "texts,", len(cases), "cases")


main(sys.argv[1])
