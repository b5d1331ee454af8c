#!/usr/bin/env python3
"""Writes tests/data/sampler/vectors.json: what NumPy's generator and Generator.choice give.

Usage: make_sampler_vectors.py OUTPUT. Needs numpy >= 1.24. The file is committed; run this again only to extend it.
Integers above 2^53 are hexadecimal strings; doubles are printed with 17 digits and read back exactly.
"""

import json
import sys

import numpy

SEEDS = [0, 1, 42, 12345, 20260829, 20260830, 20260831, 2**31 - 2, 2**32 - 1, 2**32, 2**53 + 1, 2**64 - 1]


def generator_vectors():
    for seed in SEEDS:
        state = numpy.random.PCG64(seed).state["state"]
        raw = numpy.random.PCG64(seed).random_raw(4)
        doubles = numpy.random.default_rng(seed).random(1001)
        yield {
            "seed": hex(seed),
            "sequence": [hex(int(word)) for word in numpy.random.SeedSequence(seed).generate_state(6, numpy.uint64)],
            "state": hex(state["state"]),
            "increment": hex(state["inc"]),
            "raw": [hex(int(word)) for word in raw],
            "doubles": [float(value) for value in doubles[:8]],
            "double_1000": float(doubles[1000]),
        }


def skip_vectors():
    for seed, count in [(7, 1), (7, 1000003), (42, 2**40 + 12345), (42, 2**63 + 5)]:
        bits = numpy.random.PCG64(seed)
        bits.advance(count)
        yield {"seed": hex(seed), "count": hex(count), "next": hex(int(bits.random_raw()))}


def choice_vectors():
    shapes = numpy.random.default_rng(99)
    for seed in range(12):
        size = [1, 2, 3, 20, 50, 7][seed % 6]
        weights = shapes.exponential(size=size) ** [1.0, 4.0][seed % 2]
        if size > 2 and seed % 3 == 0:
            weights[0] = 0.0
        probabilities = weights / weights.sum()
        ids = numpy.sort(shapes.choice(248077, size=size, replace=False))
        generator = numpy.random.default_rng(seed)
        yield {
            "seed": hex(seed),
            "ids": [int(token) for token in ids],
            "probabilities": [float(value) for value in probabilities],
            "draws": [int(generator.choice(ids, p=probabilities)) for _ in range(40)],
        }


def main():
    data = {
        "numpy": numpy.__version__,
        "generators": list(generator_vectors()),
        "skips": list(skip_vectors()),
        "choices": list(choice_vectors()),
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(data, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
