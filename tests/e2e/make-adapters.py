#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make two LoRA adapters of random weights for the demo's small Llama.

    make-adapters.py DIR

Writes DIR/one and DIR/two.  The weights are large enough to make each adapter's KV and
answers differ from the KV and answers of the base model.  Run this script with the Python
of the environment of scripts/vllm-env.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

HIDDEN, KV, LAYERS, RANK = 512, 256, 12, 8  # of demo/make-model.py
TARGETS = {"q_proj": HIDDEN, "k_proj": KV, "v_proj": KV}


def make_adapter(directory, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return (0.1 * torch.randn(*shape, generator=generator)).to(torch.bfloat16)

    weights = {}
    for layer in range(LAYERS):
        for target, size in TARGETS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = random(RANK, HIDDEN)
            weights[f"{name}.lora_B.weight"] = random(size, RANK)
    os.makedirs(directory)
    save_file(weights, os.path.join(directory, "adapter_model.safetensors"))
    with open(os.path.join(directory, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK,
                   "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none",
                   "target_modules": sorted(TARGETS)}, file)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    for seed, name in enumerate(("one", "two"), 1):
        make_adapter(os.path.join(sys.argv[1], name), seed)


if __name__ == "__main__":
    main()
