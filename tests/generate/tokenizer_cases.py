"""Writes tests/data/text/tokenizer_cases.json: small tokenizers for known faults, and what Hugging Face's
library makes of them.

Run: python tests/generate/tokenizer_cases.py
Versions used: tokenizers 0.23.3; no random numbers.
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

import tokenizer_golden as golden

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "text" / "tokenizer_cases.json"
T02_TEXTS = ["->", "(x):\n", "a1234", "don't", "DON'T", "  x", "\n\n ", "x  y", "a\n\nb", "12345678", " 12", "x->y",
             "!!x", "\t\tif", "é1", "日本2026年", "  \n  x", "...\n\n", "'s'S"]


def bpe_with_space():
    """A merge whose right piece holds a space: only pairs can spell it."""
    vocab = {piece: i for i, piece in enumerate(
        ["h", "e", "l", "o", " ", "he", "ll", "hell", "hello", " h", "o h", "l o", "lo", " he"])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "h"), ("o", " h"), ("l", "o")]
    return vocab, merges


def t01():
    vocab, merges = bpe_with_space()
    simple = [pair for pair in merges if not any(" " in piece for piece in pair)]
    texts = ["hello", "helo", "hell", "hello hello", "oh ohe", "loll"]
    for name, chosen in (("T01 pairs", simple), ("T01 strings", simple), ("T01 a piece with a space", merges)):
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=chosen))
        source = json.loads(tokenizer.to_str())
        if name == "T01 strings":
            source["model"]["merges"] = [" ".join(pair) for pair in chosen]
            tokenizer = Tokenizer.from_str(json.dumps(source))
        yield name, source, tokenizer, texts


def t02():
    """Words of a split as whole tokens, so that a wrong split shows as an unknown token."""
    for name, pattern in (("T02 qwen2", golden.QWEN2), ("T02 llama3", golden.LLAMA3)):
        splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        words = sorted({piece for text in T02_TEXTS for piece, _ in splitter.pre_tokenize_str(text)})
        vocab = {"<unk>": 0, **{word: i + 1 for i, word in enumerate(words)}}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = splitter
        assert all(0 not in tokenizer.encode(text).ids for text in T02_TEXTS)
        yield name, json.loads(tokenizer.to_str()), tokenizer, T02_TEXTS


def t05():
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz <>AB")}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.add_tokens([AddedToken("<A>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<B>", rstrip=True, normalized=False),
                          AddedToken("ab", single_word=True, normalized=False)])
    texts = ["   <A> <B>   ", "x <A> y <B> z", "<B> <A>", "cab ab", "ab", "abc ab abab", " ab "]
    yield "T05 flags", json.loads(tokenizer.to_str()), tokenizer, texts


def t07():
    vocab = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz \n")}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|start_header_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", begin)])
    yield "T07 bos", json.loads(tokenizer.to_str()), tokenizer, ["hello", "<|begin_of_text|>hello"]


def main():
    cases = []
    for make in (t01, t02, t05, t07):
        for name, source, tokenizer, texts in make():
            rows = []
            for text in texts:
                whole, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
                rows.append({"text": text, "ids": whole.ids, "ids_without_special": bare.ids,
                             "offsets": [list(offset) for offset in whole.offsets]})
            cases.append({"name": name, "tokenizer": source, "rows": rows})
    OUT.write_text("[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
