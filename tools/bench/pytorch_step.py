"""Seconds of exact fine-tuning steps of a BERT classifier in PyTorch and transformers.

To set beside `vcas bench`: forward, backward, clipping and AdamW on batches of a table with the
columns sentence (or premise, hypothesis) and label.

python3 pytorch_step.py FOLDER TABLE [--threads 1] [--batch 32] [--steps 20] [--pad-to 128]
"""
import argparse
import csv
import gzip
import os
import random
import statistics
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("table")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--pad-to", type=int, default=0, help="0: to the longest of the batch")
parser.add_argument("--max-length", type=int, default=64)
options = parser.parse_args()

torch.set_num_threads(options.threads)
torch.manual_seed(1)
opened = gzip.open if options.table.endswith(".gz") else open
with opened(options.table, "rt", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
random.Random(1).shuffle(rows)
classes = sorted({row["label"] for row in rows})
tokenizer = AutoTokenizer.from_pretrained(options.folder)
model = AutoModelForSequenceClassification.from_pretrained(
    options.folder, num_labels=len(classes)
)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
columns = [name for name in ("sentence", "premise", "hypothesis") if name in rows[0]]
seconds = []
for step in range(options.steps + 3):
    part = rows[step * options.batch : (step + 1) * options.batch]
    texts = [[row[name] for row in part] for name in columns]
    padding = {"padding": "max_length", "max_length": options.pad_to} if options.pad_to else {
        "padding": True, "max_length": options.max_length
    }
    batch = tokenizer(*texts, truncation=True, return_tensors="pt", **padding)
    labels = torch.tensor([classes.index(row["label"]) for row in part])
    start = time.perf_counter()
    optimizer.zero_grad()
    model(**batch, labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds.append(time.perf_counter() - start)
print(
    f"torch {torch.__version__}, {options.threads} threads, batch {options.batch}, padded to "
    f"{options.pad_to or 'the longest'}: median {1e3 * statistics.median(seconds[3:]):.1f} ms"
)
