# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: a real vLLM on the CPU, restarted on one store.

A test is a function of a Place.  Its oracle is the answer to a second
identical request in one server, which hits vLLM's own prefix cache: a hit of
the same length in kvtier must equal it bit for bit.  A request with a
cache_salt of its own finds nothing in any cache: the reference where hits may
differ in length.
"""
import workplace
from place import check

TESTS = {}
CHUNK = workplace.CHUNK_TOKENS


def e2e(function):
    """Register a test under its function's name."""
    TESTS[function.__name__] = function
    return function


def ask_twice(place, server, lengths, **more):
    """Prompts of these lengths, and vLLM's answers out of its own cache.  more: as for
    Server.complete()."""
    prompts, oracles, start = [], [], 0
    for n in lengths:
        prompts.append(place.prompt(server, start, n))
        start += n
    for prompt in prompts:
        server.complete(prompt, **more)
        oracles.append(server.complete(prompt, **more))
    return prompts, oracles


def all_found(place, server, prompts, oracles, where, **more):
    """Each prompt is found whole, and its answer equals the oracle's."""
    for prompt, oracle in zip(prompts, oracles):
        answer, found = place.hit(server, prompt, **more)
        what = f"prompt of {len(prompt)} tokens, {where}"
        check(found == len(prompt) - 16, f"{what}: {found} tokens found")
        place.check_equal(answer, oracle, what)


def found_in_memory(place, server, prompts, oracles, ranks=1):
    """The same once vLLM has forgotten them: all from host memory."""
    expected = ranks * sum(len(prompt) // CHUNK for prompt in prompts)
    before = place.counted(server, "memory_hits", 0)
    server.reset_prefix_cache()
    all_found(place, server, prompts, oracles, "in host memory")
    expected += before["memory_hits"]
    after = place.counted(server, "memory_hits", expected)
    check(after["memory_hits"] == expected,
          "%d chunks came from host memory, not %d" %
          (after["memory_hits"], expected))
    check(after["load_bytes"] == before["load_bytes"],
          "what is in host memory was read from the disk")
