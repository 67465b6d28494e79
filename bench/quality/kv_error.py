#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the blocks that a worker loaded with the blocks that a worker saved, for run.py.

    kv_error.py PREFIX

Reads PREFIX.save and PREFIX.load of recording_connector.py and prints a JSON object:

blocks          loaded blocks
k, v            relative rms error of K and V: the mean of the layers
worst_k, worst_v   the largest error of a layer

The relative rms error of a layer is the root of (sum of squared differences / sum of squared
saved elements), over all loaded blocks.  The elements are bfloat16.  vLLM on a CPU stores a
head's K and then the head's V in a block.
"""
import collections
import json
import math
import sys

import numpy


def blocks(path):
    """Yield (key of the block, shape, bytes)."""
    with open(path, "rb") as file:
        for line in file:
            head, *numbers = line.split()
            group, number, n_layers, n_heads, block_bytes = map(int, numbers)
            yield ((head, group, number), (n_layers, n_heads, 2, -1),
                   file.read(n_layers * block_bytes))


def elements(shape, data):
    """Return the elements as float64, with the axes layer, head, K or V, element."""
    bits = numpy.frombuffer(data, "<u2").astype("<u4") << 16
    return bits.view("<f4").astype("f8").reshape(shape)


def errors(prefix):
    """Return (number of blocks, {(group, layer): relative rms errors of K and V})."""
    saved = {key: data for key, _, data in blocks(prefix + ".save")}
    sums = collections.defaultdict(lambda: numpy.zeros((2, 2)))
    n_blocks = 0
    for key, shape, data in blocks(prefix + ".load"):
        before, after = elements(shape, saved[key]), elements(shape, data)
        for layer in range(shape[0]):
            for row, values in enumerate((after[layer] - before[layer], before[layer])):
                sums[key[1], layer][row] += (values ** 2).sum(axis=(0, 2))
        n_blocks += 1
    return n_blocks, {layer: numpy.sqrt(difference / magnitude)
                      for layer, (difference, magnitude) in sums.items()}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    n_blocks, layers = errors(sys.argv[1])
    k, v = zip(*layers.values())
    print(json.dumps({"blocks": n_blocks, "layers": len(layers),
                      "k": math.fsum(k) / len(k), "v": math.fsum(v) / len(v),
                      "worst_k": max(k), "worst_v": max(v)}))


if __name__ == "__main__":
    main()
