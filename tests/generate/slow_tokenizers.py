"""Writes tests/data/text/tokenizers: tokenizers without a tokenizer.json, and the ids that transformers gives.

Run: python tests/generate/slow_tokenizers.py
Versions used: transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3; seed 20260101.

bpe.model, unigram.model   tiny SentencePiece models, trained here
vocab.json, merges.txt     a tiny byte-level BPE
<case>.json                a tokenizer_config.json, the files it goes with, and rows of text, ids and decoded text

The reference is AutoTokenizer on a folder of these files, but for llama_legacy. transformers 4 and
`LlamaConverter` put SentencePiece's dummy prefix before every text (what the models of that time were trained
on, and what SentencePiece itself does), while transformers 5's own class leaves it out where the text begins
with a space; the case is therefore made with the normalizer and pre-tokenizer of `LlamaConverter`. It is
checked against SentencePiece here.
"""
import json
import pathlib
import random
import shutil
import tempfile
import types

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import LlamaConverter

import tokenizer_golden as golden

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "text" / "tokenizers"
SEED = 20260101
NORMAL = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
RULES = [("FF21", "41"), ("FF22", "42"), ("FB01", "66 69"), ("2163", "49 56"), ("B2", "32"), ("9", "20")]


def sentences(rng, count):
    words = golden.WORDS + golden.CODE[:6] + ["Zürich", "日本", "été", "12", "3.5", "user", "hello", "The"]
    return [" ".join(rng.choice(words) for _ in range(rng.randint(2, 9))).replace("\n", " ") for _ in range(count)]


def train(rng):
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text("".join(f"{source}\t{target}\n" for source, target in RULES))
        common = {"user_defined_symbols": ["<tool>", "##"], "num_threads": 1, "minloglevel": 2,
                  "character_coverage": 0.999, "vocab_size": 700}
        text = sentences(rng, 4000)
        for name, options in (
                ("bpe", {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False,
                         "normalization_rule_name": "identity", "split_digits": True}),
                ("unigram", {"model_type": "unigram", "normalization_rule_tsv": str(rules),
                             "hard_vocab_limit": False})):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text), model_prefix=f"{folder}/{name}", **common, **options)
            shutil.copy(f"{folder}/{name}.model", OUT / f"{name}.model")


def train_bytes(rng):
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.train_from_iterator(sentences(rng, 2000), trainers.BpeTrainer(
        vocab_size=900, show_progress=False, max_token_length=12,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    learner.model.save(str(OUT))


def texts(rng, special):
    mine = ["<|im_start|>user", "<|im_start|> user", "a<|im_start|>\nuser hi", " leading", "  two", "trailing ",
            "The The", "\u2581The", "😀", "x😀y", "<s>text</s>", "<tool>x<tool>", "a##b", " <tool> ", "ＡＢ ﬁ Ⅳ x²",
            "tab\there", "日本 été 鿃", "a\nb\n\n c", "<unk>", "\ufffd", "<0x41>", "", " ", "1234 5.6"]
    return mine + [text for text in golden.strings(rng, 320, special)[8:] if "\0" not in text][:200]


def folder_of(files, config):
    folder = pathlib.Path(tempfile.mkdtemp())
    for target, source in files.items():
        shutil.copy(OUT / source, folder / target)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def write(name, files, config, change=None, check=None):
    folder = folder_of(files, config)
    backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    if change:
        backend = change(backend, folder)
    rng = random.Random(f"{SEED} {name}")
    rows = []
    for text in texts(rng, ["<s>", "</s>", "<|im_start|>", "<tool>"]):
        ids = backend.encode(text).ids
        rows.append({"text": text, "ids": ids, "decoded": backend.decode(ids, skip_special_tokens=True)})
        if check:
            check(text, ids, folder)
    with open(OUT / f"{name}.json", "w", encoding="utf-8", newline="\n") as file:
        head = json.dumps({"files": files, "config": config})
        body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        file.write(f'{head[:-1]}, "rows": [\n{body}\n]}}\n')
    print(name, len(rows), "rows")
    shutil.rmtree(folder)


def as_llama_converter(backend, folder):
    original = types.SimpleNamespace(vocab_file=str(folder / "tokenizer.model"), legacy=True, add_prefix_space=True)
    converter = LlamaConverter(original)
    backend.normalizer = converter.normalizer(converter.proto)
    parts = json.loads(backend.to_str())
    parts["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(parts))


def as_sentencepiece(text, ids, folder):
    """Texts without added tokens are those of the model itself."""
    if any(token in text for token in ("<s", "</s", "<|im", "<tool", "##", "<unk", "\u2581")) or not text:
        return
    model = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    assert ids[1:] == model.encode(text), (text, ids, model.encode(text))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    train(rng)
    train_bytes(rng)
    bpe, unigram = {"tokenizer.model": "bpe.model"}, {"tokenizer.model": "unigram.model"}
    merges = {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}
    chat = {"added_tokens_decoder": {"700": {"content": "<|im_start|>", "special": False, **NORMAL},
                                     "701": {"content": "<A>", "special": True, **NORMAL, "lstrip": True,
                                             "rstrip": True}}}
    write("llama_legacy", bpe, {"tokenizer_class": "LlamaTokenizer", "legacy": True, **CONFIG, **chat},
          as_llama_converter, as_sentencepiece)
    write("llama_new", bpe, {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, **CONFIG, **chat})
    write("gemma", bpe, {"tokenizer_class": "GemmaTokenizer", **CONFIG})
    write("own_bpe", bpe, {"tokenizer_class": "PreTrainedTokenizerFast", **CONFIG})
    write("own_unigram", unigram, {"tokenizer_class": "PreTrainedTokenizerFast", **CONFIG, "add_eos_token": True})
    added = {"added_tokens_decoder": {"900": {"content": "<|endoftext|>", "special": True, **NORMAL},
                                      "901": {"content": "<|im_start|>", "special": True, **NORMAL}}}
    ends = {"bos_token": None, "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    write("gpt2", merges, {"tokenizer_class": "GPT2Tokenizer", **ends, **added})
    write("qwen2", merges, {"tokenizer_class": "Qwen2Tokenizer", **ends, **added})


if __name__ == "__main__":
    main()
