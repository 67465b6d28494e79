#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start a Ceph RADOS Gateway with a monitor and an OSD in memory, on free loopback ports,
in a temporary directory.  Prints a line of JSON when ready.  On SIGTERM or at the end of
standard input, all processes end and the directory is removed.  Exit status 77: not
installed (Debian: ceph-mon ceph-osd radosgw ceph-common)."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import lifetime
from client import make_buckets

DOMAIN = "s3.localhost"
KEYS = "AKTEST", "SKTEST"
PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool",
            "ceph-authtool")

# Without cephx, which only protects the daemons from each other.  Both addresses are
# needed: with only one address, an OSD binds all interfaces for the other.
CONFIG = """[global]
fsid = {fsid}
mon initial members = a
mon host = v1:127.0.0.1:{mon_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
mon warn on pool no redundancy = false
mon data avail crit = 1
mon data avail warn = 2
keyring = {directory}/keyring
run dir = {directory}
crash dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
[mon]
mon data = {directory}/mon
[osd]
osd data = {directory}/osd
osd objectstore = memstore
memstore device bytes = 6442450944
osd memory target = 1073741824
osd max object size = 268435456
[client.rgw.a]
rgw data = {directory}/rgw
rgw frontends = {frontend}
rgw dns name = {domain}
rgw run sync thread = false
rgw enable usage log = false
rgw enable ops log = false
"""


class Failed(Exception):
    pass


class Rgw:
    def __init__(self, directory, tls):
        self.directory = directory
        self.children = []
        port = lifetime.free_port()
        self.facts = {"endpoint": f"http://{lifetime.LOOPBACK}:{port}", "port": port,
                      "access": KEYS[0], "secret": KEYS[1], "region": "us-east-1",
                      "domain": DOMAIN}
        frontend = f"beast endpoint={lifetime.LOOPBACK}:{port}"
        if tls:
            cert, key = lifetime.make_certificate(directory, DOMAIN)
            port = lifetime.free_port()
            self.facts.update(tls_port=port, ca=cert,
                              tls_endpoint=f"https://{lifetime.LOOPBACK}:{port}")
            frontend += (f" ssl_endpoint={lifetime.LOOPBACK}:{port} "
                         f"ssl_certificate={cert} ssl_private_key={key}")
        self.fsid = str(uuid.uuid4())
        self.mon_port = lifetime.free_port()
        with open(self.path("ceph.conf"), "w") as file:
            file.write(CONFIG.format(fsid=self.fsid, mon_port=self.mon_port,
                                     directory=directory, frontend=frontend,
                                     domain=DOMAIN))
        for name in "mon", "osd", "rgw":
            os.mkdir(self.path(name))

    def path(self, name):
        return os.path.join(self.directory, name)

    def call(self, program, *arguments, seconds=300):
        """Run a program to the end.  All programs except the tools that make files read the
        configuration.  Without cephx the first request of a client sometimes fails with
        EPERM, so the call is retried."""
        config = [] if program in ("ceph-authtool", "monmaptool") else \
            ["-c", self.path("ceph.conf")]
        for _ in range(10):
            try:
                done = subprocess.run([program, *config, *arguments], timeout=seconds,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
            except subprocess.TimeoutExpired:
                raise Failed(f"{program} {arguments[0]}: not done in {seconds} s") from None
            if done.returncode == 0:
                return done.stdout
            if "EPERM" not in done.stdout:
                break
            time.sleep(0.5)
        raise Failed(f"{program} {' '.join(arguments)}: {done.stdout}")

    def spawn(self, program, *arguments):
        child = lifetime.spawn([program, "-f", "-c", self.path("ceph.conf"), *arguments],
                               self.path(program + ".out"))
        self.children.append(child)
        return child

    def wait(self, what, test, seconds=600):
        deadline = time.monotonic() + seconds
        while not test():
            if time.monotonic() > deadline:
                raise Failed(f"{what} was not there after {seconds} s")
            time.sleep(0.2)

    def start(self):
        self.start_monitor()
        self.start_osd()
        self.spawn("radosgw", "-n", "client.rgw.a")
        self.wait("the gateway", self.gateway_answers)
        self.call("radosgw-admin", "user", "create", "--uid=test", "--display-name=test",
                  f"--access-key={KEYS[0]}", f"--secret-key={KEYS[1]}")

    def start_monitor(self):
        keyring, monmap = self.path("keyring"), self.path("monmap")
        self.call("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.",
                  "--cap", "mon", "allow *")
        self.call("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap",
                  "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
        self.call("monmaptool", "--create", "--fsid", self.fsid, "--addv", "a",
                  f"v1:{lifetime.LOOPBACK}:{self.mon_port}", monmap)
        self.call("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap,
                  "--keyring", keyring)
        self.spawn("ceph-mon", "-i", "a")
        self.call("ceph", "mon", "stat")

    def start_osd(self):
        number = str(uuid.uuid4())
        self.call("ceph", "osd", "new", number)
        self.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", number)
        self.spawn("ceph-osd", "-i", "0")

        def up():
            # A start can lose a race ("wrong fsid"), so retry the start.
            if self.children[-1].poll() is not None:
                self.children.pop()
                self.spawn("ceph-osd", "-i", "0")
            return "1 up" in self.call("ceph", "osd", "stat")
        self.wait("the OSD", up)

    def gateway_answers(self):
        if self.children[-1].poll() is not None:
            raise Failed("radosgw has ended")
        try:
            with urllib.request.urlopen(self.facts["endpoint"], timeout=30):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def stop(self):
        for child in reversed(self.children):
            lifetime.end(child, seconds=0.2)  # no data to keep


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tls", action="store_true", help="a second port with TLS")
    parser.add_argument("--bucket", action="append", dest="buckets", metavar="NAME",
                        help="a bucket to make (test); may be given again")
    args = parser.parse_args()
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        print(f"Ceph is not installed: {' '.join(missing)}", file=sys.stderr)
        return 77
    lifetime.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="rgw-") as directory:
        server = Rgw(directory, args.tls)
        try:
            server.start()
            make_buckets(server.facts, args.buckets or ["test"])
            lifetime.print_facts(**server.facts)
            lifetime.stay(server.children)
        except lifetime.Ended:
            pass
        except Failed as e:
            sys.exit(f"rgw: {e}")
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
