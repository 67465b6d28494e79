#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a small Granite 4 of random weights: a hybrid of Mamba2 and full attention.

    make-mamba2.py DIR

Run this script with the Python of the environment of scripts/vllm-env.
"""
import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

import random_model


def make_model(vocabulary):
    torch.manual_seed(0)
    config = GraniteMoeHybridConfig(
        vocab_size=vocabulary, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=32768,
        layer_types=["mamba", "attention"] * 2, num_local_experts=0,
        shared_intermediate_size=1024, mamba_n_heads=16, mamba_d_head=64, mamba_d_state=32,
        mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=64,
        dtype="bfloat16", bos_token_id=0, eos_token_id=1, pad_token_id=0)
    return random_model.with_slow_decay(GraniteMoeHybridForCausalLM(config)).to(torch.bfloat16)


if __name__ == "__main__":
    random_model.save(__doc__, make_model)
