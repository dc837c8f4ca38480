#!/usr/bin/env python3
"""Makes images/*.jpg and images/colours.safetensors with Pillow (pip install pillow numpy safetensors).

colours.jpg has subsampled colours; "pixels" are those that Pillow reads from it.
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
