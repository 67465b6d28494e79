# SPDX-License-Identifier: Apache-2.0
"""A bucket in a real S3 server on loopback, as a place for the KV cache."""
import glob
import json
import os
import shutil
import subprocess
import sys

import workplace

SERVER = os.path.join(workplace.REPOSITORY, "tests", "servers", "seaweedfs.py")
BUCKET = "kv-cache"


class Bucket:
    """SeaweedFS with one empty bucket, from start() to stop()."""

    def __init__(self, prefix="demo"):
        self.prefix = prefix
        self.server = self.facts = None
        self.indexes = set(known_indexes())

    def start(self):
        done = subprocess.run([os.path.join(workplace.REPOSITORY, "scripts", "s3-env")],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise workplace.Unavailable("the S3 server cannot be installed here")
        self.server = subprocess.Popen(
            [sys.executable, SERVER, "--bucket", BUCKET], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        line = self.server.stdout.readline()
        if not line:
            raise workplace.Unavailable("the S3 server does not start")
        self.facts = json.loads(line)

    def stop(self):
        if self.server:
            self.server.stdin.close()
            self.server.wait()
        self.forget()

    def settings(self):
        """As in a configuration file."""
        return {"remote_url": f'"s3://{BUCKET}"',
                "extra_config": json.dumps({
                    "s3_endpoint_url": self.facts["endpoint"],
                    "s3_region": self.facts["region"],
                    "s3_file_prefix": self.prefix})}

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": self.facts["access"],
                "AWS_SECRET_ACCESS_KEY": self.facts["secret"]}

    def arguments(self):
        """The same for a command of kvtier."""
        extra = json.loads(self.settings()["extra_config"])
        args = ["--set", f"remote_url=s3://{BUCKET}"]
        for key, value in extra.items():
            args += ["--set", f"{key}={value}"]
        return args

    def stored(self):
        """(objects, bytes) of the chunks in it."""
        done = subprocess.run(
            [os.path.join(workplace.REPOSITORY, "build", "kvtier"), "ls", "--json",
             *self.arguments()], stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, **self.environment()})
        sizes = [json.loads(line)["stored_bytes"] for line in done.stdout.splitlines()]
        return len(sizes), sum(sizes)

    def forget(self):
        """Remove what this host has noted of the bucket: whoever comes then starts with
        nothing on its disk."""
        for path in set(known_indexes()) - self.indexes:
            shutil.rmtree(path, ignore_errors=True)


def known_indexes():
    return glob.glob("/var/tmp/kvtier-%d/*" % os.geteuid())
