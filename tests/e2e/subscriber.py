# SPDX-License-Identifier: Apache-2.0
"""Print each KV cache event of a vLLM server as a line of JSON, decoded with vLLM's own types.

Usage, with vLLM's interpreter: subscriber.py ENDPOINT.  The first line is "ready".
"""
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch

socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.connect(sys.argv[1])
print("ready", flush=True)
while True:
    _, _, payload = socket.recv_multipart()
    for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
        print(msgspec.json.encode(event).decode(), flush=True)
