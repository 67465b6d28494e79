# SPDX-License-Identifier: Apache-2.0
"""Two directories, as on two drives, with files of LMCache's GDS back end as a place for
the KV cache."""
import os
import shutil
import tempfile

import workplace

BUFFER_MIB = 8192  # of GPU memory, if a GPU is present


class Paths:
    """Two directories, from start() to stop().  LMCache's documentation has two forms of
    the settings, a file and environment variables.  The server before forget() uses the
    file; the server after forget() uses the variables, with the directories swapped."""

    begin = "naming two directories"

    def __init__(self, prefix="demo"):
        self.prefix = prefix
        self.root = None
        self.paths = []
        self.by_environment = False

    def start(self):
        self.root = tempfile.mkdtemp(prefix=f"{self.prefix}-gds-",
                                     dir=workplace.cache_directory())
        self.paths = [os.path.join(self.root, name, "cache")
                      for name in ("nvme0", "nvme1")]

    def stop(self):
        if self.root:
            shutil.rmtree(self.root, ignore_errors=True)

    def settings(self):
        """Return the settings in the form of a configuration file."""
        return {"max_local_cpu_size": None, "remote_url": None, "local_cpu": "false",
                "gds_path": '"%s"' % ",".join(self.paths),
                "cufile_buffer_size": BUFFER_MIB}

    def environment(self):
        if not self.by_environment:
            return {}
        return {"LMCACHE_CONFIG_FILE": "",
                "LMCACHE_LOCAL_CPU": "False",
                "LMCACHE_CHUNK_SIZE": str(workplace.CHUNK_TOKENS),
                "LMCACHE_GDS_PATH": ",".join(self.paths),
                "LMCACHE_CUFILE_BUFFER_SIZE": str(BUFFER_MIB)}

    def arguments(self):
        """Return the settings as arguments for a command of kvtier."""
        return ["--set", "gds_path=" + ",".join(self.paths),
                "--set", f"cufile_buffer_size={BUFFER_MIB}"]

    def stored(self):
        """Return (files, bytes) of the chunks in both directories."""
        counts = [workplace.stored(path) for path in self.paths]
        return tuple(map(sum, zip(*counts)))

    def forget(self):
        """Delete the indexes and drop the files from the page cache; swap the directories."""
        for path in self.paths:
            shutil.rmtree(os.path.join(path, ".kvtier"), ignore_errors=True)
            workplace.drop_page_cache(path)
        self.by_environment = True
        self.paths.reverse()
