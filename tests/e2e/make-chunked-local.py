#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a small Llama 4 of random weights: the model with chunked local attention.

    make-chunked-local.py DIR

Every fourth layer has full attention, the others read pieces of 512 tokens.  Run this script
with the Python of the environment of scripts/vllm-env.
"""
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

import random_model


def make_model(vocabulary):
    torch.manual_seed(0)
    config = Llama4TextConfig(
        vocab_size=vocabulary, hidden_size=512, intermediate_size=1536,
        intermediate_size_mlp=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=32768, moe_layers=[],
        interleave_moe_layer_step=1000,
        num_local_experts=1, attention_chunk_size=512, attn_temperature_tuning=False,
        dtype="bfloat16", bos_token_id=0, eos_token_id=1)
    config.architectures = ["Llama4ForCausalLM"]
    return Llama4ForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    random_model.save(__doc__, make_model)
