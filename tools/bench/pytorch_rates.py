"""Rates that PyTorch reaches on a device, as JSON, to set beside those of vcas_ops_bench.

python3 pytorch_rates.py cuda|emu        emu: the CPU, to try this script
"""
import json
import sys
import time

import torch

device = "cuda" if sys.argv[1] == "cuda" else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
side, megabytes, repeats = (8192, 1024, 20) if device == "cuda" else (256, 1, 2)


def best_seconds(work):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


x = torch.rand(side, side, device=device)
source = torch.rand(megabytes << 18, device=device)
target = torch.empty_like(source)
print(json.dumps({
    "torch": torch.__version__,
    "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    "f32_product_flops_per_second": 2 * side**3 / best_seconds(lambda: x @ x),
    "copy_bytes_per_second": 2 * 4 * source.numel() / best_seconds(lambda: target.copy_(source)),
}))
