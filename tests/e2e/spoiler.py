# SPDX-License-Identifier: Apache-2.0
"""A program that damages objects in a bucket while kvtier uses the bucket."""
import contextlib
import os
import sys
import threading

import workplace
from bucket import BUCKET
from place import check

sys.path.insert(0, os.path.join(workplace.REPOSITORY, "tests", "servers"))
from client import Client, path as path_of  # noqa: E402


class Spoiler:
    """Deletes objects of a bucket, or overwrites objects with wrong bytes, with and without
    the metadata of the right bytes."""

    def __init__(self, place, bucket):
        self.random = place.random
        self.client = Client(bucket.facts["endpoint"], bucket.facts["access"],
                             bucket.facts["secret"])
        self.names = [f"{bucket.prefix}/kvtier/{key}"
                      for key in sorted(each["key"] for each in bucket.list())]
        self.done = 0
        self.stop = threading.Event()

    def spoil(self, name, how):
        target = path_of(BUCKET, name)
        head = self.client.do("HEAD", target)
        if head.status == 404:
            return
        check(head.status == 200, f"HEAD of {name}: {head.status}")
        self.done += 1
        if how == 0:
            self.client.do("DELETE", target)
            return
        told = {name: value for name, value in head.headers.items()
                if how == 1 and name.startswith("x-amz-meta-")}
        wrong = bytes(int(head.headers["content-length"]))
        check(self.client.do("PUT", target, wrong, **told).status == 200, "a raw PUT")

    def run(self):
        for number, name in enumerate(self.names):
            if self.stop.wait(0.05):
                return
            self.spoil(name, number % 3)

    @contextlib.contextmanager
    def at_work(self):
        """Overwrite a quarter of the objects with wrong bytes, then damage the objects one
        after another in a thread until the `with` statement ends."""
        self.random.shuffle(self.names)
        for name in self.names[len(self.names) * 3 // 4:]:
            self.spoil(name, 1)
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        yield
        self.stop.set()
        thread.join()
        self.client.close()
        check(self.done > 8, "only %d objects were spoilt" % self.done)
