#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a vLLM engine on the CPU for run.py, with the Python of vLLM's environment.

    engine.py JOB RESULT

JOB is a JSON file:

model     directory of the model
text      file of the text
transfer  value of --kv-transfer-config, or null: no store
context   tokens of a prompt before the forced tokens; a multiple of `step`
forced    forced tokens of a prompt
prompts   number of prompts, each from another part of the text
step      tokens computed in a step at most
save      true: compute the contexts, for the store; false: score the forced tokens

RESULT is a JSON file: {"metrics": {name: value}, "prompts": [result of a prompt]}.  The result
of a prompt is {"cached": number of tokens not computed, "tokens": [...]}.  "tokens" has an entry
for each forced token: [token, log probability, most likely token in its place, log probability].

By default vLLM ignores all caches if a request wants log probabilities of the prompt.  With
skip_reading_prefix_cache=False vLLM loads the context, computes the forced tokens in the steps of
an engine without a store, and returns the log probabilities of the computed tokens.
"""
import json
import os
import sys
import time

SETTLE_S = 120
TAIL = 16  # tokens after the context of a prompt for the store


def prompts(job):
    """Return the prompts: <bos>, the rest of the context, the forced tokens.

    vLLM computes the token at position `context` after the load: the first forced token is the
    next token.  So a prompt has context + 1 + forced tokens."""
    from tokenizers import Tokenizer

    with open(job["text"], encoding="utf-8") as file:
        text = file.read()
    tokenizer = Tokenizer.from_file(os.path.join(job["model"], "tokenizer.json"))
    bos, *ids = tokenizer.encode(text).ids
    n = job["context"] + job["forced"]
    if n * job["prompts"] > len(ids):
        sys.exit("the text has %d tokens, the prompts need %d" % (len(ids), n * job["prompts"]))
    return [[bos] + ids[i * n:(i + 1) * n] for i in range(job["prompts"])]


def open_engine(job):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    transfer = job["transfer"] and KVTransferConfig(**job["transfer"])
    return LLM(model=job["model"], dtype="bfloat16", enforce_eager=True,
               # vLLM returns random token ids for the context, which have no text.
               skip_tokenizer_init=True, max_num_batched_tokens=job["step"],
               max_model_len=job["context"] + job["forced"] + job["step"],
               kv_transfer_config=transfer, disable_log_stats=False)


def ask(llm, ids, **more):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, detokenize=False, **more)
    return llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0]


def score(llm, job, ids):
    answer = ask(llm, ids, prompt_logprobs=1, skip_reading_prefix_cache=False)
    found = []
    for at in range(job["context"] + 1, len(ids)):
        logprobs = answer.prompt_logprobs[at]
        best = min(logprobs, key=lambda token: logprobs[token].rank)
        found.append([ids[at], logprobs[ids[at]].logprob, best, logprobs[best].logprob])
    return {"cached": answer.num_cached_tokens, "tokens": found}


def metrics(llm):
    """Return vLLM's and kvtier's counters and gauges, summed over the labels."""
    sums = {}
    for metric in llm.get_metrics():
        if hasattr(metric, "value"):
            sums[metric.name] = sums.get(metric.name, 0) + metric.value
    return sums


def settled_metrics(llm):
    """Wait until all stores have ended and return the counters.  kvtier's workers report in
    vLLM's steps, at most twice a second."""
    deadline, seen = time.monotonic() + SETTLE_S, None
    while True:
        ask(llm, [5, 6, 7])
        found = metrics(llm)
        now = {name: value for name, value in found.items()
               if name.startswith("vllm:kvtier_")}
        if now == seen and not now.get("vllm:kvtier_stores_pending"):
            return found
        if time.monotonic() > deadline:
            sys.exit(f"kvtier's stores have not ended after {SETTLE_S} s")
        seen = now
        time.sleep(0.7)


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    texts = prompts(job)
    llm = open_engine(job)
    found = []
    for ids in texts:
        if job["save"]:
            ask(llm, ids[:job["context"] + TAIL])
        else:
            found.append(score(llm, job, ids))
    with open(sys.argv[2], "w") as file:
        json.dump({"metrics": settled_metrics(llm), "prompts": found}, file)
    # By default vLLM kills its processes after 5 seconds.
    llm.llm_engine.engine_core.shutdown(timeout=SETTLE_S)


if __name__ == "__main__":
    main()
