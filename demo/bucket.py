# SPDX-License-Identifier: Apache-2.0
"""A bucket in a real S3 server on loopback, as a place for the KV cache."""
import hashlib
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

    begin = "starting the S3 server"

    def __init__(self, prefix="demo"):
        self.prefix = prefix
        self.server = self.facts = None

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
        """Return the settings in the form of a configuration file."""
        return {"remote_url": f'"s3://{BUCKET}"',
                "extra_config": json.dumps({
                    "s3_endpoint_url": self.facts["endpoint"],
                    "s3_region": self.facts["region"],
                    "s3_file_prefix": self.prefix})}

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": self.facts["access"],
                "AWS_SECRET_ACCESS_KEY": self.facts["secret"]}

    def arguments(self):
        """Return the settings as arguments for a command of kvtier."""
        extra = json.loads(self.settings()["extra_config"])
        args = ["--set", f"remote_url=s3://{BUCKET}"]
        for key, value in extra.items():
            args += ["--set", f"{key}={value}"]
        return args

    def list(self):
        """Return the chunks of the bucket as `kvtier ls --json` prints them."""
        done = subprocess.run(
            [os.path.join(workplace.REPOSITORY, "build", "kvtier"), "ls", "--json",
             *self.arguments()], stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, **self.environment()})
        return [json.loads(line) for line in done.stdout.splitlines()]

    def stored(self):
        """Return (objects, bytes) of the chunks in the bucket."""
        chunks = self.list()
        return len(chunks), sum(chunk["stored_bytes"] for chunk in chunks)

    def forget(self):
        """Delete this host's local index of the bucket: the next server starts without an
        index."""
        if not self.facts:
            return
        thing = "s3://127.0.0.1:%(port)d/" % self.facts + f"{BUCKET}/{self.prefix}/"
        number = int.from_bytes(hashlib.sha256(thing.encode()).digest()[:8], "little")
        shutil.rmtree("/var/tmp/kvtier-%d/%016x" % (os.geteuid(), number),
                      ignore_errors=True)
