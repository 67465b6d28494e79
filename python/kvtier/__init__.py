# SPDX-License-Identifier: Apache-2.0
"""kvtier keeps the KV cache of language models outside the GPU.

Importing this package starts no thread, opens no file and loads no library;
the connector for vLLM is kvtier.connector.KVTierConnector.
"""

__version__ = "0.1.0"
