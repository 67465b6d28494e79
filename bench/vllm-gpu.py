#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure kvtier inside a real vLLM on a GPU, and compare each answer with vLLM's own.

Requirements: vLLM and kvtier (KVTIER_LIBRARY and PYTHONPATH, or the wheel), a GPU, 30 GiB of
disk.  Without a GPU, vLLM's CPU backend answers: use few tokens.  No network: the model is a
Llama with random weights, made here: 16 layers, 8 KV heads of 128, 64 KiB of KV a token.

Four processes run one after the other:
  reference  vLLM without kvtier: cold prompts, and vLLM's own hit, which is the floor
  first      with kvtier: cold prompts and hits in host memory
  restart    hits on the disk, past the page cache, and hits in host memory after that
  damaged    as restart, after bytes of every ninth file were changed: only answers count

Each line is a prompt: time to first token in ms, tokens found by kvtier, and "equal" if the
16 tokens and their log probabilities have the bits of the reference with the same split of
the prompt into found and computed tokens, or with the damage, of either reference.

Exit status: 0; 1 if answers differ.  $OUT, or --out, gets vllm-gpu.json.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.pop(0)  # vllm.py of this directory is not vLLM
CHUNK = 256
N_NEW = 16
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 32000}
STAGES = ("reference", "first", "restart", "damaged")


def log(text):
    print("vllm-gpu: " + text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- model

def make_model(path):
    """Write a Llama with random weights of a fixed seed."""
    import torch
    from safetensors.torch import save_file

    hidden, head = SHAPE["hidden_size"], SHAPE["head_dim"]
    q, kv = (SHAPE[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    wide = SHAPE["intermediate_size"]
    chance = torch.Generator().manual_seed(7)

    def noise(rows, columns, size):
        return (torch.randn(rows, columns, generator=chance) * size).to(torch.bfloat16)

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": noise(SHAPE["vocab_size"], hidden, 1.0),
               "lm_head.weight": noise(SHAPE["vocab_size"], hidden, 0.1),
               "model.norm.weight": ones}
    for i in range(SHAPE["num_hidden_layers"]):
        for name, rows, columns in (
                ("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden),
                ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, q),
                ("mlp.gate_proj", wide, hidden), ("mlp.up_proj", wide, hidden),
                ("mlp.down_proj", hidden, wide)):
            weights[f"model.layers.{i}.{name}.weight"] = noise(
                rows, columns, 1.5 / hidden ** 0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = ones.clone()
    os.makedirs(path)
    save_file(weights, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                   "hidden_act": "silu", "max_position_embeddings": 32768,
                   "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                   "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
                   "torch_dtype": "bfloat16", **SHAPE}, file)


# ---------------------------------------------------------------------- engine

def open_vllm(options, with_kvtier):
    from vllm import LLM

    more = json.loads(options.vllm)
    if with_kvtier:
        more["kv_transfer_config"] = {
            "kv_connector": "KVTierConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "kvtier.connector",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "chunk_size": CHUNK, "max_local_cpu_size": options.memory,
                "remote_url": "fs://" + os.path.join(options.dir, "store")}}
    return LLM(model=os.path.join(options.dir, "model"), skip_tokenizer_init=True,
               dtype="bfloat16", max_model_len=32768, enable_prefix_caching=True,
               seed=0, disable_log_stats=False, **more)


class Asker:
    def __init__(self, llm, name):
        self.llm = llm
        self.name = name
        self.n = 0
        self.rows = []

    def ask(self, tokens, n_new=N_NEW):
        """Return (tokens of the answer, their log probabilities, s to the first token)."""
        from vllm import SamplingParams

        self.n += 1
        engine = self.llm.llm_engine
        begun = time.perf_counter()
        engine.add_request(str(self.n), {"prompt_token_ids": tokens}, SamplingParams(
            temperature=0, max_tokens=n_new, ignore_eos=True, detokenize=False, logprobs=0))
        first = out = None
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs and output.outputs[0].token_ids:
                    first = first or time.perf_counter() - begun
                    out = output.outputs[0]
        probabilities = [next(iter(step.values())).logprob for step in out.logprobs]
        return list(out.token_ids), probabilities, first

    def counter(self, name):
        """Return a counter, after a request that makes vLLM publish the counters."""
        self.ask([5, 6, 7], 2)
        time.sleep(0.6)
        self.ask([5, 6, 7], 2)
        return sum(metric.value for metric in self.llm.get_metrics()
                   if metric.name == "vllm:" + name)

    def settle(self):
        while self.counter("kvtier_stores_pending"):
            pass

    def measure(self, kind, which, tokens, reset=True):
        if reset:
            self.llm.reset_prefix_cache()
        before = self.counter("external_prefix_cache_hits")
        answer, probabilities, first = self.ask(tokens)
        found = self.counter("external_prefix_cache_hits") - before
        self.rows.append({"stage": self.name, "kind": kind, "prompt": which,
                          "tokens": len(tokens), "first_token_ms": first * 1e3,
                          "found": int(found), "answer": [answer, probabilities]})


def run_stage(options):
    name = options.stage
    chance = random.Random(11)
    prompts = {}
    for i, length in enumerate(options.tokens.split(",") * 2):
        n = int(length) // CHUNK * CHUNK + 16
        prompts["%s.%d" % (length, i)] = [chance.randrange(3, SHAPE["vocab_size"])
                                          for _ in range(n)]
    warm, *rest = prompts
    asker = Asker(open_vllm(options, name != "reference"), name)
    for _ in range(2):  # compiles kernels, and loads
        asker.ask(prompts[warm])
        asker.llm.reset_prefix_cache()
        if name != "reference":
            asker.settle()
    kinds = {"reference": ("cold",), "first": ("cold", "memory"),
             "restart": ("disk", "memory"), "damaged": ("disk", "memory")}[name]
    if "disk" in kinds:
        drop_page_cache(os.path.join(options.dir, "store"))
    for kind in kinds:
        for which in rest:
            asker.measure(kind, which, prompts[which])
            if name == "reference":
                asker.measure("own hit", which, prompts[which], reset=False)
        if name != "reference":
            asker.settle()
    with open(os.path.join(options.dir, name + ".json"), "w") as file:
        json.dump(asker.rows, file)


# ----------------------------------------------------------------------- files

def chunk_files(store):
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(store)
                  for name in names if name.endswith(".data"))


