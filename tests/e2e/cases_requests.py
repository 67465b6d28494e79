# SPDX-License-Identifier: Apache-2.0
"""Aborted requests, prompts that end with a partial chunk, preempted requests, controls of a
request, storage that is slower than the computation."""
import functools
import time

from case import e2e
from place import check, in_parallel


def abandon(server, prompt, after_s):
    """Send a request, wait after_s seconds, and close the connection without reading the
    answer."""
    connection = server.connect()
    try:
        server.send_completion(connection, prompt, 64)
        time.sleep(after_s)
    finally:
        connection.close()


@e2e
def aborts(place):
    """Clients disconnect during stores and loads."""
    with place.server() as server:
        hits = [place.prompt(server, 1000 * i, 1000) for i in range(6)]
        oracles = []
        for prompt in hits:
            server.complete(prompt)
            oracles.append(server.complete(prompt))
        place.stored()
    if place.transfer is None:  # slow reads: clients disconnect during the reads
        place.settings["remote_url"] = '"fault://delay_ms=300/fs://%s"' % place.store
    with place.server() as server:
        news = [place.prompt(server, 6100 + 1000 * i, 1000) for i in range(5)]
        for _ in range(3):
            pauses = [place.random.uniform(0, 0.6) for _ in hits + news]
            in_parallel([functools.partial(abandon, server, prompt, pause)
                         for prompt, pause in zip(hits[:-1] + news, pauses)])
            place.check_idle(server)
            # Force loads in the next round; chunks of this round come from host memory.
            server.reset_prefix_cache()
        answer, found = place.hit(server, hits[-1])
        check(found == len(hits[-1]) - 16, f"{found} tokens found")
        place.check_equal(answer, oracles[-1], "after the aborts")
        for prompt, oracle in zip(hits, oracles):
            place.check_close(server.complete(prompt), oracle,
                              "an aborted prompt, asked again")
        place.check_idle(server)
        if place.transfer is None:
            counted = place.counted(server, "load_late", 1)
            check(counted["load_late"] > 0, "no load was under way when its client went "
                  "away: %s" % counted)
    place.check_hashes()


@e2e
def partial_chunk(place):
    """With save_unfull_chunk, a prompt hits except for the last token."""
    place.settings["save_unfull_chunk"] = "true"
    prompts, cold, warm = [], [], []
    with place.server() as server:
        start = 0
        # 600 and 700 tokens end in the first and second block of a chunk; 50 tokens are less
        # than a chunk; 768 tokens are whole chunks; 641 tokens are whole blocks and a token,
        # so vLLM's own prefix hit has an equal length.
        for n in (600, 700, 50, 768, 641):
            prompts.append(place.piece(server, start, n))
            start += n
        for prompt in prompts:
            cold.append(server.complete(prompt))
        place.stored()
        for prompt in prompts:
            warm.append(server.complete(prompt))
    with place.server() as server:
        for prompt, reference, oracle in zip(prompts, cold, warm):
            answer, found = place.hit(server, prompt, but=1)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 1,
                  f"{what}: {found} tokens found after the restart")
            place.check_close(answer, reference, f"{what}, against a cold run")
            place.check_equal(answer, oracle, what)
        longer = prompts[0] + prompts[2]
        answer, found = place.hit(server, longer, but=len(longer))
        check(found == 0, f"{found} tokens found beyond what vLLM has")
        place.check_close(answer, server.complete(longer, cache_salt="x"),
                          "a longer prompt")
        place.check_idle(server)
    place.check_hashes()


@e2e
def controls(place):
    """kv_transfer_params of a request and the server's settings limit the stored and the
    loaded tokens, and the life of chunks."""
    def params(**more):
        return {"kv_transfer_params": more}

    with place.server() as server:
        prompts = [place.prompt(server, 1000 * i, 1000) for i in range(3)]
        some, none, whole = prompts  # 3 chunks and 16 tokens each
        server.complete(some, **params(max_offload_tokens=512))
        server.complete(none, **params(max_offload_tokens=0))
        answers = [server.complete(prompt, **params(max_offload_tokens=0))
                   for prompt in (some, none)] + [server.complete(whole)]
        files, _ = place.stored()
        check(files == 2 + 3, f"{files} chunks are stored")
    expected = ((some, 512, {}), (none, 0, {}), (whole, 512, {"max_load_tokens": 700}))
    with place.server() as server:
        for (prompt, tokens, more), reference in zip(expected, answers):
            answer, found = place.hit(server, prompt, len(prompt) - tokens, **params(**more))
            check(found == tokens, f"{found} tokens found in place of {tokens}")
            place.check_close(answer, reference, f"a hit of {tokens} tokens")
        bad = place.piece(server, 6000, 784)
        server.complete(bad, **params(max_load_tokens="all"))
        server.reset_prefix_cache()
        answer, found = place.hit(server, bad, len(bad))
        check(found == 0, f"a request with a bad control stored {found} tokens")
        brief, ttl = place.prompt(server, 9000, 1000), params(**{"lmcache.ttl": 90})
        files, _ = place.stored()
        server.complete(brief, **ttl)
        there, _ = place.stored()
        check(there == files + 3, f"{there - files} chunks are stored, not 3")
        server.reset_prefix_cache()
        _, found = place.hit(server, brief, len(brief) - 768, **ttl)
        check(found == 768, f"{found} tokens found before the end of the time to live")
        place.counted(server, "expired_chunks", 3)
        there, _ = place.stored()
        check(there == files, f"{there - files} files outlive the time to live")
        server.reset_prefix_cache()
        _, found = place.hit(server, brief, len(brief))
        check(found == 0, f"{found} tokens found after the end of the time to live")
        place.check_idle(server)
    place.settings.update(store_policy="second_use", max_offload_tokens="512")
    with place.server() as server:
        prompt = place.prompt(server, 7000, 1000)
        files, _ = place.stored()
        for new in (0, 2):
            server.complete(prompt)
            there, _ = place.stored()
            check(there == files + new, f"{there - files} chunks are stored, not {new}")
            server.reset_prefix_cache()
    place.check_hashes()


