# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector and a model with layers of Mamba or linear attention,
whose blocks are states, over the real library and a directory.  Needs vLLM, no model and no
GPU."""

import dataclasses
import unittest
from unittest import mock

import fake
from vllm_case import prompt

if fake.HAVE_VLLM:
    import torch
    import vllm_sim
    from test_vllm_events import hashes_of, settle, subscribe
    from test_vllm_stages import Staged, StagedCase, failing
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec
    from vllm_sim import BLOCK

    from kvtier import vllm_model
    from kvtier.vllm_worker import Worker
SUPPORTED = fake.HAVE_VLLM and vllm_model.reports_states()

WORDS = 3  # of a state; a block has room for a word more
ABOUT = dict(block_size=BLOCK, shapes=((4,), (2, 2)),
             dtypes=(torch.bfloat16, torch.float32), page_size_padded=8 * BLOCK,
             mamba_cache_mode="align") if SUPPORTED else {}


def state_behind(kv, end):
    """Return the state after `end` tokens, as numbers of 8 bytes."""
    return [(kv[end - 1] * (2 * word + 1)) & ((1 << 62) - 1) for word in range(WORDS)]


class Stateful(Staged if fake.HAVE_VLLM else object):
    """Staged with `states` groups of layers that have states, after the groups of attention.
    windows None: no attention.  about: other fields of the MambaSpec.  retention: vLLM's
    prefix_cache_retention_interval, by default None: vLLM keeps the state of each step's end."""

    def __init__(self, folder, states=1, about=None, windows=(), layers=(2,), retention=None,
                 **kwargs):
        self.states, self.about = states, dict(ABOUT, **about or {})
        self.retention = retention
        self.attention = windows is not None
        super().__init__(folder, layers=layers, windows=windows or (), **kwargs)

    def _configure(self, depth, **config):
        config = super()._configure(depth, **config)
        config.cache_config.mamba_cache_mode = self.about["mamba_cache_mode"]
        return config

    def _cache(self, n_blocks, windows):
        cache = vllm_sim.kv_cache_config(n_blocks, windows)
        groups = list(cache.kv_cache_groups) if self.attention else []
        self.first_state = len(groups)
        for g in range(len(groups), len(groups) + self.states):
            groups.append(KVCacheGroupSpec(
                ["g%d.l%d" % (g, layer) for layer in range(vllm_sim.LAYERS)],
                MambaSpec(**self.about)))
        return dataclasses.replace(cache, kv_cache_groups=groups,
                                   prefix_cache_retention_interval=self.retention)

    def _start_worker(self, config, cache, device=None):
        n = max(len(group.layer_names) for group in cache.kv_cache_groups)
        top = type(self.top)(config, vllm_sim.KVConnectorRole.WORKER, cache)
        memory = [torch.zeros(cache.num_blocks, 1, BLOCK, 2) for _ in range(n)]
        views = {}
        for number, group in enumerate(cache.kv_cache_groups):
            for one, name in zip(memory, group.layer_names):
                if number >= self.first_state:  # as vLLM's create_kv_cache_views()
                    one = one.view(torch.int8).view(-1).as_strided(
                        (cache.num_blocks, 1, 1, 8 * WORDS), (8 * BLOCK,) * 3 + (1,))
                views[name] = one
        top.register_kv_caches(views)
        return top, memory, [], [
            m.view(torch.int64).view(cache.num_blocks, BLOCK).numpy() for m in memory]

    def _forward(self, output):
        assert not output.kv_cache_block_copies
        for cells in self.cells:
            cells[output.new_block_ids_to_zero or []] = 0
        return super()._forward(output)

    def _compute_layer(self, name, group, table, cells, kv, start):
        if group < self.first_state:
            super()._compute_layer(name, group, table, cells, kv, start)
            return
        # vLLM's worker copies the state from the block of the token before `start`, and
        # changes only the block of the last token.
        if start:
            got = cells[table[(start - 1) // BLOCK], :WORDS].tolist()
            assert got == state_behind(kv, start), (
                "%s begins token %d with a wrong state: group %d" % (name, start, group))
        block = table[(len(kv) - 1) // BLOCK]
        assert block > 0
        cells[block, :WORDS] = state_behind(kv, len(kv))
        cells[block, WORDS:] = self.random.getrandbits(60)


@unittest.skipUnless(SUPPORTED, "this vLLM reports no blocks of states")
class States(StagedCase if fake.HAVE_VLLM else unittest.TestCase):
    kind = Stateful

    def n_files(self, world=1):
        """Return the sorted numbers of chunks of each group."""
        found = {}
        for rank in range(world):
            for path in self.files(rank, world):
                kind = path.rsplit("@", 1)[1]
                found[kind] = found.get(kind, 0) + 1
        return sorted(found.values())

    def test_a_restarted_engine_loads_the_last_state_of_the_hit(self):
        for windows in ((), (10,), None):
            for depth, is_async in ((1, False), (2, True)):
                with self.subTest(windows=windows, depth=depth):
                    self.new_folder()
                    about = dict(windows=windows, depth=depth, is_async=is_async)
                    self.assertEqual(self.ask(**about), {"a": 0})
                    # A step has at most 32 tokens: states after 32 and after 60 tokens.
                    self.assertIn(2, self.n_files())
                    self.assertEqual(self.ask(**about), {"a": 60})

    def test_a_loaded_state_is_not_stored_again(self):
        """Otherwise a load would prolong the life of the state."""
        self.ask()
        sim = self.sim()
        saves = sim.connector._scheduler._saves
        with mock.patch.object(saves, "_save_blocks", wraps=saves._save_blocks) as save:
            sim.add("a", prompt(ord("a"), 70))
            sim.run()
        self.assertEqual(sim.hits, {"a": 60})
        self.assertEqual([call.args[4:] for call in save.call_args_list
                          if call.args[2] == sim.first_state], [(16, 17)])

    def test_a_hit_ends_at_a_block_before_the_last_token(self):
        for n, hit in ((61, 60), (60, 56), (57, 56), (5, 4), (4, 0)):
            with self.subTest(n=n):
                self.new_folder()
                self.ask(n=n)
                self.assertEqual(self.ask(n=n), {"a": hit})

    def test_a_hit_ends_at_a_stored_state(self):
        self.ask()  # has states after 32 and after 60 tokens
        for shared, hit in ((61, 60), (60, 60), (59, 32), (33, 32), (32, 32), (31, 0)):
            with self.subTest(shared=shared):
                # Without saves, the hits depend on the first request only.
                sim = self.sim(kv_role="kv_consumer")
                sim.add("b", prompt(ord("a"), 61)[:shared] + [1] * 40)
                sim.run()
                self.assertEqual(sim.hits, {"b": hit})
                sim.check_rest()
                sim.close()

    def test_vllms_retention_interval_decides_which_states_exist(self):
        for retention, files, hits in ((None, 2, (60, 32)), (0, 1, (60, 0)),
                                       (BLOCK, 2, (60, 32))):
            with self.subTest(retention=retention):
                self.new_folder()
                self.ask(retention=retention)
                self.assertEqual(self.n_files(), [files, 15])
                for shared, hit in zip((61, 40), hits):
                    sim = self.sim(kv_role="kv_consumer", retention=retention)
                    sim.add("b", prompt(ord("a"), 61)[:shared] + [1] * 40)
                    sim.run()
                    self.assertEqual(sim.hits, {"b": hit})
                    sim.close()

    def test_ranks_load_their_own_states(self):
        for tp in (1, 2):
            for layers in ((2,), (1, 3)):
                with self.subTest(tp=tp, layers=layers):
                    self.new_folder()
                    self.assertEqual(self.ask(tp=tp, layers=layers, states=2), {"a": 0})
                    self.assertEqual(self.ask(tp=tp, layers=layers, states=2), {"a": 60})

    def test_each_of_two_hosts_loads_its_own_states(self):
        from vllm_hosts_sim import Hosts

        self.kind = type("OnHosts", (Hosts, Stateful), {})
        self.assertEqual(self.ask(tp=2), {"a": 0})
        self.assertEqual(self.ask(tp=2), {"a": 60})

    def test_generated_tokens_continue_from_their_state(self):
        settings = {"save_decode_cache": True}
        for n, is_async in ((30, False), (30, True), (3, False), (3, True)):
            with self.subTest(n=n, is_async=is_async):
                self.new_folder()
                sim = self.sim(extra=settings, is_async=is_async)
                sim.add("a", prompt(1, n), max_tokens=20)
                sim.run()
                sim.check_rest()
                answer = sim.tokens["a"]
                sim.ranks[0].half._engine.flush(60000)
                sim.close()
                self.assertEqual(len(answer), n + 20)
                sim = self.sim(extra=settings)
                sim.add("b", answer)
                sim.run()
                self.assertEqual(sim.hits, {"b": (n + 19) // BLOCK * BLOCK})

    def test_the_second_use_stores_the_state_of_vllms_own_hit(self):
        sim = self.sim(extra={"store_policy": "second_use"})
        for name in "ab":
            sim.add(name, prompt(ord("a"), 61))
            sim.run()
        self.assertEqual(sim.hits, {"a": 0, "b": 60})  # by vLLM's own cache
        sim.ranks[0].half._engine.flush(60000)
        sim.close()
        self.assertEqual(self.ask(), {"a": 60})

    def test_a_prefill_engine_names_the_last_stored_state(self):
        for n, found, limit in ((61, 60, {}), (60, 60, {}), (31, 28, {}),
                                (61, 32, {"max_offload_tokens": 40})):
            with self.subTest(n=n, limit=limit):
                self.new_folder()
                sim = self.sim()
                params = []
                finished = sim.connector._scheduler.finished
                sim.connector._scheduler.finished = lambda request: params.append(
                    finished(request)) or params[-1]
                sim.add("a", prompt(n, n),
                        kv_transfer_params={"do_remote_decode": True, **limit})
                sim.run()
                self.assertEqual([one["remote_num_tokens"] for one in params], [found])

    def test_events_name_the_blocks_of_states(self):
        sim = self.sim(events=True, extra={"kv_events_storage": "all"})
        subscriber = subscribe(sim)
        sim.add("a", prompt(1, 61))
        settle(sim, subscriber)
        hashes = hashes_of(prompt(1, 61))
        self.assertEqual(subscriber.have("STORAGE", 0), set(hashes))
        self.assertEqual(subscriber.have("STORAGE", 1), {hashes[7], hashes[14]})

    def test_partial_chunks_are_not_stored(self):
        settings = {"save_unfull_chunk": True}
        for n, hit, files in ((61, 60, [2, 15]), (60, 56, [3, 15])):
            with self.subTest(n=n):
                self.new_folder()
                self.ask(n=n, extra=settings)
                self.assertEqual(self.n_files(), files)
                self.assertEqual(self.ask(n=n, extra=settings), {"a": hit})

    def test_states_beyond_the_limit_of_a_request_are_not_stored(self):
        sim = self.sim()
        sim.add("a", prompt(1, 61), kv_transfer_params={"max_offload_tokens": 40})
        sim.run()
        sim.ranks[0].half._engine.flush(60000)
        self.assertEqual(self.n_files(), [1, 10])

    def test_a_damaged_state_ends_in_a_computed_prompt(self):
        for windows in ((), (10,), None):
            with self.subTest(windows=windows):
                self.new_folder()
                self.ask(windows=windows)
                files = self.files(0, 1)
                of_states = [path for path in files if path.rsplit("@", 1)[1] == max(
                    {name.rsplit("@", 1)[1] for name in files},
                    key=lambda kind: -sum(name.endswith(kind) for name in files))]
                for path in of_states:
                    with open(path, "r+b") as file:
                        file.write(b"damage")
                self.assertEqual(self.ask(windows=windows), {"a": 0})
                self.assertEqual(self.failed, [0])

    def test_other_states_share_no_chunk(self):
        self.ask()
        for other in (dict(shapes=((2, 2), (4,))), dict(shapes=((2, 2), (4,)), dtypes=(
                torch.float16, torch.float32)), dict(dtypes=(torch.float16, torch.float32))):
            with self.subTest(other=other):
                for hit in (0, 60):
                    self.assertEqual(self.ask(about=other), {"a": hit})
        with mock.patch("vllm.__version__", "0.99"):
            for hit in (0, 60):
                self.assertEqual(self.ask(), {"a": hit})
        self.assertEqual(self.ask(), {"a": 60})

    def test_a_vllm_that_ends_steps_within_blocks_is_refused(self):
        sim = self.sim()
        sim.scheduler.cache_config.block_size = BLOCK // 2  # as vLLM 0.32 does on a CPU
        with self.assertLogs("vllm.kvtier") as said:
            for name in "ab":
                sim.add(name, prompt(ord("a"), 61))
                sim.run()
        self.assertEqual(str(said.output).count("start vLLM with --block-size 4"), 1)
        sim.ranks[0].half._engine.flush(60000)
        self.assertFalse(self.files(0, 1))

    def test_disorder(self):
        for windows in ((), (10,), None):
            for layers, tp, depth, is_async in (
                    ((2,), 1, 1, False), ((2,), 1, 2, True), ((2,), 2, 2, False),
                    ((1, 2), 1, 3, False)):
                with self.subTest(windows=windows, layers=layers, tp=tp, is_async=is_async):
                    self.new_folder()
                    about = dict(layers=layers, is_async=is_async)
                    self.storms(windows, tp, depth, **about)

    def test_disorder_with_generated_tokens_and_resets(self):
        for seed in range(2):
            for is_async in (False, True):
                about = dict(layers=(2,), is_async=is_async, seed=seed, states=2,
                             extra={"save_decode_cache": True})
                for resets in (0.0, 0.3):
                    with self.subTest(seed=seed, is_async=is_async, resets=resets):
                        self.storms((), 1, 2, resets=resets, **about)

    def test_disorder_with_the_fewest_states(self):
        for windows in ((), (10,), None):
            for is_async in (False, True):
                with self.subTest(windows=windows, is_async=is_async):
                    self.new_folder()
                    about = dict(layers=(2,), is_async=is_async, retention=0,
                                 extra={"save_decode_cache": True})
                    self.storms(windows, 1, 2, **about)

    def test_disorder_while_files_vanish(self):
        failed = 0
        for seed in range(2):
            for windows in ((), None):
                with mock.patch.object(Worker, "_fail", failing()) as fail:
                    self.storm(windows, 1, 2, vanish=0.3, seed=seed, layers=(2,))
                failed += len(fail.ranks)
        self.assertGreater(failed, 0)

    def test_vllms_second_model_runner(self):
        self.storms((), 1, 2, layers=(2,), second_runner=True)


if __name__ == "__main__":
    unittest.main()
