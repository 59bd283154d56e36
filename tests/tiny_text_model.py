"""The tiny model of the command-line tests, with a tokenizer, a chat template and texts of its own words."""
import json
import shutil

VOCABULARY = 64


def tokenizer_json(words=VOCABULARY):
    """Whitespace-separated words w0 ... w63, with two of ChatML's marks among them."""
    vocabulary = {f"w{i}": i for i in range(3, words)}
    vocabulary.update({"<|im_start|>": 0, "<|im_end|>": 1, "<unk>": 2})
    special = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for i, text in enumerate(["<|im_start|>", "<|im_end|>", "<unk>"])]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}})


CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content + ' <|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}")


def copy_with_text(tiny, folder):
    """The checkpoint `tiny` in the new folder `folder`, with tokenizer and chat template."""
    shutil.copytree(tiny, folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "chat_template.jinja").write_text(CHATML)


def words(generator, count):
    """`count` random words of the vocabulary, without its special tokens."""
    return " ".join(f"w{generator.randrange(3, VOCABULARY)}" for _ in range(count))


def write_calibration(path, generator):
    """40 samples of 40 words, as JSON Lines."""
    path.write_text("".join(json.dumps({"text": words(generator, 40)}) + "\n" for _ in range(40)))
