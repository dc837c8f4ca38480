#!/usr/bin/env python3
"""Compares a BERT or a GPT-2 with real weights against transformers (pip install torch
transformers).

    check_hf.py PROGRAM FOLDER SENTENCES.tsv [--count 200]

PROGRAM is vcas_hf_outputs (cmake --build ... --target vcas_hf_outputs), FOLDER a Hugging Face
folder with its tokenizer, SENTENCES a file with one sentence in the first column after a header.
The program's hidden states, or the logits of a GPT-2, are held against those of transformers on
padded batches. The folder that it exports is held against the program itself.
"""

import argparse
import pathlib
import subprocess
import tempfile

import safetensors.torch
import torch
import transformers


def worst(got, want):
    """Largest error of a row, relative to the row's norm."""
    return ((got - want).norm(dim=-1) / want.norm(dim=-1)).max().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("sentences")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--column", type=int, default=0)
    options = parser.parse_args()

    lines = pathlib.Path(options.sentences).read_text().splitlines()[1 : options.count + 1]
    texts = [line.split("\t")[options.column] for line in lines]
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    words = transformers.AutoConfig.from_pretrained(options.folder).model_type == "gpt2"
    if words and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    mask = inputs["attention_mask"].bool()
    types = inputs.get("token_type_ids", torch.zeros_like(inputs["input_ids"]))
    if words:
        inputs.pop("token_type_ids", None)  # GPT2Model would look them up as words
    print(f"{len(texts)} sentences, {int(mask.sum())} tokens, "
          f"{mask.numel()} when padded to {mask.shape[1]}")

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        batch = {
            "tokens": inputs["input_ids"][mask].int(),
            "token_types": types[mask].int(),
            "offsets": torch.cat([torch.zeros(1, dtype=torch.long), mask.sum(1).cumsum(0)]),
        }
        safetensors.torch.save_file(batch, scratch / "batch.safetensors")
        subprocess.run([options.program, options.folder, scratch / "batch.safetensors", scratch],
                       check=True)
        ours = safetensors.torch.load_file(scratch / "outputs.safetensors")

        head = transformers.GPT2LMHeadModel if words else transformers.BertForSequenceClassification
        exported, info = head.from_pretrained(scratch / "export", output_loading_info=True)
        exported.eval()
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            print(f"exported folder: {kind} {sorted(info[kind])}")
            assert not info[kind]
        with torch.no_grad():
            if words:
                original = head.from_pretrained(options.folder).eval()
                want, again = original(**inputs).logits, exported(**inputs).logits
                print(f"logits: largest relative error of a token "
                      f"{worst(ours['logits'], want[mask]):.2e}")
                print(f"exported folder, logits against the original: equal bits "
                      f"{torch.equal(again, want)}")
                return
            original = transformers.BertModel.from_pretrained(options.folder).eval()
            want = original(**inputs).last_hidden_state
            print(f"hidden states: largest relative error of a token "
                  f"{worst(ours['hidden'], want[mask]):.2e}")
            again = exported.bert(**inputs).last_hidden_state
            print(f"exported folder, hidden states against the original: equal bits "
                  f"{torch.equal(again, want)}")
            logits = exported(**inputs).logits
            print(f"exported folder, logits against the program: largest relative error "
                  f"{worst(ours['logits'], logits):.2e}")


main()
