# SPDX-License-Identifier: Apache-2.0
from kvtier import S3Adapter

__all__ = ["S3Adapter"]
