#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the demo's small Llama with scales for a KV cache of FP8 numbers.

    make-scaled-kv.py DIR

Each layer has scales of its own, as after a calibration.  Run this script with the Python of
the environment of scripts/vllm-env.
"""
import json
import os
import runpy
import sys

import torch
from safetensors.torch import load_file, save_file

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo")
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False,
          "symmetric": True}


def add_scales(directory):
    path = os.path.join(directory, "model.safetensors")
    weights = load_file(path)
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    for layer in range(config["num_hidden_layers"]):
        for name, scale in ("k_scale", 0.02), ("v_scale", 0.01):
            weights[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor(
                [scale * (1 + layer / 8)])
    save_file(weights, path, metadata={"format": "pt"})
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
        "ignore": ["lm_head"], "kv_cache_scheme": SCHEME}
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    demo = runpy.run_path(os.path.join(DEMO, "make-model.py"))
    tokenizer = demo["make_tokenizer"]([os.path.join(DEMO, "text.txt")])
    tokenizer.save_pretrained(sys.argv[1])
    demo["make_model"](len(tokenizer)).save_pretrained(sys.argv[1])
    add_scales(sys.argv[1])


if __name__ == "__main__":
    main()
