# SPDX-License-Identifier: Apache-2.0
"""Models whose layers of Mamba or linear attention have states, beside full attention."""
import functools
import os
import re

from case import all_found, e2e
from cases_hybrid import chunks_by_size
from cases_requests import abandon
from cases_vllm import needs_kvtier
from place import check, in_parallel

LENGTHS = (350, 1200, 2401)  # tokens of the prompts; not multiples of a block
# Without the option, vLLM 0.32 on a CPU keeps blocks of 256 tokens for these models, but splits
# prompts at multiples of 128 tokens: some states are then wrong, and kvtier does nothing.
BLOCKS = "--block-size", "256"


@e2e
def linear_attention(place):
    """Qwen3-Next: states and KV bit for bit after a restart; damaged states are computed."""
    states_found(place, "linear-attention", *BLOCKS)


@e2e
def mamba2(place):
    """Granite 4: states and KV bit for bit after a restart; damaged states are computed."""
    # A step of one block: in a longer step, vLLM 0.32 exports the state after the last block
    # from within the step, and the CPU's kernel of Mamba2 fails there (IndexError).
    states_found(place, "mamba2", *BLOCKS, "--max-num-batched-tokens", "256")


@e2e
def preempted_states(place):
    """Qwen3-Next with too few blocks: aborts, preemptions and evictions leave right states in
    the store, and each answer after a hit equals the answer after a hit of vLLM's own."""
    needs_kvtier(place)
    place.model = "linear-attention"
    few_blocks = *BLOCKS, "--num-gpu-blocks-override", "36", "--max-model-len", "4096"
    with place.bare_server(*BLOCKS, "--max-model-len", "4096") as server:
        prompts = [place.piece(server, 1100 * i, n)
                   for i, n in enumerate((300, 1100, 900, 700, 1050, 500))]
        oracles = [[server.complete(prompt) for _ in range(2)][1] for prompt in prompts]
    with place.server(*few_blocks) as server:
        block = block_size(place)
        for _ in range(2):
            in_parallel([functools.partial(abandon, server, prompt, place.random.uniform(0, 1))
                         for prompt in prompts])
            server.reset_prefix_cache()
            for answer in in_parallel([functools.partial(server.complete, prompt, 2 * block)
                                       for prompt in prompts]):
                check(len(answer.token_ids) == 2 * block, "an answer is cut short")
        check(server.metrics()["vllm:num_preemptions_total"] > 0, "no request was preempted")
        place.stores_ended()
        server.reset_prefix_cache()
        all_found(place, server, prompts, oracles, "after preemptions", block)
        place.check_idle(server)
    place.check_hashes()


def states_found(place, model, *args):
    needs_kvtier(place)
    place.model = model
    with place.server(*args) as server:
        block = block_size(place)
        prompts = [place.piece(server, sum(LENGTHS[:i]), n) for i, n in enumerate(LENGTHS)]
        computed = [server.complete(prompt) for prompt in prompts]
        oracles = [server.complete(prompt) for prompt in prompts]
        place.stored()
    with place.server(*args) as server:
        all_found(place, server, prompts, oracles, "after the restart", block)
        place.check_idle(server)
    place.check_hashes()
    damage_states(place, sum(len(prompt) // block for prompt in prompts))
    with place.server(*args) as server:
        for prompt, answer in zip(prompts, computed):
            place.check_equal(server.complete(prompt), answer, "with damaged states")
        counted = place.counted(server, "load_corrupt", 1)
        check(counted["load_corrupt"] > 0, "no damage was met")
        place.check_idle(server)


def block_size(place):
    found = re.search(r"kvtier: chunk_size is (\d+), the block size", place.read_log())
    check(found, "kvtier does not say that chunk_size is vLLM's block size")
    return int(found.group(1))


def damage_states(place, n_blocks):
    """Truncate the files of states, which are smaller than those of full attention."""
    states, attention = chunks_by_size(place)
    check(len(attention) == n_blocks and len(states) <= n_blocks,
          "the store has %d states and %d chunks of full attention for %d blocks"
          % (len(states), len(attention), n_blocks))
    for path in states:
        os.truncate(path, 1000)
