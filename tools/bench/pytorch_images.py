"""Seconds of exact training steps of the CIFAR networks of configs/ in PyTorch.

To set beside `vcas bench configs/resnet20_cifar10.json` and `configs/wrn16_4_cifar10.json`:
forward, backward and SGD with Nesterov on batches of 128 images of 32 x 32.

python3 pytorch_images.py resnet20|wrn16_4 [--threads 1] [--steps 8] [--channels-last]
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

parser = argparse.ArgumentParser()
parser.add_argument("network", choices=["resnet20", "wrn16_4"])
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--channels-last", action="store_true")
options = parser.parse_args()


def convolution(width, out, kernel, stride=1):
    return nn.Conv2d(width, out, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    """Two convolutions of 3 x 3 (He et al.), or with the norms before them (WideResNet)."""

    def __init__(self, width, out, stride, preact):
        super().__init__()
        self.preact = preact
        self.convolutions = nn.ModuleList(
            [convolution(width, out, 3, stride), convolution(out, out, 3)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width if preact else out, out))
        self.shortcut = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(convolution(width, out, 1, stride))
            if not preact:
                self.shortcut.append(nn.BatchNorm2d(out))

    def forward(self, x):
        if self.preact:
            before = relu(self.norms[0](x))
            inner = self.convolutions[0](before)
            has_shortcut = not isinstance(self.shortcut, nn.Identity)
            x = self.shortcut(before) if has_shortcut else x
            return x + self.convolutions[1](relu(self.norms[1](inner)))
        inner = relu(self.norms[0](self.convolutions[0](x)))
        return relu(self.norms[1](self.convolutions[1](inner)) + self.shortcut(x))


def network(widths, depth, preact):
    layers = [convolution(3, 16, 3)]
    if not preact:
        layers += [nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage, out in enumerate(widths):
        for block in range(depth):
            layers.append(Block(width, out, 2 if stage > 0 and block == 0 else 1, preact))
            width = out
    if preact:
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


torch.set_num_threads(options.threads)
torch.manual_seed(1)
preact = options.network == "wrn16_4"
model = network([64, 128, 256], 2, True) if preact else network([16, 32, 64], 3, False)
images = torch.randn(options.batch, 3, 32, 32)
labels = torch.randint(10, (options.batch,))
if options.channels_last:
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
)
seconds = []
for step in range(options.steps + 2):
    start = time.perf_counter()
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    seconds.append(time.perf_counter() - start)
print(
    f"torch {torch.__version__}, {options.network}, {options.threads} threads, "
    f"{'channels last' if options.channels_last else 'channels first'}: median "
    f"{1e3 * statistics.median(seconds[2:]):.1f} ms"
)
