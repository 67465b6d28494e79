#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a draft model for the demo's small Llama: random weights, other numbers of heads.

    make-draft.py DIR

Run this script with the Python of the environment of scripts/vllm-env.
"""
import os
import runpy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo")


def make_model(vocabulary):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        max_position_embeddings=32768, rope_theta=500000.0, dtype="bfloat16",
        bos_token_id=0, eos_token_id=1)
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    demo = runpy.run_path(os.path.join(DEMO, "make-model.py"))
    tokenizer = demo["make_tokenizer"]([os.path.join(DEMO, "text.txt")])
    tokenizer.save_pretrained(sys.argv[1])
    make_model(len(tokenizer)).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
