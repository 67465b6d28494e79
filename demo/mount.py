# SPDX-License-Identifier: Apache-2.0
"""A directory that looks like a mount of 3FS, as a place for the KV cache."""
import hashlib
import json
import os
import shutil
import subprocess
import tempfile

import workplace

DAEMON = os.path.join(workplace.REPOSITORY, "build", "tests", "servers", "usrbiod")


def forget(directory):
    """Delete this host's local index of a directory in a mount."""
    directory = os.path.realpath(directory)
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        sources = [line[line.index(" - "):] for line in mounts
                   if directory.startswith(line.split()[4] + "/")
                   and " - fuse.hf3fs " in line]
    if not sources:
        return
    thing = sources[-1].encode() + b"\0" + directory.encode()
    number = int.from_bytes(hashlib.sha256(thing).digest()[:8], "little")
    shutil.rmtree("/var/tmp/kvtier-%d/%016x" % (os.geteuid(), number),
                  ignore_errors=True)


class Mount:
    """The tests' daemon over an empty directory, from start() to stop()."""

    begin = "starting the tests' daemon of 3FS, over a directory"

    def __init__(self, prefix="demo"):
        self.prefix = prefix
        self.daemon = self.root = self.mount = self.store = None

    def start(self):
        if not os.path.exists(DAEMON):
            raise workplace.Unavailable(f"{DAEMON} is not there: libfuse3 is missing")
        self.root = tempfile.mkdtemp(prefix=f"{self.prefix}-3fs-",
                                     dir=workplace.cache_directory())
        self.backing, self.mount = (os.path.join(self.root, name)
                                    for name in ("backing", "mount"))
        os.mkdir(self.backing)
        os.mkdir(self.mount)
        self.daemon = subprocess.Popen([DAEMON, self.backing, self.mount],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True)
        if not self.daemon.stdout.readline():
            raise workplace.Unavailable(
                "FUSE cannot be mounted here: a container needs --device /dev/fuse and "
                "--cap-add SYS_ADMIN")
        self.store = os.path.join(self.mount, "kv-cache")
        os.mkdir(self.store)

    def stop(self):
        if not self.root:
            return
        self.forget()
        if self.daemon:
            self.daemon.stdin.close()
            self.daemon.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def settings(self):
        """As in a configuration file."""
        return {"remote_url": None, "remote_storage_plugins": '["hf3fs.primary"]',
                "extra_config": json.dumps(
                    {"remote_storage_plugin.hf3fs.primary.base_path": self.store})}

    def environment(self):
        return {}

    def arguments(self):
        """Return the settings as arguments for a command of kvtier."""
        return ["--set", "remote_storage_plugins=hf3fs",
                "--set", f"hf3fs_base_path={self.store}"]

    def stored(self):
        """Return (files, bytes) of the chunks in the mount."""
        return workplace.stored(self.store)

    def forget(self):
        """Delete the local index: the next server starts without an index."""
        if self.store:
            forget(self.store)
