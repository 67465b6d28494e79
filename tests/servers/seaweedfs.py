#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start SeaweedFS, as a single process, on free loopback ports, in a temporary directory.
Prints a line of JSON when ready.  On SIGTERM or at the end of standard input, the process
ends and the directory is removed.  Exit status 77: not installed (scripts/s3-env)."""

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request

import lifetime
import oidc
from client import make_buckets
from s3_env import find

DOMAIN = "s3.localhost"
KEYS = "AKTEST", "SKTEST"
READ_KEYS = "AKREAD", "SKREAD"  # may read and list
ROLE = "arn:aws:iam::123456789012:role/kv"


def identities():
    def identity(name, keys, *actions):
        return {"name": name, "actions": actions,
                "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}]}
    return {"identities": [identity("test", KEYS, "Admin", "Read", "List", "Tagging",
                                    "Write"),
                           identity("reader", READ_KEYS, "Read", "List")]}


def policies(issuer, duration):
    """Return the policies of STS: principals and permissions of the role."""
    def statement(**words):
        return {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", **each} for each in words["all"]]}
    return {
        "sts": {"tokenDuration": duration, "maxSessionLength": "12h", "issuer": "test",
                "signingKey": "a3Z0aWVyLXRlc3QtMzItYnl0ZXMtb2Ytbm8tc2VjcmV0"},
        "providers": [{"name": "oidc", "type": "oidc", "enabled": True, "config": {
            "clientId": oidc.AUDIENCE, "issuer": issuer, "jwksUri": issuer + "/keys"}}],
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "roles": [{"roleName": "kv", "roleArn": ROLE, "attachedPolicies": ["all"],
                   "trustPolicy": statement(all=[
                       {"Principal": "*", "Action": ["sts:AssumeRole"]},
                       {"Principal": {"Federated": "oidc"},
                        "Action": ["sts:AssumeRoleWithWebIdentity"]}])}],
        "policies": [{"name": "all", "document": statement(all=[
            {"Action": ["s3:*", "sts:*"], "Resource": ["*"]}])}]}


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file)
    return path


class SeaweedFS:
    def __init__(self, weed, directory, tls, sts_duration):
        self.directory = directory
        self.issuer = None
        for name in "data", "meta":
            os.mkdir(os.path.join(directory, name))
        # gRPC listens at each port + 10000.
        master, volume, filer, self.port = [lifetime.free_port(beside=(10000,))
                                            for _ in range(4)]
        self.sockets = [f"/tmp/seaweedfs-{name}-grpc-{port + 10000}.sock" for name, port in
                        (("master", master), ("volume", volume), ("filer", filer),
                         ("s3", self.port))]
        command = [
            weed, "-logtostderr=true", "server", f"-ip={lifetime.LOOPBACK}",
            f"-ip.bind={lifetime.LOOPBACK}", f"-master.port={master}",
            f"-master.dir={self.path('meta')}", "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024", "-master.electionTimeout=1s",
            "-master.heartbeatInterval=100ms", f"-dir={self.path('data')}",
            f"-volume.port={volume}", "-volume.max=0", "-volume.preStopSeconds=0",
            "-filer", f"-filer.port={filer}", f"-filer.localSocket={self.path('f.sock')}",
            "-s3", f"-s3.port={self.port}", f"-s3.domainName={DOMAIN}",
            f"-s3.localSocket={self.path('s3.sock')}", "-s3.autoCreateBucket=false",
            "-s3.allowDeleteBucketNotEmpty=false", "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.config=" + write_json(self.path("s3.json"), identities())]
        self.facts = {
            "endpoint": f"http://{lifetime.LOOPBACK}:{self.port}", "port": self.port,
            "access": KEYS[0], "secret": KEYS[1], "region": "us-east-1",
            "read_access": READ_KEYS[0], "read_secret": READ_KEYS[1], "domain": DOMAIN}
        if tls:
            command += self.tls()
        if sts_duration:
            command += self.sts(sts_duration)
        # SeaweedFS also reads configuration from HOME and the working directory.
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("AWS_")}
        environment["HOME"] = self.path("meta")
        self.child = lifetime.spawn(command, self.path("log"), cwd=self.path("meta"),
                                    env=environment)

    def path(self, name):
        return os.path.join(self.directory, name)

    def tls(self):
        cert, key = lifetime.make_certificate(self.directory, DOMAIN)
        port = lifetime.free_port()
        self.facts.update(tls_port=port, ca=cert,
                          tls_endpoint=f"https://{lifetime.LOOPBACK}:{port}")
        return [f"-s3.port.https={port}", f"-s3.cert.file={cert}", f"-s3.key.file={key}"]

    def sts(self, duration):
        self.issuer = oidc.Issuer(self.directory)
        tokens = {}
        for name, seconds in ("token", 86400), ("token-expired", -3600):
            tokens[name] = self.path(name)
            with open(tokens[name], "w") as file:
                file.write(self.issuer.token(seconds))
        self.facts.update(role_arn=ROLE, token_file=tokens["token"],
                          expired_token_file=tokens["token-expired"])
        return ["-s3.iam.config=" + write_json(self.path("iam.json"),
                                               policies(self.issuer.url, duration))]

    def wait(self, seconds=300):
        """Wait until the server is ready.  False: the server has died, or a timeout."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.child.poll() is None:
            try:
                with urllib.request.urlopen(self.facts["endpoint"] + "/healthz",
                                            timeout=30):
                    return True
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        return False

    def stop(self):
        lifetime.end(self.child)
        if self.issuer:
            self.issuer.stop()
        for path in self.sockets:
            if os.path.exists(path):
                os.unlink(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tls", action="store_true", help="a second port with TLS")
    parser.add_argument("--sts", metavar="DURATION", help="serve STS; how long its keys "
                        "live if a request does not say (such as 1h, 4s)")
    parser.add_argument("--bucket", action="append", dest="buckets", metavar="NAME",
                        help="a bucket to make (test); may be given again")
    args = parser.parse_args()
    weed = find("weed")
    if not weed:
        print("SeaweedFS is not installed: run scripts/s3-env", file=sys.stderr)
        return 77
    lifetime.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="weed-") as directory:
        server = None
        try:
            server = SeaweedFS(weed, directory, args.tls, args.sts)
            if not server.wait():
                with open(server.path("log")) as file:
                    sys.exit("SeaweedFS does not start:\n" + file.read()[-3000:])
            make_buckets(server.facts, args.buckets or ["test"])
            lifetime.print_facts(**server.facts)
            lifetime.stay([server.child])
        except lifetime.Ended:
            pass
        finally:
            if server:
                server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
