#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a small Qwen3-Next of random weights: a hybrid of linear and full attention.

    make-linear-attention.py DIR

Run this script with the Python of the environment of scripts/vllm-env.
"""
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

import random_model


def make_model(vocabulary):
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=vocabulary, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        max_position_embeddings=32768, linear_num_value_heads=8, linear_num_key_heads=4,
        linear_key_head_dim=64, linear_value_head_dim=64, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        layer_types=["linear_attention", "full_attention"] * 2, dtype="bfloat16",
        bos_token_id=0, eos_token_id=1, pad_token_id=0)
    return random_model.with_slow_decay(Qwen3NextForCausalLM(config)).to(torch.bfloat16)


if __name__ == "__main__":
    random_model.save(__doc__, make_model)
