#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a draft model for the demo's small Llama: random weights, other numbers of heads.

    make-draft.py DIR

Run this script with the Python of the environment of scripts/vllm-env.
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import random_model


def make_model(vocabulary):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        max_position_embeddings=32768, rope_theta=500000.0, dtype="bfloat16",
        bos_token_id=0, eos_token_id=1)
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    random_model.save(__doc__, make_model)