@e2e
def pins(place):
    """Chunks that a request pins outlive evictions and a restart; a client pins no more than
    max_pinned_size."""
    with place.server() as server:
        pinned, greedy = (place.prompt(server, start, 1000) for start in (0, 1000))
        answer = server.complete(pinned)
        files, size = place.stored()  # of 3 chunks
    place.settings.update(max_pinned_size=str(1.1 * size / 2 ** 30),
                          max_remote_size=str(3.1 * size / 2 ** 30))
    asks = {"kv_transfer_params": {"pin_seconds": 3600}}
    with place.server() as server:
        place.check_close(server.complete(pinned, **asks), answer, "a hit that is pinned")
        server.complete(greedy, **asks)
        for i in range(4):
            server.complete(place.prompt(server, 2000 + 1000 * i, 1000))
            place.stored()
    with place.server() as server:
        again, found = place.hit(server, pinned, len(pinned) - files * 256)
        check(found == files * 256, f"{found} pinned tokens found")
        place.check_close(again, answer, "a pinned hit after a restart")
        _, found = place.hit(server, greedy, len(greedy))
        check(found == 0, f"{found} tokens outlived beyond max_pinned_size")
        place.check_idle(server)
    place.check_hashes()


@e2e
def preemption(place):
    """Too few KV blocks for all requests: vLLM preempts and resumes requests."""
    args = ("--num-gpu-blocks-override", "47", "--max-model-len", "4096",
            "--max-num-batched-tokens", "4096")
    with place.server(*args) as server:
        prompts = [place.prompt(server, 1100 * i, 1100) for i in range(6)]
        for prompt in prompts:
            server.complete(prompt, 2)
        place.stored()
    with place.server(*args) as server:
        rounds = [in_parallel([functools.partial(server.complete, prompt, 200)
                               for prompt in prompts]) for _ in range(2)]
        preempted = server.metrics()["vllm:num_preemptions_total"]
        check(preempted > 0, "no request was preempted")
        if place.transfer is None:
            counted = place.counted(server, "memory_hits", 1)
            check(counted["load_bytes"] > 0 and counted["memory_hits"] > 0,
                  "not loaded from both the disk and host memory: %s" % counted)
        for i, answers in enumerate(rounds):
            for prompt, answer in zip(prompts, answers):
                check(len(answer.token_ids) == 200, "an answer is cut short")
                place.check_every_token(server, prompt, answer, f"round {i}")
        place.check_idle(server)
    place.check_hashes()


@e2e
def slow_storage(place):
    """With load_policy: faster, a server leaves out storage that is slower than the computation,
    and uses the storage again when the storage is fast."""
    slow, fast = ('"fault://delay_ms=6000/fs://%s"' % place.store, f'"fs://{place.store}"')
    place.settings.update(load_policy="faster", local_cpu="false", remote_url=fast)
    reason = 'reason="slower"'
    with place.server() as server:
        prompts = [place.prompt(server, 900 * i, 1500) for i in range(8)]
        cold = [server.complete(prompt) for prompt in prompts]
        place.stored()
    place.settings["remote_url"] = slow
    with place.server() as server:
        _, found = place.hit(server, prompts[0])
        check(found > 0, "storage that is not measured was not used")
        for prompt, reference in list(zip(prompts, cold))[1:4]:
            server.reset_prefix_cache()
            answer, found = place.hit(server, prompt, len(prompt))
            check(found == 0, f"{found} tokens were loaded from slow storage")
            check(answer.ttft_s < 5, f"the first token came after {answer.ttft_s:.1f} s")
            place.check_close(answer, reference, "a prompt that is not loaded")
        skipped = [line for line in server.get("/metrics").splitlines()
                   if line.startswith("vllm:kvtier_skipped_tokens_total{") and reason in line]
        check(skipped and float(skipped[0].split()[-1]) >= 3 * 1280, f"counted: {skipped}")
        place.check_idle(server)
    place.settings["remote_url"] = fast
    with place.server() as server:
        found = []
        for prompt, reference in list(zip(prompts, cold))[4:]:
            answer, n = place.hit(server, prompt, len(prompt))
            place.check_close(answer, reference, "a prompt after the storage became fast")
            found.append(n)
            time.sleep(2.5)  # a trial
        check(found[0] == 0, "the speed is forgotten over a restart")
        check(found[-1] > 0, f"fast storage is not used again: {found}")
    place.check_hashes()
