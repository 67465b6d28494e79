# SPDX-License-Identifier: Apache-2.0
from kvtier import S3Connector

__all__ = ["S3Connector"]
