# SPDX-License-Identifier: Apache-2.0
"""Models that kvtier does not support: vLLM works as without kvtier."""
import functools

from case import CHUNK, e2e
from cases_hybrid import chunks_by_size
from cases_requests import abandon
from cases_vllm import needs_kvtier
from place import check, in_parallel

# Fewer blocks than six requests need.  In some blocks vLLM has states.
FEW_BLOCKS = ("--num-gpu-blocks-override", "26", "--max-model-len", "4096")
NO_CACHE = "--no-enable-prefix-caching",  # of states and KV


@e2e
def unsupported_model(place):
    """Linear attention without vLLM's prefix cache: kvtier says once that kvtier does nothing;
    requests, aborts, preemptions, resets, MultiConnector and the shutdown work as without
    kvtier."""
    needs_kvtier(place)
    place.model = "linear-attention"
    lengths = (300, 1100, 900, 700, 1100, 500)
    with place.bare_server(*FEW_BLOCKS, *NO_CACHE) as server:
        prompts = [place.prompt(server, 1100 * i, n) for i, n in enumerate(lengths)]
        oracles = [server.complete(prompt) for prompt in prompts]
    # vLLM serves the model only with connectors that know several KV cache groups, and
    # ExampleConnector does not: kvtier is the only child of MultiConnector.
    for beside in ({}, {"after": []}):
        before = len(place.read_log())
        place.beside = beside
        with place.server(*FEW_BLOCKS, *NO_CACHE) as server:
            live(place, server, prompts, oracles)
        said = place.read_log()[before:]
        check(said.count("nothing is stored or loaded") == 1,
              "kvtier says %d times that kvtier does nothing" %
              said.count("nothing is stored or loaded"))
        check("does not support" in said and "--enable-prefix-caching" in said,
              "the reason is missing")
        check("vllm.kvtier" not in said and "kv_load_failure_policy is" not in said,
              "kvtier says more than the reason")
        check(not chunks_by_size(place), "kvtier stored chunks")


def live(place, server, prompts, oracles):
    for prompt, oracle in zip(prompts, oracles):
        place.check_equal(server.complete(prompt), oracle, f"prompt of {len(prompt)} tokens")
    check(server.metrics()["vllm:external_prefix_cache_hits_total"] == 0, "kvtier had hits")
    in_parallel([functools.partial(abandon, server, prompt, place.random.uniform(0, 1))
                 for prompt in prompts])
    place.check_idle(server)
    for external in (True, False):
        server.reset_prefix_cache(external)
    for prompt, answer in zip(prompts, in_parallel([
            functools.partial(server.complete, prompt, 2 * CHUNK) for prompt in prompts])):
        check(len(answer.token_ids) == 2 * CHUNK, "an answer is cut short")
    check(server.metrics()["vllm:num_preemptions_total"] > 0, "no request was preempted")
    server.reset_prefix_cache()
    place.check_equal(server.complete(prompts[0]), oracles[0], "after the preemptions")
    place.check_idle(server)
