#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a small model of random weights whose layers have different numbers of KV heads.

    make-mixed-heads.py DIR

The model is a DeciLM (Llama-Nemotron), so its configuration is a module of the directory: vLLM
needs --trust-remote-code.  Run this script with the Python of the environment of
scripts/vllm-env.
"""
import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import random_model

HIDDEN, HEADS, HEAD = 512, 8, 64
KV_HEADS = (4, 4, 2, 8, 4, 2, 1, 4)  # of each layer
CONFIGURATION = '''\
from transformers import LlamaConfig


class Fields(dict):
    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class DeciLMConfig(LlamaConfig):
    model_type = "nemotron-nas"

    def __init__(self, block_configs=(), **kwargs):
        super().__init__(**kwargs)
        self.block_configs = [
            Fields({name: Fields(values) for name, values in block.items()})
            for block in block_configs]
'''


def make_model(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN,
        num_hidden_layers=len(KV_HEADS), num_attention_heads=HEADS, num_key_value_heads=4,
        head_dim=HEAD, max_position_embeddings=32768, rope_theta=500000.0, dtype="bfloat16",
        bos_token_id=0, eos_token_id=1)
    model = LlamaForCausalLM(config)
    for layer, heads in zip(model.model.layers, KV_HEADS):
        for name in ("k_proj", "v_proj"):
            projection = torch.nn.Linear(HIDDEN, heads * HEAD, bias=False)
            torch.nn.init.normal_(projection.weight, std=0.02)
            setattr(layer.self_attn, name, projection)
    return model.to(torch.bfloat16)


def rewrite_configuration(directory):
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = json.load(file)
    config.update(
        architectures=["DeciLMForCausalLM"], model_type="nemotron-nas",
        auto_map={"AutoConfig": "configuration_decilm.DeciLMConfig"},
        num_key_value_heads=None,
        block_configs=[{"attention": {"no_op": False, "n_heads_in_group": HEADS // heads},
                        "ffn": {"no_op": False, "intermediate_size": 3 * HIDDEN}}
                       for heads in KV_HEADS])
    with open(path, "w") as file:
        json.dump(config, file)
    with open(os.path.join(directory, "configuration_decilm.py"), "w") as file:
        file.write(CONFIGURATION)


if __name__ == "__main__":
    rewrite_configuration(random_model.save(__doc__, make_model))
