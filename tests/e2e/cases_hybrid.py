# SPDX-License-Identifier: Apache-2.0
"""Models whose layers differ: full attention and layers that read a part of the tokens,
different numbers of heads."""
import os

import workplace
from case import all_found, found_in_memory, request_twice, e2e
from cases_vllm import needs_kvtier
from place import Skipped, check, first_token_difference
from server import max_logprob_difference


@e2e
def hybrid_attention(place):
    """Gemma 3: full-attention and sliding-window groups, found after a restart."""
    try:
        workplace.gemma(place.python)
    except workplace.Unavailable as e:  # a download
        raise Skipped(str(e).splitlines()[0]) from e
    found_after_a_restart(place, "gemma")


@e2e
def chunked_local_attention(place):
    """Llama 4: groups of full attention and of chunked local attention, found after a
    restart."""
    found_after_a_restart(place, "chunked-local")


@e2e
def different_head_counts(place):
    """Layers with 1, 2, 4 and 8 KV heads: bit for bit after a restart, in host memory, and
    with damaged chunks of the layers with 2 heads."""
    needs_kvtier(place)
    place.model = "mixed-heads"
    place.settings["local_cpu"] = "true"
    with place.server("--trust-remote-code") as server:
        prompts, oracles = request_twice(place, server, (300, 1300, 2400))
        place.stored()
    shapes = chunks_by_size(place)
    n_chunks = sum(len(prompt) // workplace.CHUNK_TOKENS for prompt in prompts)
    check([*map(len, shapes)] == [n_chunks] * 4,
          "the store has %s chunks of each shape" % [*map(len, shapes)])
    with place.server("--trust-remote-code") as server:
        all_found(place, server, prompts, oracles, "after the restart")
        found_in_memory(place, server, prompts, oracles, len(shapes))
        place.check_idle(server)
    for path in shapes[1]:  # two heads
        os.truncate(path, 1000)
    with place.server("--trust-remote-code") as server:
        for prompt, oracle in zip(prompts, oracles):
            place.check_close(server.complete(prompt), oracle, "with damaged chunks")
        counted = place.counted(server, "load_corrupt", 1)
        check(counted["load_corrupt"] > 0, "no damage was met")
        place.check_idle(server)
    place.check_hashes()


def chunks_by_size(place):
    """Return the files of the chunks of each group of layers, the smallest chunks first."""
    groups = {}  # the last part of a file's name -> files
    for path in workplace.files_below(place.store):
        if f"{os.sep}.kvtier{os.sep}" not in path:
            groups.setdefault(path.rsplit("@", 1)[1], []).append(path)
    return sorted(groups.values(), key=lambda paths: os.path.getsize(paths[0]))


def found_after_a_restart(place, model):
    place.model = model
    with place.server() as server:
        prompts, oracles = request_twice(place, server, (400, 1300, 2400))
        place.stored()
    place.tolerance = own_difference(place, prompts)
    worst = 0.0
    with place.server() as server:
        for prompt, oracle in zip(prompts, oracles):
            answer, found = place.hit(server, prompt)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 16,
                  f"{what}: {found} tokens found after the restart")
            check(answer.token_ids == oracle.token_ids,
                  f"{what}: other tokens than the oracle's")
            worst = max(worst, difference(answer, oracle))
        place.check_idle(server)
    print("  log probabilities differ by up to %.3g; those of vLLM's own runs by "
          "up to %.3g" % (worst, place.tolerance), flush=True)
    check(worst <= place.tolerance, "more than rounding can")
    place.check_hashes()
    groups = {group for _, _, group, *_ in place.read_hashes()}
    check(len(groups) > 1, f"vLLM made the groups {groups} only")


def difference(a, b):
    """Return the largest difference of log probabilities up to the first different token."""
    return max(first_token_difference(a, b) or 0.0, max_logprob_difference(a, b))


def own_difference(place, prompts):
    """Return the largest difference that rounding causes in vLLM without kvtier.

    Three runs split the prefill of each prompt differently: a cold run, a run with a hit of
    the whole prompt, and a run with a hit of half the prompt.
    """
    largest = 0.0
    with place.bare_server() as server:
        for prompt in prompts:
            cold = server.complete(prompt)
            own_hit = server.complete(prompt)
            server.complete(prompt[:len(prompt) // 2], 1, cache_salt="half")
            half = server.complete(prompt, cache_salt="half")
            largest = max(largest, difference(cold, own_hit),
                          difference(half, own_hit), difference(cold, half))
    return largest
