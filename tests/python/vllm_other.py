# SPDX-License-Identifier: Apache-2.0
"""A second connector for MultiConnector: holds the KV of some prompts, like another engine,
and loads the KV asynchronously."""

import dataclasses

import vllm_sim
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


@dataclasses.dataclass
class Loads(KVConnectorMetadata):
    loads: list  # (request id, tokens, block ids)


class Other(KVConnectorBase_V1, SupportsHMA):
    known = ()  # prompts

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.planned, self.asked, self.done = [], {}, set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        found = 0
        if request.prompt_token_ids in self.known:
            found = (len(request.prompt_token_ids) - 1) // vllm_sim.BLOCK * vllm_sim.BLOCK
        self.asked[request.request_id] = found
        found -= num_computed_tokens
        return max(0, found), found > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            n = self.asked[request.request_id]
            ids = blocks.get_block_ids()[0][:n // vllm_sim.BLOCK]
            self.planned.append((request.request_id, request.prompt_token_ids[:n], ids))

    def build_connector_meta(self, scheduler_output):
        planned, self.planned = self.planned, []
        return Loads(planned)

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    def register_kv_caches(self, kv_caches):
        self.cells = [layer.view(vllm_sim.torch.int64).view(len(layer), vllm_sim.BLOCK)
                      for layer in kv_caches.values()]

    def start_load_kv(self, forward_context, **kwargs):
        for name, tokens, ids in self._connector_metadata.loads:
            for layer, cells in enumerate(self.cells):
                kv = vllm_sim.kv_of(tokens, 0, layer)
                for at, value in enumerate(kv):
                    cells[ids[at // vllm_sim.BLOCK], at % vllm_sim.BLOCK] = value
            self.done.add(name)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_finished(self, finished_req_ids):
        done, self.done = self.done, set()
        return None, done
