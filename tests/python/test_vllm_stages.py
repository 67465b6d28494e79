# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector in an engine with pipeline parallelism, over the real
library and a directory.  Needs vLLM, no model and no GPU."""

import copy
import dataclasses
import glob
import os
import random
import tempfile
import unittest
from unittest import mock

import fake
from vllm_case import ALONE, SEVERAL_GROUPS, groupings, prompt

if fake.HAVE_VLLM:
    import vllm_sim
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.outputs import ModelRunnerOutput

    from kvtier import connector, vllm_stages
    from kvtier.connector import KVTierConnector
    from kvtier.vllm_meta import DESCRIBE, NOTHING, KVConnectorWorkerMetadata
    from kvtier.vllm_worker import Worker
    from vllm_sim import BLOCK, CHUNK, Sim

LAYERS = (1, 2)  # of each stage: a group of the model has three layers
ASYNC = {"is_async": True, "second_runner": True}
REPORTS = fake.HAVE_VLLM and KVConnectorWorkerMetadata is not object


def with_parallelism(config, **sizes):
    config = copy.copy(config)
    config.parallel_config = copy.copy(config.parallel_config)
    for name, size in sizes.items():
        setattr(config.parallel_config, name, size)
    return config


class Rank:
    """A worker, its memory, and the steps that wait for the worker."""

    def __init__(self, top, cells, first_layer):
        self.top, self.cells, self.first_layer = top, cells, first_layer
        self.tables = {}
        self.half = vllm_sim.kvtiers(top)._worker


class Staged(Sim if fake.HAVE_VLLM else object):
    """Sim with two stages of `tp` ranks.  A stage executes a step after the stage before has
    executed the step, and while the stage before executes later steps.  vLLM's own aggregator
    joins the ranks' outputs.  No two ranks have equal KV.  is_async: vLLM's AsyncScheduler."""

    def __init__(self, folder, n_blocks=64, depth=2, tp=1, layers=LAYERS, is_async=False,
                 **kwargs):
        self.tp, self.layers = tp, layers
        self.extra = extra = dict({"chunk_size": CHUNK, "local_cpu": False, "model_fingerprint": "f",
                      "max_local_cpu_size": 0.0625,
                      "remote_url": "fs://localhost:0/" + folder}, **kwargs.pop("extra", {}))
        super().__init__(None, n_blocks=n_blocks, depth=2 if is_async else 1, extra=extra,
                         **kwargs)
        self.depth = depth  # of vLLM's queue of batches
        self.failed = []  # ranks of failed loads

    def _configure(self, depth, **config):
        n = len(self.layers)
        config = vllm_sim.vllm_config(depth, **config)
        config.model_config.model = "model"  # not a temporary directory
        return with_parallelism(config, world_size=n * self.tp, pipeline_parallel_size=n,
                                tensor_parallel_size=self.tp)

    def _stage_cache(self, stage):
        first = sum(self.layers[:stage])
        return dataclasses.replace(self.cache, kv_cache_groups=[
            dataclasses.replace(group, layer_names=[
                "g%d.l%d" % (g, first + i) for i in range(self.layers[stage])])
            for g, group in enumerate(self.cache.kv_cache_groups)])

    def _start_workers(self, device):
        self.ranks = []
        for rank in range(len(self.layers) * self.tp):
            stage = rank // self.tp
            top, _, _, cells = self._start_worker(
                with_parallelism(self.config, rank=rank), self._stage_cache(stage))
            self.ranks.append(Rank(top, cells, 1000 * (rank % self.tp) +
                                   sum(self.layers[:stage])))
        self.worker = vllm_sim.kvtiers(self.ranks[0].top)
        self.engine = self.ranks[0].half and self.ranks[0].half._engine
        self.aggregator = KVOutputAggregator(len(self.ranks))

    def step(self):
        if self.scheduler.has_requests() or not self.flying:
            self.flying.append((self._schedule(), []))
            self._advance()
        if len(self.flying) >= self.depth or not self.scheduler.has_requests():
            output, results = self.flying[0]
            while len(results) < len(self.ranks):
                self._run_rank(0)
            self.flying.pop(0)
            self._update(output, self._aggregate(results), results[-self.tp][1])
        if any(rank.half and rank.half._loads for rank in self.ranks):
            vllm_sim.time.sleep(0.001)

    def _advance(self):
        """Let some stages execute some of the steps that wait for the stages."""
        for i in range(len(self.flying)):
            while len(self.flying[i][1]) < len(self.ranks) and self.random.random() < 0.5:
                if i and len(self.flying[i - 1][1]) <= len(self.flying[i][1]):
                    break
                if not self._has_tokens(self.flying[i][0]):
                    break
                self._run_rank(i)

    def _has_tokens(self, output):
        """Return True if the last stage has sampled all tokens that the step computes."""
        cached = output.scheduled_cached_reqs
        start = dict(zip(cached.req_ids, cached.num_computed_tokens))
        start.update((new.req_id, new.num_computed_tokens)
                     for new in output.scheduled_new_reqs)
        return all(start[name] + n <= len(self.tokens[name])
                   for name, n in output.num_scheduled_tokens.items())

    def _run_rank(self, i):
        output, results = self.flying[i]
        rank = self.ranks[len(results)]
        self.rank, self.tables, self.cells, self.first_layer = (
            rank, rank.tables, rank.cells, rank.first_layer)
        results.append(self._run_worker(rank.top, output))

    def _sample(self, tokens, computed, stale):
        """Sample as the first rank of the last stage; its other ranks run later."""
        if self.rank is not self.ranks[-self.tp]:
            return []
        return super()._sample(tokens, computed, stale)

    def _aggregate(self, results):
        return self.aggregator.aggregate([
            ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=kv)
            for kv, _ in results], output_rank=len(results) - self.tp).kv_connector_output

    def check_rest(self):
        manager = self.scheduler.kv_cache_manager
        assert not self.scheduler.requests
        assert manager.block_pool.get_num_free_blocks() == self.cache.num_blocks - 1
        half = self.connector._scheduler
        if half:
            assert not half._requests and not half._saves._open and not half._loads
        for rank in self.ranks:
            assert not rank.half or not (rank.half._loads or rank.half._refused
                                         or rank.half._bad_blocks)

    def close(self):
        self.top.shutdown()
        for rank in self.ranks:
            rank.top.shutdown()


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library() and REPORTS,
                     "vLLM with reports of workers, or libkvtier.so, is not there")
class StagedCase(unittest.TestCase):
    """The base class of tests of Staged, over a directory."""

    kind = Staged

    def setUp(self):
        self.new_folder()

    def new_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def sim(self, **kwargs):
        sim = self.kind(self.folder, **kwargs)
        self.addCleanup(sim.close)
        return sim

    def files(self, rank, world=2):
        return sorted(glob.glob(os.path.join(
            self.folder, "kvtier", "*@%d@%d@*" % (world, rank))))

    def ask(self, names=("a",), n=61, **kwargs):
        """Run one request for each name in a new engine; return {name: hit}."""
        with mock.patch.object(Worker, "_fail", failing()) as fail:
            sim = self.sim(**kwargs)
            for name in names:
                sim.add(name, prompt(ord(name[0]), n))
            sim.run(at_most=200000)
        self.failed = fail.ranks
        sim.check_rest()
        for rank in sim.ranks:
            if rank.half:
                rank.half._engine.flush(60000)
        sim.close()
        return sim.hits

    def storm(self, windows, tp, depth, vanish=0.0, seed=0, layers=LAYERS, resets=0.0, **kwargs):
        rand = random.Random(seed)
        sim = self.sim(**dict(dict(
            n_blocks=36 * (1 + len(windows or ())), windows=windows, depth=depth, tp=tp,
            seed=seed, layers=layers), **kwargs))
        for i in range(30):
            sim.add("r%d" % i, prompt(i % 12, rand.randrange(5, 90), rand.choice((0, 5))),
                    max_tokens=rand.randrange(1, 24))
            for _ in range(rand.randrange(6)):
                files = glob.glob(os.path.join(self.folder, "kvtier", "*"))
                if files and rand.random() < vanish:
                    os.unlink(rand.choice(files))
                sim.step()
            if rand.random() < 0.25:
                sim.abort("r%d" % rand.randrange(i + 1))
            if resets and rand.random() < resets:
                rand.choice((sim.reset, sim.scheduler.reset_connector_cache))()
        sim.run(at_most=200000)
        sim.check_rest()
        sim.close()
        return len(sim.loaded)

    def storms(self, *args, **kwargs):
        """Check that one of two engines over the directory loads chunks."""
        self.assertGreater(self.storm(*args, **kwargs) + self.storm(*args, **kwargs), 0)


class Stages(StagedCase):
    def test_a_restarted_engine_loads_the_chunks_of_all_stages(self):
        for tp in (1, 2):
            with self.subTest(tp=tp):
                self.assertEqual(self.ask(tp=tp), {"a": 0})
                self.assertEqual([len(self.files(rank, 2 * tp)) for rank in range(2 * tp)],
                                 [7] * 2 * tp)
                self.assertEqual(self.ask(tp=tp), {"a": 56})

    def test_stages_with_other_layers_share_no_chunk(self):
        self.ask()
        self.assertEqual(self.ask(layers=(2, 1)), {"a": 0})
        self.assertEqual(self.ask(layers=(3,)), {"a": 0})
        self.assertEqual(self.ask(), {"a": 56})

    def test_a_failed_load_of_any_stage_ends_in_a_computed_prompt(self):
        for windows in groupings((), (10,), ALONE):
            for rank in range(2):
                with self.subTest(windows=windows, rank=rank):
                    self.new_folder()
                    self.ask("ab", windows=windows)
                    self.assertGreater(self.ask("ab", windows=windows)["a"], 0)
                    for path in self.files(rank):
                        with open(path, "r+b") as file:
                            file.write(b"damage")
                    hits = self.ask("ab", windows=windows)
                    self.assertEqual(set(self.failed), {rank})
                    self.assertEqual(hits, {"a": 0, "b": 0})

    def test_disorder(self):
        for windows in groupings((), (10,), (13, 30), ALONE):
            for tp, depth in ((1, 2), (1, 3), (2, 2)):
                with self.subTest(windows=windows, tp=tp, depth=depth):
                    self.storms(windows, tp, depth)

    def test_disorder_with_async_scheduling(self):
        """With pipeline parallelism, vLLM schedules asynchronously for its second runner only."""
        for i, windows in enumerate(groupings((), (10,), (13, 30), ALONE)):
            with self.subTest(windows=windows):
                self.storms(windows, 2 - i % 2, 3, **ASYNC)

    def test_disorder_while_files_vanish(self):
        for windows in groupings((), (10,)):
            for depth, more in ((2, {}), (3, ASYNC)):
                ranks = set()
                for seed in range(3):
                    with mock.patch.object(Worker, "_fail", failing()) as fail:
                        self.storm(windows, 1, depth, vanish=0.3, seed=seed, **more)
                    ranks |= set(fail.ranks)
                self.assertEqual(ranks, {0, 1})

    def test_disorder_with_resets(self):
        for windows in groupings((), (10,)):
            for depth, more in ((2, {}), (3, {}), (3, ASYNC)):
                with self.subTest(windows=windows, depth=depth, more=more):
                    hits = self.storm(windows, 1, depth, vanish=0.3, seed=1, resets=0.25, **more)
                    self.assertGreater(hits, 0)

    def test_pinned_bytes_are_those_of_all_stages(self):
        sim = self.sim(tp=2)
        sim.step()  # the workers report their layers
        [info] = sim.connector._scheduler._infos
        self.assertEqual(sim.connector._scheduler._pins._chunk_bytes,
                         [CHUNK // BLOCK * info.block_bytes * sum(LAYERS) * 2])

    # ------------------------------------------------------- reports of layers

    def test_a_worker_without_usable_memory_ends_the_wait(self):
        for rank in range(2):
            sim = self.sim()
            sim.ranks[rank].half._ready = False
            sim.add("a", prompt(1, 61))
            with self.assertLogs("vllm.kvtier") as said:
                sim.run()
            self.assertIn("its log says why", str(said.output))
            self.assertIsNone(sim.connector._scheduler)
            self.assertEqual(sim.hits, {"a": 0})
            sim.check_rest()

    @unittest.skipUnless(SEVERAL_GROUPS, "no hybrid attention with this vLLM")
    def test_a_stage_without_layers_of_a_group_ends_the_wait(self):
        with mock.patch.object(Staged, "_stage_cache", without_layers), \
                mock.patch.object(Staged, "_start_worker", start_any), \
                self.assertLogs("vllm.kvtier") as said:
            sim = self.sim(windows=(10,))
            sim.add("a", prompt(1, 61))
            sim.run()
        self.assertEqual(str(said.output).count("gives a stage no layer of KV cache group 1"), 1)
        self.assertIn("its log says why", str(said.output))
        self.assertIsNone(sim.connector._scheduler)
        sim.check_rest()

    def test_without_reports_of_all_stages_prompts_are_computed(self):
        with mock.patch.object(vllm_stages, "_PATIENCE_S", 0.05):
            sim = self.sim()
            report = sim.ranks[1].half.report
            sim.ranks[1].half.report = lambda describe: None
            for name in "ab":
                sim.add(name, prompt(1, 61))
            with self.assertLogs("vllm.kvtier") as said:
                sim.run(at_most=10**6)
            self.assertEqual(str(said.output).count("only 1 of 2 workers"), 1)
            # One request is computed; the other request hits in vLLM's own cache.  If the wait
            # ends between the lookups of the two, the second request is computed first.
            self.assertEqual(sorted(sim.hits.values()), [0, 60])
            self.assertFalse(self.files(0))
            sim.ranks[1].half.report = report
            sim.add("c", prompt(3, 61))
            sim.run()
            sim.check_rest()
            self.assertTrue(sim.connector._scheduler)

    def test_a_vllm_without_reports_of_workers_is_not_supported(self):
        config = with_parallelism(vllm_sim.vllm_config(), pipeline_parallel_size=2)
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
            with mock.patch.object(connector, "KVConnectorWorkerMetadata", object), \
                    self.assertLogs("vllm.kvtier") as said:
                one = KVTierConnector(config, role, vllm_sim.kv_cache_config(16, ()))
            self.assertIn("workers cannot report", str(said.output))
            self.assertEqual(one.get_num_new_matched_tokens(None, 0), (0, False))

    def test_a_reset_before_the_reports_counts(self):
        self.ask()
        sim = self.sim()
        self.assertTrue(sim.connector.reset_cache())
        sim.add("a", prompt(ord("a"), 61))
        sim.run()
        self.assertEqual(sim.hits, {"a": 0})

    def test_ranks_of_a_stage_with_different_layers_are_refused(self):
        sim = self.sim(tp=2)
        sim.ranks[3].half._infos[0].layers = ["x"]
        sim.add("a", prompt(1, 61))
        with self.assertLogs("vllm.kvtier") as said:
            sim.run()
        self.assertIn("ranks of pipeline stage 1 have different layers", str(said.output))
        self.assertEqual(sim.hits, {"a": 0})

    def test_a_library_that_cannot_open_does_not_end_vllm(self):
        sim = self.sim()
        sim.connector._stages._open = mock.Mock(side_effect=OSError(5, "no directory"))
        sim.add("a", prompt(1, 61))
        with self.assertLogs("vllm.kvtier") as said:
            sim.run()
        self.assertIn("no directory", str(said.output))
        self.assertEqual(sim.hits, {"a": 0})

    def test_the_question_survives_pickling_and_ends(self):
        import pickle

        self.assertIs(pickle.loads(pickle.dumps(DESCRIBE)), DESCRIBE)
        sim = self.sim()
        output = sim.scheduler.schedule()
        self.assertIs(output.kv_connector_metadata, DESCRIBE)
        self.ask()
        sim.run()
        sim.add("a", prompt(1, 61))
        sim.run()
        self.assertIs(sim.scheduler.schedule().kv_connector_metadata, NOTHING)


def failing():
    """Return a wrapper of Worker._fail that notes the ranks."""
    fail, ranks = Worker._fail, []

    def noted(worker, loading, *args):
        if not loading.doomed:  # by an abort or a reset
            ranks.append(worker._rank)
        return fail(worker, loading, *args)
    noted.ranks = ranks
    return noted


def without_layers(sim, stage):
    """Return the cache of a stage; the second stage has no layer of the second group."""
    first = sum(sim.layers[:stage])
    names = ["l%d" % (first + i) for i in range(sim.layers[stage])]
    return dataclasses.replace(sim.cache, kv_cache_groups=[
        dataclasses.replace(group, layer_names=[
            "g%d.%s" % (g, name) for name in names if not (g and stage)])
        for g, group in enumerate(sim.cache.kv_cache_groups)])


start_any = fake.HAVE_VLLM and Sim._start_worker


if __name__ == "__main__":
    unittest.main()
