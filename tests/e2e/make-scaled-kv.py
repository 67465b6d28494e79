#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the demo's small Llama with scales for a KV cache of FP8 numbers.

    make-scaled-kv.py DIR

Each layer has scales of its own, as after a calibration.  Run this script with the Python of
the environment of scripts/vllm-env.
"""
import json
import os

import torch
from safetensors.torch import load_file, save_file

import random_model

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


if __name__ == "__main__":
    add_scales(random_model.save(__doc__))
