#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the small model of the demo: a Llama of 42 million random weights.

    make-model.py DIR TEXT...

The weights come from a fixed seed; the tokenizer is a byte-level BPE trained on the given
texts.  The model writes nonsense, but the KV cache has the shape of a real model's cache.
Needs torch, transformers and tokenizers: run the script with the Python of the environment
that scripts/vllm-env makes.
"""
import os
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

MAX_VOCABULARY = 4096


def make_tokenizer(texts):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(texts, trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def make_model(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=32768,
        rope_theta=500000.0,
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1)
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main():
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    directory, texts = sys.argv[1], sys.argv[2:]
    os.makedirs(directory, exist_ok=True)
    logging.disable_progress_bar()
    tokenizer = make_tokenizer(texts)
    tokenizer.save_pretrained(directory)
    make_model(len(tokenizer)).save_pretrained(directory)


if __name__ == "__main__":
    main()
