# SPDX-License-Identifier: Apache-2.0
"""Common steps of the end-to-end tests.

An end-to-end test is a function with a Place as argument.  Each test runs a real vLLM
server on the CPU and restarts the server on the same store.

The oracle of a prompt is vLLM's answer from vLLM's own prefix cache: the server answers
two identical requests, and the second answer is the oracle.  An answer after a kvtier hit
of equal length must equal the oracle bit for bit.  If the hits may differ in length, the
reference is the answer to a request with a unique cache_salt, which misses in each cache.
"""
import workplace
from place import check

TESTS = {}
CHUNK = workplace.CHUNK_TOKENS


def e2e(function):
    """Register a function as a test; the function's name is the test's name."""
    TESTS[function.__name__] = function
    return function


def request_twice(place, server, lengths, **more):
    """Return prompts of the given lengths (tokens) and their oracles.

    `more` are further arguments of Server.complete().
    """
    prompts, oracles, start = [], [], 0
    for n in lengths:
        prompts.append(place.prompt(server, start, n))
        start += n
    for prompt in prompts:
        server.complete(prompt, **more)
        oracles.append(server.complete(prompt, **more))
    return prompts, oracles


def all_found(place, server, prompts, oracles, where, chunk=CHUNK, **more):
    """Check that each prompt hits up to the last chunk before the last token, and that each
    answer equals the oracle."""
    for prompt, oracle in zip(prompts, oracles):
        expected = (len(prompt) - 1) // chunk * chunk
        answer, found = place.hit(server, prompt, len(prompt) - expected, **more)
        what = f"prompt of {len(prompt)} tokens, {where}"
        check(found == expected, f"{what}: {found} tokens found, not {expected}")
        place.check_equal(answer, oracle, what)


def check_loaded(place, server, chunks):
    """Check that the server has loaded so many chunks."""
    loaded = place.counted(server, "load_chunks", chunks)["load_chunks"]
    check(loaded == chunks, f"{loaded} chunks were loaded, not {chunks}")


def found_in_memory(place, server, prompts, oracles, ranks=1):
    """Reset vLLM's prefix cache, then check that all chunks come from host memory and that
    the answers equal the oracles."""
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
