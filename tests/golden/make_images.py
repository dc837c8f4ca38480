#!/usr/bin/env python3
"""Makes images/*.jpg, images/*.png and their pixels with Pillow (pip install pillow numpy safetensors).

colours.jpg has subsampled colours; "pixels" are those that Pillow reads from it. grey16.png has 16
bits a pixel; "pixels" are the upper 8 of those that Pillow reads from it (its convert("RGB") would
make everything above 255 white).
"""

import pathlib

import numpy
import safetensors.numpy
from PIL import Image

folder = pathlib.Path(__file__).parent / "images"
folder.mkdir(exist_ok=True)
Image.new("RGB", (20, 12), (200, 30, 30)).save(folder / "red.jpg")
Image.new("RGB", (12, 24), (30, 30, 200)).save(folder / "blue.jpg")

y, x = numpy.mgrid[0:37, 0:50]
noise = numpy.random.default_rng(1).integers(-30, 30, size=(37, 50, 3))
waves = numpy.stack([numpy.sin(x / 4.0), numpy.sin(y / 3.0), numpy.cos((x + y) / 5.0)], axis=2)
pixels = numpy.clip(128 + 100 * waves + noise, 0, 255).astype(numpy.uint8)
Image.fromarray(pixels).save(folder / "colours.jpg", quality=80, subsampling="4:2:0")
read = numpy.asarray(Image.open(folder / "colours.jpg").convert("RGB"))
safetensors.numpy.save_file({"pixels": numpy.ascontiguousarray(read)}, folder / "colours.safetensors")

levels = numpy.random.default_rng(2).integers(0, 1 << 16, size=(9, 13), dtype=numpy.uint16)
levels[0, :6] = [0, 127, 128, 255, 256, 65535]
Image.fromarray(levels).save(folder / "grey16.png")
read = Image.open(folder / "grey16.png")
assert read.mode == "I;16"
safetensors.numpy.save_file({"pixels": (numpy.asarray(read) >> 8).astype(numpy.uint8)}, folder / "grey16.safetensors")
