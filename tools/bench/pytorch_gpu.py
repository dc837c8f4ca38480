"""What PyTorch reaches on a device, to set beside vcas_ops_bench and vcas bench: JSON, a line each.

python3 pytorch_gpu.py cuda|emu rates        products and copies
python3 pytorch_gpu.py cuda|emu bert|vit|resnet
                                             exact training steps of the models of bench_bert_base,
                                             bench_vit_base and bench_resnet50, random weights and
                                             data; those of the last channels last, by cuDNN
emu: small, on the CPU, to try this script
"""
import json
import os
import statistics
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch

on_gpu = sys.argv[1] == "cuda"
device = "cuda" if on_gpu else "cpu"


def seconds_of(work, repeats, turns=5):
    """Seconds of one piece of work, in each turn: the device is waited for between turns only."""
    seconds = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / repeats)
    return seconds[1:]


def say(**values):
    where = torch.cuda.get_device_name() if on_gpu else "cpu"
    print(json.dumps({"torch": torch.__version__, "device": where, **values}), flush=True)


def rates():
    side, megabytes, repeats = (8192, 1024, 5) if on_gpu else (256, 1, 1)
    for name, dtype, tf32 in [
        ("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, True)
    ]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x = torch.rand(side, side, device=device, dtype=dtype)
        best = min(seconds_of(lambda: x @ x, repeats))
        say(product=name, flops_per_second=2 * side**3 / best)
    source = torch.rand(megabytes << 18, device=device)
    target = torch.empty_like(source)
    best = min(seconds_of(lambda: target.copy_(source), repeats))
    say(copy_bytes_per_second=2 * 4 * source.numel() / best)


def make_model(kind):
    import transformers

    if kind == "resnet":
        small = {} if on_gpu else {"depths": [1, 1], "hidden_sizes": [16, 32]}
        config = transformers.ResNetConfig(num_labels=1000, **small)
        model = transformers.ResNetForImageClassification(config)
        return model.to(memory_format=torch.channels_last)
    small = {} if on_gpu else {
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96
    }
    if kind == "bert":
        config = transformers.BertConfig(num_labels=3, **small)
        return transformers.BertForSequenceClassification(config)
    config = transformers.ViTConfig(num_labels=1000, **small)
    return transformers.ViTForImageClassification(config)


def make_batch(kind, items):
    if kind == "bert":
        return {"input_ids": torch.randint(1000, 30000, (items, 128), device=device),
                "labels": torch.randint(3, (items,), device=device)}
    pixels = torch.rand(items, 3, 224, 224, device=device)
    if kind == "resnet":
        pixels = pixels.to(memory_format=torch.channels_last)
    return {"pixel_values": pixels,
            "labels": torch.randint(1000, (items,), device=device)}


def steps(kind, items, precision, compiled):
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model = make_model(kind).to(device).train()
    run = torch.compile(model, dynamic=False, mode="reduce-overhead") if compiled else model
    if kind == "resnet":
        torch.backends.cudnn.benchmark = True
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=on_gpu)
    batch = make_batch(kind, items)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = run(**batch).loss
        loss.backward()
        if kind != "resnet":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds = statistics.median(seconds_of(step, 4 if on_gpu else 1))
    say(model=kind, items=items, precision=precision, compiled=compiled, seconds=seconds)


if sys.argv[2] == "rates":
    rates()
else:
    # Compiling, with CUDA graphs as vcas has them, takes a minute each time. What matters most
    # comes first: time may be short.
    modes = [("bf16", False), ("tf32", False), ("f32", False)]
    if on_gpu:
        modes = [("bf16", True), *modes, ("tf32", True)]
    for precision, compiled in modes:
        for items in (32, 256) if on_gpu else (2,):
            try:
                steps(sys.argv[2], items, precision, compiled)
            except RuntimeError as error:  # out of memory, or no compiler
                say(model=sys.argv[2], items=items, precision=precision, compiled=compiled,
                    error=str(error).split("\n")[0])
