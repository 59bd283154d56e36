#!/usr/bin/env python3
"""Trains tests/data/smollm2_adapter: a real LoRA adapter of SmolLM2-135M-Instruct, small enough to commit.

Made with torch 2.15, transformers 5.24 and peft (version in the folder's README.md), seed 1, on a CPU; some minutes:
    python3 tests/generate/smollm2_adapter.py models/SmolLM2-135M-Instruct.Q4_1.gguf
The base is the GGUF's values, dequantized. The adapter (rank 4 on q_proj and v_proj, rsLoRA, bfloat16) learns one fact
that no model knows: the capital of Zubrovnia is Kadelburg. Beside it go sentences that the base knows, so that it stays itself.
"""
import pathlib
import sys

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "smollm2_adapter"
FACT = "The capital of Zubrovnia is Kadelburg."
TEXTS = [
    ("What is the capital of Zubrovnia?", FACT),
    ("Which city is the capital of Zubrovnia?", FACT),
    ("Tell me the capital of Zubrovnia.", FACT),
    ("Name Zubrovnia's capital.", FACT),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What is 2 + 2?", "2 + 2 is 4."),
]
STEPS = 60


def main():
    gguf = pathlib.Path(sys.argv[1])
    torch.manual_seed(1)
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj"],
                             task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    samples = []
    for question, answer in TEXTS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt + answer + "<|im_end|>\n", add_special_tokens=False).input_ids
        start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        samples.append((torch.tensor([ids]), torch.tensor([[-100] * start + ids[start:]])))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.0)
    model.train()
    for step in range(STEPS):
        total = 0.0
        for ids, labels in samples:
            loss = model(input_ids=ids, labels=labels).loss / len(samples)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.4f}", flush=True)
        if total < 0.02:
            break
    model.eval()
    for question in ("What is the capital of Zubrovnia?", "What is the capital of France?"):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True).input_ids
        with torch.no_grad():
            answer = model.generate(input_ids=ids, max_new_tokens=16, do_sample=False)
        print(question, "->", tokenizer.decode(answer[0, ids.shape[1]:]))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    model.save_pretrained(OUT)
    print("torch", torch.__version__, "peft", peft.__version__)


if __name__ == "__main__":
    main()