def drop_page_cache(store):
    os.sync()
    for path in chunk_files(store):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def damage(store):
    paths = chunk_files(store)[::9]
    for path in paths:
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(b"damaged bytes")
    log("damaged %d files" % len(paths))


# ---------------------------------------------------------------------- report

def report(options, rows):
    """Print the lines.  Return True if all answers are right."""
    right = {(row["prompt"], row["kind"]): row["answer"]
             for row in rows if row["stage"] == "reference"}
    all_equal = True
    print("%-10s %-8s %-10s %7s %12s %7s  answer" % (
        "stage", "kind", "prompt", "tokens", "first token", "found"))
    for row in rows:
        wanted = [right[row["prompt"], "own hit" if row["found"] else "cold"]]
        if row["kind"] == "own hit" or row["stage"] == "damaged":
            wanted = [right[row["prompt"], kind] for kind in ("own hit", "cold")]
        row["equal"] = row.pop("answer") in wanted
        all_equal &= row["equal"]
        print("%-10s %-8s %-10s %7d %9.1f ms %7d  %s" % (
            row["stage"], row["kind"], row["prompt"], row["tokens"], row["first_token_ms"],
            row["found"], "equal" if row["equal"] else "DIFFERS"))
    with open(os.path.join(options.out, "vllm-gpu.json"), "w") as file:
        json.dump(rows, file, indent=1)
    return all_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="10000,30000", metavar="N,N",
                        help="lengths of prompts (10000,30000)")
    parser.add_argument("--memory", type=float, default=12, metavar="GIB",
                        help="kvtier's host memory (12)")
    parser.add_argument("--vllm", default="{}", metavar="JSON",
                        help="more arguments of vllm.LLM")
    parser.add_argument("--dir", metavar="DIR", help="of model and store (in /var/tmp)")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), metavar="DIR")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        return run_stage(options)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-",
                                     dir=options.dir or "/var/tmp") as options.dir:
        make_model(os.path.join(options.dir, "model"))
        os.mkdir(os.path.join(options.dir, "store"))
        rows = []
        for stage in STAGES:
            log(stage)
            if stage == "damaged":
                damage(os.path.join(options.dir, "store"))
            subprocess.run([sys.executable, os.path.abspath(__file__), "--stage", stage,
                            "--dir", options.dir, "--tokens", options.tokens, "--vllm",
                            options.vllm, "--memory", str(options.memory)], check=True)
            with open(os.path.join(options.dir, stage + ".json")) as file:
                rows += json.load(file)
        return 0 if report(options, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
