# SPDX-License-Identifier: Apache-2.0
"""Models that kvtier does not support: vLLM works as without kvtier."""
import functools

from case import CHUNK, e2e
from cases_hybrid import chunks_of, use_model
from cases_requests import abandon
from cases_vllm import needs_kvtier
from place import check, in_parallel

# Fewer blocks than six requests need.  In some blocks vLLM has states.
FEW_BLOCKS = ("--num-gpu-blocks-override", "36", "--max-model-len", "4096")


@e2e
def unsupported_model(place):
    """Linear attention: kvtier says once that kvtier does nothing; requests, aborts,
    preemptions, resets, MultiConnector and the shutdown work as without kvtier."""
    needs_kvtier(place)
    use_model(place, "linear-attention")
    lengths = (300, 1100, 900, 700, 1100, 500)
    with place.bare_server(*FEW_BLOCKS) as server:
        prompts = [place.prompt(server, 1100 * i, n) for i, n in enumerate(lengths)]
        oracles = [answers_of(server, prompt) for prompt in prompts]
    # vLLM serves the model only with connectors that know several KV cache groups, and
    # ExampleConnector does not: kvtier is the only child of MultiConnector.
    for beside in ({}, {"after": []}):
        before = len(place.read_log())
        place.beside = beside
        with place.server(*FEW_BLOCKS) as server:
            live(place, server, prompts, oracles)
        said = place.read_log()[before:]
        check(said.count("nothing is stored or loaded") == 1,
              "kvtier says %d times that kvtier does nothing" %
              said.count("nothing is stored or loaded"))
        check("does not support" in said and "MambaSpec" in said, "the reason is missing")
        check("vllm.kvtier" not in said and "kv_load_failure_policy is" not in said,
              "kvtier says more than the reason")
        check(not chunks_of(place), "kvtier stored chunks")


def answers_of(server, prompt):
    """Return the answers without and with a hit in vLLM's own prefix cache."""
    return [server.complete(prompt) for _ in range(2)]


def live(place, server, prompts, oracles):
    for prompt, oracle in zip(prompts, oracles):
        for answer, expected in zip(answers_of(server, prompt), oracle):
            place.check_equal(answer, expected, f"prompt of {len(prompt)} tokens")
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
    place.check_equal(server.complete(prompts[0]), oracles[0][0], "after the preemptions")
    place.check_idle(server)
