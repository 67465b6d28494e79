#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a small Qwen3-MoE of random weights: eight experts in each layer, two for each token.

    make-experts.py DIR

Run this script with the Python of the environment of scripts/vllm-env.
"""
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import random_model


def make_model(vocabulary):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary, hidden_size=512, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        max_position_embeddings=32768, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=256, norm_topk_prob=True, dtype="bfloat16", bos_token_id=0,
        eos_token_id=1, pad_token_id=0)
    return Qwen3MoeForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    random_model.save(__doc__, make_model)
