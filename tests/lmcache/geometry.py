# SPDX-License-Identifier: Apache-2.0
"""The geometries of chunks, for LMCache and for kvtier."""
import dataclasses

import torch

DTYPES = {"half": torch.half, "bfloat16": torch.bfloat16, "float": torch.float,
          "uint8": torch.uint8, "fp8_e4m3fn": torch.float8_e4m3fn,
          "fp8_e5m2": torch.float8_e5m2}


@dataclasses.dataclass(frozen=True)
class Geometry:
    dtype: str = "bfloat16"
    mla: bool = False
    layers: int = 3
    heads: int = 2
    head_size: int = 8
    chunk_tokens: int = 16
    block_tokens: int = 8
    model: str = "org/small-model"
    world_size: int = 1
    rank: int = 0

    @property
    def n_kv(self):
        return 1 if self.mla else 2

    @property
    def n_heads(self):
        return 1 if self.mla else self.heads

    @property
    def head_bytes(self):
        return self.head_size * DTYPES[self.dtype].itemsize

    @property
    def shape(self):
        """Return the shape of a chunk in LMCache's format KV_2LTD or KV_MLA_FMT."""
        return torch.Size([self.n_kv, self.layers, self.chunk_tokens,
                           self.n_heads * self.head_size])

    @property
    def token_bytes(self):
        return self.n_kv * self.layers * self.n_heads * self.head_bytes

    @property
    def chunk_bytes(self):
        return self.chunk_tokens * self.token_bytes


SMALL = Geometry()
PAIR = [dataclasses.replace(SMALL, world_size=2, rank=rank) for rank in (0, 1)]
MLA = Geometry(mla=True, head_size=24, dtype="half")
# Chunks of these geometries have the length and the names of SMALL's chunks.
OTHERS = (dataclasses.replace(SMALL, layers=2, heads=3),
          dataclasses.replace(SMALL, layers=6, head_size=4),
          dataclasses.replace(SMALL, mla=True, head_size=32))
# Chunks of 32 KiB, a multiple of a file system's block.
CUT = Geometry(layers=4, heads=4, head_size=32)
# Chunks of 1 MiB: large enough for direct transfers, and a multiple of any block size.
LARGE = Geometry(layers=4, heads=4, head_size=64, chunk_tokens=256,
                 block_tokens=32)
