"""Trains a GPT-2 in PyTorch and transformers, to set beside vcas-train with data.type=lm.

Forward, backward, clipping and AdamW on items of equal length of a text, in random order; linear
warm-up over a twentieth of the steps, then cosine. FOLDER, which vcas export wrote, has the sizes
and the tokenizer; the weights start anew.

python3 pytorch_gpt.py FOLDER TRAIN.txt TEST.txt [--threads 1] [--batch 32] [--length 64]
        [--epochs 3] [--rate 1e-3] [--seed 0]
"""
import argparse
import math
import os
import statistics
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("train")
parser.add_argument("test")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

torch.set_num_threads(options.threads)
torch.manual_seed(options.seed)
tokenizer = AutoTokenizer.from_pretrained(options.folder)
model = GPT2LMHeadModel(GPT2Config.from_pretrained(options.folder))


def items(file):
    """Inputs and labels [N, length]: the last, shorter item is left out."""
    with open(file, encoding="utf-8", newline="") as text:
        ids = torch.tensor(tokenizer(text.read(), verbose=False)["input_ids"])
    count = (len(ids) - 1) // options.length
    cut = [ids[shift : shift + count * options.length].view(count, -1) for shift in (0, 1)]
    return torch.stack(cut, dim=1)


def loss_of(batch):
    logits = model(input_ids=batch[:, 0]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1].flatten())


train, test = items(options.train), items(options.test)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
    lr=options.rate,
)
per_epoch = len(train) // options.batch
steps = options.epochs * per_epoch
warmup = steps // 20
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda step: (step + 1) / (warmup + 1)
    if step < warmup
    else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))),
)
seconds, losses = [], []
for step in range(steps):
    if step % per_epoch == 0:
        order = torch.randperm(len(train))
    batch = train[order[step % per_epoch * options.batch :][: options.batch]]
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = loss_of(batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    seconds.append(time.perf_counter() - start)
model.eval()
with torch.no_grad():
    parts = [(len(part), loss_of(part).item()) for part in test.split(options.batch)]
print(
    f"torch {torch.__version__}, {options.threads} threads, {steps} steps: "
    f"median {1e3 * statistics.median(seconds[3:]):.1f} ms a step; "
    f"training loss {statistics.mean(losses[-(steps // 10):]):.4f}, "
    f"test loss {sum(n * loss for n, loss in parts) / len(test):.4f}"
)
