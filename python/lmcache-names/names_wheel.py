# SPDX-License-Identifier: Apache-2.0
"""Build the wheel of this directory for pip, with Python's standard library only."""

import base64
import hashlib
import os
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
WHEEL = "kvtier_lmcache_names-0.1.0"
METADATA = """Metadata-Version: 2.1
Name: kvtier-lmcache-names
Version: 0.1.0
Summary: kvtier under import paths of LMCache
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: kvtier
"""
TAGS = "Wheel-Version: 1.0\nGenerator: kvtier\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def files():
    """Return {name in the wheel: bytes}."""
    found = {}
    for folder, _, names in os.walk(os.path.join(HERE, "lmcache")):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, HERE)] = file.read()
    found[WHEEL + ".dist-info/METADATA"] = METADATA.encode()
    found[WHEEL + ".dist-info/WHEEL"] = TAGS.encode()
    return found


def add(wheel, path, content):
    info = zipfile.ZipInfo(path)
    info.external_attr = 0o644 << 16
    wheel.writestr(info, content)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = WHEEL + "-py3-none-any.whl"
    record = WHEEL + ".dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for path, content in sorted(files().items()):
            add(wheel, path, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
            lines.append("%s,sha256=%s,%d\n" % (path, digest.decode().rstrip("="),
                                                len(content)))
        add(wheel, record, "".join(lines) + record + ",,\n")
    return name
