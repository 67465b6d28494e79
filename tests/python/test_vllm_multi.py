# SPDX-License-Identifier: Apache-2.0
"""MultiConnector with kvtier's connector and a second connector.
Needs vLLM, no model and no GPU."""

import sys
import unittest
from unittest import mock

import fake
from vllm_case import SEVERAL_GROUPS, Case, prompt

if fake.HAVE_VLLM:
    from kvtier import vllm_stats
    from kvtier.vllm_log import log
    import vllm_sim


def together(*order, **policy):
    """Return the settings of a MultiConnector with the connectors in this order."""
    modules = {"KVTierConnector": "kvtier.connector", "Other": "vllm_other"}
    return dict(kv_connector="MultiConnector", kv_connector_module_path=None, extra={
        "connectors": [{"kv_connector": name, "kv_role": "kv_both",
                        "kv_connector_module_path": modules[name]}
                       for name in order]}, **policy)


@unittest.skipUnless(fake.HAVE_VLLM and SEVERAL_GROUPS,
                     "MultiConnector of this vLLM is not supported")
class Together(Case):
    """Two connectors in an engine, as in setups with separate prefill and decode."""

    def test_short_and_long_prompts_that_either_connector_has(self):
        from vllm_other import Other

        first = self.sim()
        for name, seed in (("a", 1), ("b", 2)):
            first.add(name, prompt(seed, 61))
        first.run()
        short, long = prompt(4, 7), prompt(5, 40)
        for order, both in ((("KVTierConnector", "Other"), 56),
                            (("Other", "KVTierConnector"), 60)):
            with self.subTest(order=order), mock.patch.object(
                    Other, "known", [prompt(2, 61), short, long]):
                sim = self.sim(**together(*order))
                for name, tokens in (("short", short), ("a", prompt(1, 61)),
                                     ("b", prompt(2, 61)), ("long", long),
                                     ("new", prompt(both, 20)), ("shorter", prompt(7, 3))):
                    sim.add(name, tokens)
                sim.run()
                sim.check_rest()
                self.assertEqual(sim.hits, {"short": 4, "a": 56, "b": both, "long": 36,
                                            "new": 0, "shorter": 0})

    def test_a_failed_load_with_another_connector(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        sim = self.sim(**together("KVTierConnector", "Other"))
        sim._fails = lambda io, chunk: chunk == 3
        sim.add("a", prompt(1, 61))
        sim.run()
        sim.check_rest()
        self.assertEqual(sim.hits["a"], 24)

    def test_a_load_after_a_failed_load_of_another_connector_waits_for_no_block(self):
        """vLLM reserves blocks for the failed load, and the second load must leave them free."""
        from vllm_other import Other

        first = self.sim()
        first.add("a", prompt(1, 92))
        first.run()

        def fail(self, finished_req_ids):
            done, self.done = self.done, set()
            if done:
                Other.known = []
            return vllm_sim.KVConnectorTransferResults(finished_recving=done,
                                                       failed_recving=set(done))
        for n_blocks, hit in ((64, 88), (35, 0)):
            with mock.patch.multiple(Other, known=[prompt(1, 92)], get_transfer_results=fail):
                sim = self.sim(n_blocks=n_blocks, **together("Other", "KVTierConnector"))
                sim.add("a", prompt(1, 92))
                sim.run(200)
            sim.check_rest()
            self.assertEqual(sim.hits["a"], hit)

    def test_beside_another_connector_no_request_waits_for_a_prefill_engine(self):
        from vllm_other import Other

        theirs = {"do_remote_prefill": True, "do_remote_decode": False, "from": "Other"}
        # vLLM refuses two answers with equal members.
        with mock.patch.object(Other, "request_finished_all_groups",
                               lambda self, request, blocks: (False, dict(theirs))):
            sim = self.sim(**together("KVTierConnector", "Other"))
            sim.add("p", prompt(1, 61), max_tokens=1,
                    kv_transfer_params={"do_remote_decode": True})
            sim.run()
        sim = self.sim(**together("KVTierConnector", "Other"))
        for name, tokens, hit in (("there", prompt(1, 61), 56), ("missing", prompt(2, 61), 0)):
            sim.add(name, tokens, kv_transfer_params={**theirs, "remote_num_tokens": 61})
            sim.run(40)
            self.assertEqual(sim.hits[name], hit)
        sim.check_rest()

    def test_the_policy_is_the_parents_and_stays(self):
        fail = {"kv_load_failure_policy": "fail"}
        for argv in (["serve", "--kv-transfer-config", "{}"], ["serve"]):
            with mock.patch.object(sys, "argv", argv):
                with self.assertLogs("vllm.kvtier") as said:
                    sim = self.sim(**together("KVTierConnector", "Other", **fail))
            self.assertFalse(sim.scheduler.recompute_kv_load_failures)
            self.assertIn("ends with an error", str(said.output))
            self.assertIn('beside "kv_connector": "MultiConnector"', str(said.output))
            with self.assertLogs("vllm.kvtier") as said:
                log.info("start")
                sim = self.sim(**together("KVTierConnector", "Other"))
            self.assertNotIn("kv_load_failure_policy", str(said.output))
            self.assertTrue(sim.scheduler.recompute_kv_load_failures)

    def test_vllms_metrics_find_the_class_by_name(self):
        from prometheus_client import Counter, Gauge
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
            KVConnectorLogging,
            KVConnectorProm,
        )

        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        with mock.patch.object(vllm_stats, "_PERIOD_S", 0):
            sim = self.sim(**together("KVTierConnector", "Other"))
            sim.add("a", prompt(1, 61))
            sim.run()
        seen = []

        def metric(base):
            class Seen(base):
                def __init__(self, name, *args, **kwargs):
                    seen.append(self)
                    super().__init__(name, *args, registry=None, **kwargs)
            return Seen
        with mock.patch.multiple(KVConnectorProm, _counter_cls=metric(Counter),
                                 _gauge_cls=metric(Gauge)):
            metrics = KVConnectorProm(sim.config, ["engine"], {0: ["0"]})
        lines = KVConnectorLogging(sim.config.kv_transfer_config)
        for data in sim.stats:
            metrics.observe(data)
            lines.observe(data)
        said = []
        lines.log(lambda *args: said.append(args))
        self.assertIn("'hit_tokens': 56", str(said))
        values = {sample.name: sample.value for one in seen
                  for family in one.collect() for sample in family.samples}
        self.assertEqual(values["vllm:kvtier_hit_tokens_total"], 56)
        self.assertEqual(values["vllm:kvtier_loads_pending"], 0)


if __name__ == "__main__":
    unittest.main()
