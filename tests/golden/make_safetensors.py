#!/usr/bin/env python3
"""Makes original.safetensors with the format's own library (pip install numpy safetensors)."""

import pathlib

import numpy
import safetensors.numpy

tensors = {
    "z.f32": numpy.array([[1.5, -2.0, 3.25], [0.0, 1e-30, -numpy.inf]], dtype=numpy.float32),
    "a.f32": numpy.array(0.5, dtype=numpy.float32),
    "f64": numpy.array([1 / 3, -1e300], dtype=numpy.float64),
    "f16": numpy.array([1.0, -0.5, 65504.0, 6e-8], dtype=numpy.float16),
    "i64": numpy.array([-(2**62), 7], dtype=numpy.int64),
    "i32": numpy.array([[-5], [6]], dtype=numpy.int32),
    "u8": numpy.array([0, 255, 3], dtype=numpy.uint8),
    "bool": numpy.array([True, False, True], dtype=numpy.bool_),
    "empty": numpy.zeros((0, 4), dtype=numpy.float32),
    "na\u00efve \"name\"": numpy.array([9.0], dtype=numpy.float32),
}
folder = pathlib.Path(__file__).parent
safetensors.numpy.save_file(tensors, folder / "original.safetensors", metadata={"format": "pt"})
