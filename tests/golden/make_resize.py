#!/usr/bin/env python3
"""Makes resize.safetensors with Pillow (pip install "pillow<13" numpy safetensors).

Each image [height, width] with what Image.resize makes of it: "IMAGE" and "IMAGE FILTER".
"""

import pathlib

import numpy
import safetensors.numpy
from PIL import Image

sizes = {  # height x width of the image, and of the result
    "enlarged": ((16, 16), (112, 112)),
    "reduced": ((61, 75), (22, 27)),
    "mixed": ((13, 40), (31, 9)),
    "wide": ((8, 90), (8, 33)),
    "dot": ((1, 1), (5, 4)),
}
filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

random = numpy.random.default_rng(1)
tensors = {}
for name, (before, after) in sizes.items():
    # Few grey levels, so that there are edges for the filters to overshoot at.
    pixels = random.choice(numpy.array([0, 3, 128, 250, 255], dtype=numpy.uint8), size=before)
    tensors[name] = pixels
    for filter_name, number in filters.items():
        resized = Image.fromarray(pixels).resize((after[1], after[0]), number)
        tensors[f"{name} {filter_name}"] = numpy.asarray(resized)
safetensors.numpy.save_file(tensors, pathlib.Path(__file__).parent / "resize.safetensors")
