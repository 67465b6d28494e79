# SPDX-License-Identifier: Apache-2.0
"""Further features of vLLM together with kvtier: hits after a restart, bit for bit."""
import functools
import json
import os

import workplace
from case import CHUNK, all_found, check_loaded, request_twice, e2e
from cases_requests import abandon
from place import TOKENS_FOUND, Skipped, check, in_parallel
from server import same_answer

ENGINES = ("--data-parallel-size", "2")
ENGINES_ENV = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
EXPERTS_ENV = {**ENGINES_ENV, "PYTHONPATH": os.pathsep.join((
    os.path.join(workplace.REPOSITORY, "python"), os.path.dirname(os.path.abspath(__file__))))}
DRAFTS = ("--speculative-config", json.dumps({
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
    "prompt_lookup_max": 3}))


def needs_kvtier(place):
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")


def example(place):
    """ExampleConnector with a separate directory."""
    directory = os.path.join(place.directory, "example")
    os.makedirs(directory, exist_ok=True)
    return {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": directory}}


@e2e
def multi_connector(place):
    """MultiConnector of kvtier and ExampleConnector, in both orders, with prompts
    shorter and longer than a chunk."""
    needs_kvtier(place)
    short, lengths = [], (300, 1100)
    place.beside = {"after": [example(place)]}
    with place.server() as server:
        prompts, oracles = request_twice(place, server, lengths)
        start = sum(lengths)
        for n in (20, 144):  # less than a vLLM block; a block of the other connector
            prompt = place.piece(server, start, n)
            start += n
            server.complete(prompt)
            short.append((prompt, server.complete(prompt)))
        place.stored()
        said = place.read_log()
        check("leaves" not in said and "set to \"recompute\"" not in said,
              "kvtier says that it changed the policy of MultiConnector")
    for order in ("after", "before"):
        place.beside = {order: [example(place)]}
        with place.server() as server:
            all_found(place, server, prompts, oracles, f"the other one {order} kvtier")
            for prompt, oracle in short:
                answer, found = place.hit(server, prompt)
                what = f"prompt of {len(prompt)} tokens, the other one {order} kvtier"
                check(found == len(prompt) // 128 * 128, f"{what}: {found} tokens found")
                place.check_equal(answer, oracle, what)
            place.check_idle(server)
            counted = place.counted(server, "hit_tokens", 1)
            check(counted["hit_tokens"] > 0, "kvtier's metrics count no hit")
            loads = sum(len(prompt) // CHUNK for prompt in prompts)
            check(counted["load_chunks"] == (loads if order == "after" else 0),
                  "kvtier loaded %d chunks" % counted["load_chunks"])
    place.check_hashes()


@e2e
def speculative_decoding(place):
    """Drafts from n-grams, some rejected: prompts and generated tokens hit."""
    needs_kvtier(place)
    place.settings["save_decode_cache"] = "true"
    with place.server(*DRAFTS) as server:
        prompts, oracles = request_twice(place, server, (300, 1100))
        start = sum(map(len, prompts))
        piece = place.prompt(server, start, 600)
        answer = server.complete(piece, 320)
        whole = workplace.whole_chunks(piece + answer.token_ids)
        check(len(whole) == len(piece) + CHUNK, "the answer ends in no new chunk")
        oracles.append(server.complete(whole))
        prompts.append(whole)
        metrics = server.metrics()
        drafts, accepted = (
            metrics[f"vllm:spec_decode_num_{what}_tokens_total"]
            for what in ("draft", "accepted"))
        check(0 < accepted < drafts, f"{accepted} of {drafts} drafts are accepted")
        place.stored()
    with place.server(*DRAFTS) as server:
        all_found(place, server, prompts, oracles, "with drafts")
        place.check_idle(server)
    place.check_hashes()


@e2e
def draft_with_other_heads(place):
    """A draft model with 2 KV heads for a target with 4: both models' KV hits."""
    needs_kvtier(place)
    args = ("--speculative-config", json.dumps({
        "method": "draft_model", "model": place.made("draft"), "num_speculative_tokens": 3}))
    with place.server(*args) as server:
        prompts, oracles = request_twice(place, server, (300, 1100))
        place.stored()
    chunks = sum(len(prompt) // CHUNK for prompt in prompts)
    with place.server(*args) as server:
        all_found(place, server, prompts, oracles, "with a draft model")
        place.check_idle(server)
        check_loaded(place, server, 2 * chunks)
        drafts = server.metrics()["vllm:spec_decode_num_draft_tokens_total"]
        check(drafts > 0, "the draft model made no draft")
    place.check_hashes()


@e2e
def lora_adapters(place):
    """Equal prompts for the base model and two adapters: each hits the right KV."""
    needs_kvtier(place)
    adapters = place.made("adapters")
    args = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
            "--lora-modules", *(f"{name}={os.path.join(adapters, name)}"
                                for name in ("one", "two")))
    models = ("model", "one", "two")
    oracles = {}
    with place.server(*args) as server:
        for model in models:
            prompts, oracles[model] = request_twice(place, server, (300, 1100),
                                                model=model)
        for i in range(len(prompts)):
            answers = [oracles[model][i] for model in models]
            check(not any(same_answer(answers[a], answers[b])
                          for a, b in ((0, 1), (0, 2), (1, 2))),
                  "two models give one answer: the adapters do nothing")
        place.stored()
    with place.server(*args) as server:
        for model in ("two", "model", "one"):
            all_found(place, server, prompts, oracles[model], f"model {model}",
                      model=model)
        place.check_idle(server)
        check_loaded(place, server, 3 * sum(len(prompt) // CHUNK for prompt in prompts))
    place.check_hashes()


@e2e
def data_parallel(place):
    """Two engines in a server: each engine hits the other engine's chunks."""
    shared_by_engines(place)


@e2e
def expert_parallel(place):
    """Experts split between two engines, which compute in lockstep: each engine hits the other
    engine's chunks, and each engine loads while the other engine computes."""
    place.model = "experts"
    shared_by_engines(
        place, "--enable-expert-parallel", "--worker-extension-cls", "expert_exchange.Nothing",
        env=EXPERTS_ENV, more=load_while_the_other_computes, local_cpu="false",
        remote_url='"fault://delay_ms=300/fs://%s"' % place.store)


def shared_by_engines(place, *args, env=ENGINES_ENV, more=None, **settings):
    """settings: of the second server; more: a function with further checks of this server."""
    needs_kvtier(place)
    args += ENGINES
    asked = []
    with place.server(*args, env=env) as server:
        for engine, lengths in enumerate(((300, 1100), (600, 900))):
            asked.append(request_twice(place, server, lengths, engine=engine))
        place.stored()
    place.settings.update(settings)
    with place.server(*args, env=env) as server:
        for engine, (prompts, oracles) in enumerate(asked):
            all_found(place, server, prompts, oracles, f"in engine {1 - engine}",
                      engine=1 - engine)
        check_loaded(place, server, sum(len(prompt) // CHUNK
                                        for prompts, _ in asked for prompt in prompts))
        if more:
            more(place, server, asked)
        place.check_idle(server)
    place.check_hashes()


def load_while_the_other_computes(place, server, asked):
    """One engine loads and loses a client while the other engine computes; then both load."""
    for computing in (0, 1, None):
        server.reset_prefix_cache()
        before = server.metrics()[TOKENS_FOUND]
        jobs = [(functools.partial(abandon, server, asked[0][0][1], 0.2), None)]
        for engine, requests in enumerate(asked):
            if engine == computing:
                requests = [([5, 6, 7], None)]
            else:
                requests = zip(*requests)
            jobs += [(functools.partial(server.complete, prompt, 32 if oracle else 200,
                                        engine=engine), oracle) for prompt, oracle in requests]
        answers = in_parallel([job for job, _ in jobs])
        for answer, (_, oracle) in zip(answers, jobs):
            if oracle:
                place.check_close(answer, oracle, f"while engine {computing} computes")
        place.check_idle(server)
        found = server.metrics()[TOKENS_FOUND] - before
        check(found >= 4 * CHUNK, f"{found} tokens were loaded while engine {computing} computes")
