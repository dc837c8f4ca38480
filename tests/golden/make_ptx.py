#!/usr/bin/env python3
"""Writes ptx.txt: what instructions of kernels/device/ptx.cuh do to words of 32 bits, in hexadecimal.

Worked out here from the PTX manual, with numbers for which every order of a sum is exact, so that a
GPU has no choice. Lines: name, "in" or "out", words.
"""
import pathlib
import random
import struct


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def write(lines, name, inputs, outputs):
    for side, words in (("in", inputs), ("out", outputs)):
        lines.append(" ".join([name, side] + [f"{word:08x}" for word in words]))


def rounded(word):
    """cvt.rna.tf32.f32: to 10 bits of mantissa, the nearest, ties away from zero; carries go on."""
    kept, lost = word >> 13, word & 0x1FFF
    infinite = word & 0x7F800000 == 0x7F800000
    return (kept + (not infinite and lost >= 0x1000)) << 13


def rounded_to_bf16(word):
    """cvt.rn.bf16: the nearest, ties to even; carries go on. Not for a NaN."""
    kept, lost = word >> 16, word & 0xFFFF
    return kept + (lost > 0x8000 or (lost == 0x8000 and kept % 2 == 1))


def pair(low, high):
    """Two numbers that bf16 has, as one word."""
    return bits(low) >> 16 | bits(high) & 0xFFFF0000


def main():
    rng = random.Random(1)
    lines = []

    words = [0x00000000, 0x80000000, 0x3F800000, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F802FFF,
             0x3F803000, 0xBF800FFF, 0xBF801000, 0xBF803000, 0x3FFFFFFF, 0x3FFFEFFF, 0x7F7FFFFF,
             0xFF7FFFFF, 0x7F7FE000, 0x7F800000, 0xFF800000, 0x00800000, 0x00801000]
    words += [bits(rng.gauss(0, 1)) for _ in range(32 - len(words))]
    write(lines, "to_tf32", words, [rounded(word) for word in words])

    # mma.m16n8k8: which entry each lane's words are is in ptx.cuh.
    a, b, c = ([[rng.randint(-9, 9) for _ in range(columns)] for _ in range(rows)]
               for rows, columns in ((16, 8), (8, 8), (16, 8)))
    inputs, outputs = [], []
    for lane in range(32):
        g, t = divmod(lane, 4)
        inputs += [a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4], b[t][g], b[t + 4][g]]
        for i, j in ((g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)):
            inputs.append(c[i][j])
            outputs.append(c[i][j] + sum(a[i][k] * b[k][j] for k in range(8)))
    write(lines, "mma_tf32", map(bits, inputs), map(bits, outputs))

    # copy_async: each of 32 threads copies 16 bytes, then 4 bytes.
    # Every fifth thread has zeros for the 16 bytes, every third for the 4 bytes.
    # A thread reads what the thread on the other end copied.
    words = [bits(rng.gauss(0, 1)) for _ in range(160)]
    outputs = []
    for thread in range(31, -1, -1):
        outputs += words[4 * thread:4 * thread + 4] if thread % 5 != 4 else [0] * 4
    outputs += [words[128 + thread] if thread % 3 != 2 else 0 for thread in range(31, -1, -1)]
    write(lines, "copy_async", words, outputs)

    words = [0x00000000, 0x80000000, 0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000,
             0x3F817FFF, 0xBF808000, 0xBF818000, 0x3FFF8000, 0x3FFF7FFF, 0x7F7FFFFF, 0xFF7FFFFF,
             0x7F7F7FFF, 0x7F800000, 0xFF800000, 0x00800000, 0x00808000, 0x00018000]
    words += [bits(rng.gauss(0, 1)) for _ in range(64 - len(words))]
    write(lines, "to_bf16_pair", words, [rounded_to_bf16(low) | rounded_to_bf16(high) << 16
                                         for low, high in zip(words[::2], words[1::2])])

    # mma.m16n8k16: which entries each lane's pairs are is in ptx.cuh.
    a, b, c = ([[rng.randint(-9, 9) for _ in range(columns)] for _ in range(rows)]
               for rows, columns in ((16, 16), (16, 8), (16, 8)))
    inputs, outputs = [], []
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i, k in ((g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)):
            inputs.append(pair(a[i][k], a[i][k + 1]))
        for k in (2 * t, 2 * t + 8):
            inputs.append(pair(b[k][g], b[k + 1][g]))
        for i, j in ((g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)):
            inputs.append(bits(c[i][j]))
            outputs.append(bits(c[i][j] + sum(a[i][k] * b[k][j] for k in range(16))))
    write(lines, "mma_bf16", inputs, outputs)

    # ldmatrix.x4 and ldmatrix.x4.trans of four 8 x 8 blocks, one row from each lane.
    blocks = [[[rng.randrange(1 << 16) & 0xBFFF for _ in range(8)] for _ in range(8)]
              for _ in range(4)]
    inputs, straight, transposed = [], [], []
    for lane in range(32):
        row = blocks[lane // 8][lane % 8]
        inputs += [row[i] | row[i + 1] << 16 for i in range(0, 8, 2)]
        g, t = divmod(lane, 4)
        straight += [block[g][2 * t] | block[g][2 * t + 1] << 16 for block in blocks]
        transposed += [block[2 * t][g] | block[2 * t + 1][g] << 16 for block in blocks]
    write(lines, "load_blocks", inputs, straight)
    write(lines, "load_blocks_transposed", inputs, transposed)

    # wgmma.m64n128k16, of b by rows k, then of b by columns. Then m64n256k16 of b by rows k.
    # Which entries each lane's pairs are is in ptx.cuh.
    # Sums are small. So the four that a lane has of each eight columns are digits of one number.
    for name, depth, width in (("wgmma_bf16", 32, 128), ("wgmma_bf16_k_major", 64, 128),
                               ("wgmma_bf16_wide", 32, 256)):
        a, b = ([[rng.randint(-1, 1) for _ in range(columns)] for _ in range(rows)]
                for rows, columns in ((64, depth), (depth, width)))
        inputs, outputs = [], []
        for step in range(depth // 16):
            for thread in range(128):
                g, t = divmod(thread % 32, 4)
                i, k = thread // 32 * 16 + g, step * 16 + 2 * t
                inputs += [pair(a[row][column], a[row][column + 1])
                           for row, column in ((i, k), (i + 8, k), (i, k + 8), (i + 8, k + 8))]
        for row in list(zip(*b)) if name.endswith("k_major") else b:
            inputs += [pair(row[j], row[j + 1]) for j in range(0, len(row), 2)]
        for thread in range(128):
            g, t = divmod(thread % 32, 4)
            for column in range(2 * t, width, 8):
                i = thread // 32 * 16 + g
                digits = [sum(a[row][k] * b[k][j] for k in range(depth)) for row, j in
                          ((i, column), (i, column + 1), (i + 8, column), (i + 8, column + 1))]
                assert max(map(abs, digits)) < 32
                outputs.append(bits(sum(digit * 64 ** n for n, digit in enumerate(digits))))
        write(lines, name, inputs, outputs)

    # A warp reads backwards what another wrote.
    words = [bits(rng.gauss(0, 1)) for _ in range(32)]
    write(lines, "barrier", words, words[::-1])

    # The same three times, of copies that arrive at a barrier.
    words = [[bits(rng.gauss(0, 1)) for _ in range(32)] for _ in range(3)]
    write(lines, "mbarrier", sum(words, []), sum((part[::-1] for part in words), []))

    pathlib.Path(__file__).with_name("ptx.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
