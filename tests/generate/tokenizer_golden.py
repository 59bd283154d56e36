"""Writes the tokenizer goldens of tests/data/text: strings and the ids of Hugging Face tokenizers.

Run: python tests/generate/tokenizer_golden.py models/SmolLM2-135M-Instruct.Q4_1.gguf
Versions used: tokenizers 0.23.3, gguf 0.19.0; seed 20240611.

smollm2_golden.jsonl      5,000 strings, by SmolLM2's tokenizer as its tokenizer.json describes it,
                          built here from the vocabulary and merges of the GGUF.
tiny_<pre>.gguf           only tokenizer metadata: a byte-level BPE of 1,200 tokens for one
                          tokenizer.ggml.pre. Its merges are learned without any pre-tokenizer, so
                          they run across spaces, digits and line ends, and a pre-tokenizer that
                          splits elsewhere gives other ids.
tiny_<pre>_golden.jsonl   500 strings by that vocabulary and the pre-tokenizer which Hugging Face's
                          tokenizer.json of the model family has.
"""
import json
import pathlib
import random
import sys

import gguf
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "text"
SEED = 20240611

WORDS = """the of and to in is that it was for on are as with his they at be this have from or had
by word but what some we can out other were all there when up use your how said an each she which
do their time if will way about many then them would like so these her long make thing see him two
has look more day could go come did number sound no most people my over know water than call first
who may down side been now find any new work part take get place made live where after back little
only round man year came show every good me give our under name very through just form much
sentence think help low line before turn cause same mean differ move right boy old too does tell
I'll don't we've they're he'd IT'S Can'T you'RE naïve café coöperate""".split()
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x45F),
           (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x94D), (0xE01, 0xE3A), (0x10D0, 0x10F0),
           (0x1E00, 0x1EFF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
           (0x10330, 0x1034A), (0x1D400, 0x1D433), (0x20000, 0x20100)]
MARKS = ["\u0301", "\u0308", "\u093f", "\u0e34", "\u064e", "\u200d", "\u200c", "\ufe0f", "\u00ad",
         "\u200b"]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３", "½²³Ⅷ①"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "❤️", "1️⃣", "🧑🏿‍🚀", "☃", "🫠"]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u2003",
          "\u3000", "\x0b",
          "\x0c", "\u2028", "\u0085", "        "]
CODE = ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += 0x1F;\n}",
        "<div class=\"a\">&nbsp;</div>",
        "SELECT * FROM t WHERE id='1';", "{\"k\": [1, 2.5e-3, null]}", "#include <vector>",
        "a->b::c(&d)", "x_y1 != 'z'",
        "https://example.org/a?b=c&d=%20#e", "// TODO(me): fix\\n", "`$HOME/.cfg`",
        "C:\\dir\\file.txt", "==>", "!!!???...",
        "—–“”‘’«»", "$1,234.56", "3.14159", "v2.0.1-rc3", "2024-06-11T12:34:56Z", "(a)(b)[c]{d}",
        "'s 't 're 've 'm 'll 'd",
        "'S 'T 'RE 'VE 'M 'LL 'D", "\u0130'S ſ'ſ"]


def some_text(rng, special):
    kind = rng.randrange(12)
    if kind == 0:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))
    if kind == 1:
        return "".join(
            rng.choice(MARKS) if rng.random() < 0.3 else chr(rng.randint(*rng.choice(SCRIPTS)))
            for _ in range(rng.randint(1, 8)))
    if kind == 2:
        digits = rng.choice(DIGITS)
        return "".join(rng.choice(digits) for _ in range(rng.randint(1, 9)))
    if kind == 3:
        return rng.choice(EMOJI)
    if kind == 4:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
    if kind == 5:
        return rng.choice(CODE)
    if kind == 6:
        return rng.choice(special) if special else ""
    if kind == 7:
        ranges = [(0x20, 0x7E), (1, 0x1F), (0x80, 0x2FF)]
        return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 6)))
    if kind == 8:
        return rng.choice(special)[: rng.randint(1, 8)] if special else "<|"
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))


def strings(rng, count, special):
    seen = ["", " ", "\n", "\u0000", "\ufeffx", "a" * 200, " " * 100, "9" * 50]
    while len(seen) < count:
        text = "".join(some_text(rng, special) + rng.choice(["", "", " ", "  ", "\n"])
                       for _ in range(rng.randint(1, 4)))
        seen.append(text if rng.random() < 0.9 else text.upper())
    return seen[:count]


def write_golden(path, tokenizer, texts):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            row = {"text": text, "ids": ids} | ({} if decoded == text else {"decoded": decoded})
            file.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")


def add_special(tokenizer, tokens, types):
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t, kind in zip(tokens, types) if kind == gguf.TokenType.CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False)
                          for t, kind in zip(tokens, types) if kind == gguf.TokenType.USER_DEFINED])


def smollm2(path):
    fields = gguf.GGUFReader(path).fields
    tokens, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    set_pre_tokenizer(tokenizer, "smollm")
    add_special(tokenizer, tokens, types)
    special = [token for token, kind in zip(tokens, types) if kind == gguf.TokenType.CONTROL]
    write_golden(OUT / "smollm2_golden.jsonl", tokenizer, strings(random.Random(SEED), 5000, special))


# The patterns of the families' own tokenizer.json files.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def set_pre_tokenizer(tokenizer, pre):
    byte_level = pre_tokenizers.ByteLevel
    split = {"llama-bpe": LLAMA3, "qwen2": QWEN2}.get(pre)
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    elif pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), behavior="isolated"),
             byte_level(add_prefix_space=False, use_regex=False)])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()


def learn(texts):
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, max_token_length=12,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def tiny(pre):
    special = {"<|begin|>": gguf.TokenType.CONTROL, "<|end|>": gguf.TokenType.CONTROL,
               "<tool>": gguf.TokenType.USER_DEFINED}
    rng = random.Random(f"{SEED} {pre}")
    vocab, merges = learn(strings(rng, 3000, []))
    tokens = sorted(vocab, key=vocab.get) + list(special)
    types = [int(gguf.TokenType.NORMAL)] * len(vocab) + [int(kind) for kind in special.values()]
    writer = gguf.GGUFWriter(OUT / f"tiny_{pre}.gguf", "qwen2" if pre == "qwen2" else "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(len(vocab))
    writer.add_eos_token_id(len(vocab) + 1)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges,
                                     ignore_merges=pre == "llama-bpe"))
    set_pre_tokenizer(tokenizer, pre)
    add_special(tokenizer, tokens, types)
    write_golden(OUT / f"tiny_{pre}_golden.jsonl", tokenizer, strings(rng, 500, list(special)))


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    smollm2(sys.argv[1])
    for name in ("llama-bpe", "qwen2", "gpt-2", "smollm"):
        tiny(name)
