# SPDX-License-Identifier: Apache-2.0
"""Why kvtier loads only while a request waits: vLLM's scheduler when a synchronous load fails.
Needs vLLM, no model and no GPU.

A synchronous load belongs to the step that computes the rest of the prompt, so the KV may arrive
layer by layer during the step.  If a test fails, vLLM has changed: read "A load ends before the
step" in ARCHITECTURE.md again.
"""

import unittest

import fake
from vllm_case import Case, prompt

if fake.HAVE_VLLM:
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

STEP_OF_LOAD, NEXT_STEP = 111, 222  # the tokens that the model samples in these steps


class Synchronous(Case):
    def answers(self, depth):
        """Return {request: tokens for the client} after one failed load.

        Request "a" loads 40 of 41 tokens, and the fourth block fails.  Request "b" has the same
        40 tokens and arrives after the step of the load is scheduled."""
        sim = self.sim(depth=depth)
        self.addCleanup(sim.close)
        scheduler, connector = sim.scheduler, sim.connector
        connector.get_num_new_matched_tokens = lambda request, computed: (
            (40 - computed if request.request_id == "a" else 0), False)
        connector.update_state_after_alloc = lambda *_: None
        connector.get_external_cache_hit_sources = lambda *_: {}
        tokens = prompt(1, 41)
        sim.add("a", tokens)
        steps = [(scheduler.schedule(), STEP_OF_LOAD)]
        failed = scheduler.kv_cache_manager.get_block_ids("a")[0][3]
        sim.add("b", tokens[:40] + [7])
        if depth > 1:
            steps.append((scheduler.schedule(), NEXT_STEP))
        found = {"a": [], "b": []}
        for output, token in steps:
            bad = {failed} if token == STEP_OF_LOAD else set()
            for name, new in self.results(scheduler, output, token, bad):
                found[name] += new
        return found

    def results(self, scheduler, output, token, bad):
        """Return [(request, new tokens)] of a step in which every request samples `token`."""
        names = list(output.num_scheduled_tokens)
        done = scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[token] for _ in names],
            kv_connector_output=KVConnectorOutput(invalid_block_ids=bad)))
        return [(one.request_id, one.new_token_ids)
                for outputs in done.values() for one in outputs.outputs]

    def test_without_overlap_no_token_comes_from_a_block_that_failed(self):
        self.assertEqual(self.answers(depth=1), {"a": [], "b": []})

    def test_with_overlap_clients_get_tokens_from_a_block_that_failed(self):
        # The second step was scheduled before the scheduler learnt of the failure.  "b" found
        # the block in vLLM's prefix cache, which contains blocks before they are loaded.
        self.assertEqual(self.answers(depth=2), {"a": [NEXT_STEP], "b": [NEXT_STEP]})


if __name__ == "__main__":
    unittest.main()
