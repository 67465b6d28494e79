# SPDX-License-Identifier: Apache-2.0
"""Two parts that expert parallelism needs and the CPU backend of vLLM 0.32 lacks: an exchange
of tokens between the engines (CpuCommunicator has no all_gatherv), and local numbers of experts
(the kernel ignores expert_map).  Without these parts a worker ends in its first step, with and
without kvtier.

vLLM imports this module in each worker: --worker-extension-cls expert_exchange.Nothing
"""
import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


class Nothing:
    """vLLM adds the methods of this class to the worker."""


def all_gatherv(self, tensors, dim=0, sizes=None):
    """Return each tensor with the rows of all ranks; `sizes` has each rank's number of rows."""
    assert dim == 0
    if not isinstance(tensors, list):
        return all_gatherv(self, [tensors], dim, sizes)[0]
    gathered = []
    for tensor in tensors:
        rows = [tensor.new_empty(n, *tensor.shape[1:])
                for n in sizes or [len(tensor)] * self.world_size]
        rows[self.rank_in_group] = tensor.contiguous()
        for rank, part in zip(self.ranks, rows):
            dist.broadcast(part, src=rank, group=self.device_group)
        gathered.append(torch.cat(rows))
    return gathered


def reduce_scatterv(self, tensor, dim=-1, sizes=None):
    """Return this rank's rows of the sum of all ranks' tensors."""
    assert dim == 0
    total = tensor.clone()
    dist.all_reduce(total, group=self.device_group)
    return total.split(sizes or len(tensor) // self.world_size)[self.rank_in_group]


def apply_local(self, *, topk_ids, topk_weights, expert_map, **rest):
    """Compute the experts of this rank.  Another rank's expert becomes expert 0 of weight 0."""
    if expert_map is not None:
        local = expert_map[topk_ids.long()]
        topk_weights = topk_weights.masked_fill(local < 0, 0)
        topk_ids = local.clamp(min=0).to(topk_ids.dtype)
    apply(self, topk_ids=topk_ids, topk_weights=topk_weights, expert_map=None, **rest)


apply, CPUUnquantizedExperts.apply = CPUUnquantizedExperts.apply, apply_local
CpuCommunicator.all_gatherv = all_gatherv
CpuCommunicator.reduce_scatterv = reduce_scatterv
