#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An S3 server in memory for tests.  The server verifies every signature and responds as
AWS does, except for faults that a test configures at the control port (s3_control.py,
s3_faults.py).  Path style, and virtual-hosted style below --domain; buckets named *--x-s3
are directory buckets (S3 Express) with sessions.  As a program, the server prints a line
of JSON and ends on SIGTERM or at the end of standard input.  In Python:

    with s3.Server(buckets=["kv"]) as server: ... server.endpoint, server.faults.add(...)

Each connection has a thread.
"""

import argparse
import hashlib
import secrets
import shutil
import socket
import ssl
import tempfile
import threading
import time
import traceback
from urllib.parse import unquote_to_bytes

import lifetime
import s3_control
import s3_xml
import sigv4
from s3_faults import Faults
from s3_objects import Bucket, Objects
from s3_request import WRITES, http_date, operation_of
from s3_wire import Answer, Gone, Malformed, Wire
from sigv4 import Credentials, Refused

BY_LONG_TERM_KEYS = ("CreateSession", "HeadBucket", "CreateBucket", "DeleteBucket")


class Server:
    def __init__(self, port=0, tls=False, tls_port=0, cert=None, key=None, state=None,
                 access="AKTEST", secret="SKTEST", region="us-east-1",
                 domain="s3.localhost", buckets=("test",), session_seconds=300, delay_ms=0):
        self.faults = Faults()
        self.stats = s3_control.Stats()
        self.objects = Objects(session_seconds)
        self.objects.now = self.now
        for name in buckets:
            self.objects.buckets[name] = Bucket(name)
        self.stands_at = None
        self.config = {"clock_offset_s": 0, "clock_stands": False, "delay_ms": delay_ms,
                       "chunked": False, "idle_ms": 0, "session_seconds": session_seconds,
                       "region": region}
        s3_control.configure(self, {})
        self.keys = {access: Credentials(access, secret)}
        self.domain = domain
        self.wires = set()
        self.own_state = None
        self.listeners = [listen(port)]
        self.context = self.ca = None
        if tls:
            self.start_tls(tls_port, cert, key, state)
        self.control = s3_control.start(self, lifetime.LOOPBACK)
        for listener, context in zip(self.listeners, (None, self.context)):
            threading.Thread(target=self.accept, args=(listener, context),
                             daemon=True).start()

    def start_tls(self, port, cert, key, state):
        if cert is None:
            if state is None:
                state = self.own_state = tempfile.mkdtemp(prefix="s3-")
            cert, key = lifetime.make_certificate(state, self.domain)
        self.ca = cert
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert, key)
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        self.listeners.append(listen(port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.control.shutdown()
        self.control.server_close()
        for wire in list(self.wires):
            try:
                wire.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if self.own_state:
            shutil.rmtree(self.own_state)

    def now(self):
        return (self.stands_at or time.time()) + self.config["clock_offset_s"]

    def facts(self):
        """Return the ports, keys and names that a test needs to use this server."""
        port = self.listeners[0].getsockname()[1]
        control = self.control.server_address[1]
        keys = next(iter(self.keys.values()))
        facts = {"port": port, "endpoint": f"http://{lifetime.LOOPBACK}:{port}",
                 "control_port": control,
                 "control": f"http://{lifetime.LOOPBACK}:{control}",
                 "access": keys.access, "secret": keys.secret,
                 "region": self.config["region"], "domain": self.domain,
                 "buckets": list(self.objects.buckets)}
        if self.context:
            port = self.listeners[1].getsockname()[1]
            facts.update(tls_port=port, ca=self.ca,
                         tls_endpoint=f"https://{lifetime.LOOPBACK}:{port}")
        return facts

    @property
    def endpoint(self):
        return self.facts()["endpoint"]

    # Connections

    def accept(self, listener, context):
        number = 0
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            number += 1
            name = ("tls-" if context else "") + str(number)
            threading.Thread(target=self.serve, args=(sock, context, name),
                             daemon=True).start()

    def serve(self, sock, context, name):
        self.stats.connected(1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if context:
                sock = self.handshake(sock, context, name)
            self.serve_all(Wire(sock), name)
        except (Gone, OSError):
            pass
        except Exception:  # a bug of this program
            self.stats.log(f"connection {name}: {traceback.format_exc()}")
            raise
        finally:
            sock.close()
            self.stats.connected(-1)

    def serve_all(self, wire, name):
        self.wires.add(wire)
        try:
            while True:
                self.serve_one(wire, name)
        except Malformed as e:
            self.stats.log(f"connection {name}: malformed request: {e}")
            wire.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n"
                      b"Connection: close\r\n\r\n")
        finally:
            self.wires.discard(wire)

    def handshake(self, sock, context, name):
        try:
            sock.settimeout(60)
            sock = context.wrap_socket(sock, server_side=True)
            sock.settimeout(None)
        except OSError as e:
            self.stats.handshake(False)
            self.stats.log(f"connection {name}: TLS handshake: {e}")
            raise
        self.stats.handshake(True, sock.session_reused)
        if sock.selected_alpn_protocol() == "h2":
            self.stats.log(f"connection {name}: the client offered h2")
            raise Gone("HTTP/2 is not spoken")
        return sock

    # Requests

    def serve_one(self, wire, name):
        idle_ms = self.config["idle_ms"]
        request = wire.read_request(idle_ms / 1000 if idle_ms else None)
        self.locate(request)
        fault = self.faults.take(request)
        request.id = secrets.token_hex(8).upper()
        record = s3_control.describe(request, name)
        self.stats.begin(record)
        outcome = {"status": 0}
        try:
            answer, last = self.answer(wire, request, fault)
            outcome = {"status": answer.status, "code": answer.code,
                       "body_bytes": len(request.body)}
            self.finish(answer, request, last)
            if self.config["chunked"]:
                fault = {"chunked": True, **fault} if answer.body[:1] == b"<" else fault
            wire.write(answer, request.method == "HEAD", fault,
                       lambda: self.stats.end(record, **outcome))
            self.stats.end(record, **outcome)
            if last:
                wire.close_gently()
            if fault.get("close") or answer.headers.get("Connection") == "close":
                raise Gone("done")
        except Gone as e:
            self.stats.end(record, **outcome, ended=str(e))
            raise

    def locate(self, request):
        """Set the bucket, key and operation of a request."""
        host = request.folded.get("host", "").rpartition(":")[0] or \
            request.folded.get("host", "")
        first = host.partition(".")[0]
        if host.endswith("." + self.domain):
            bucket, key = host[:-len(self.domain) - 1], request.path[1:]
        elif first.endswith("--x-s3"):
            bucket, key = first, request.path[1:]
        else:
            bucket, _, key = request.path[1:].partition("/")
        try:
            request.bucket = unquote_to_bytes(bucket).decode()
            request.key = unquote_to_bytes(key).decode()
        except UnicodeDecodeError:
            raise Malformed("a path that is not UTF-8") from None
        request.operation = operation_of(request)

    def answer(self, wire, request, fault):
        """Return (response, True if the request's body was not read)."""
        if fault.get("reset"):
            wire.reset()
        if fault.get("early"):
            return self.faulty(fault), True
        refused = None
        try:
            self.judge(request)
        except Refused as e:
            refused = e
            self.complain(request, e)
        expects = request.folded.get("expect", "").lower() == "100-continue"
        if refused and expects and "continue" not in fault:
            return error_answer(refused), True
        for _ in range(fault.get("continue", 1 if expects else 0)):
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body = wire.read_body(request.length)
        delay_ms = fault.get("delay_ms", self.config["delay_ms"])
        if delay_ms and wire.wait(delay_ms / 1000):
            raise Gone("the client did not wait")
        while fault.get("hold") and self.faults.has(fault):
            if wire.wait(0.01):
                raise Gone("the client did not wait")
        if "status" in fault:
            return self.faulty(fault), False
        try:
            if refused:
                raise refused
            check_payload(request)
            if fault.get("listing"):
                request.operation, request.params = "ListObjectsV2", {"list-type": "2"}
            return self.run(request, fault), False
        except Refused as e:
            if e is not refused:
                self.complain(request, e)
            return error_answer(e), False

    def run(self, request, fault):
        try:
            return self.objects.run(request, fault)
        except ValueError as e:  # from int() or base64
            raise Refused(400, "InvalidArgument", str(e)) from None

    def judge(self, request):
        """Raise Refused if the signature is wrong."""
        if request.folded.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            raise Refused(501, "NotImplemented", "aws-chunked is not spoken here")
        express = request.bucket.endswith("--x-s3")
        scope = self.config["region"], "s3express" if express else "s3"
        what = request.method, request.target, request.headers
        if not express or request.operation in BY_LONG_TERM_KEYS:
            sigv4.verify(*what, self.keys.get, self.now(), *scope)
            return
        if "x-amz-security-token" in request.folded:
            raise Refused(400, "InvalidRequest", "x-amz-security-token together with a "
                          "session of a directory bucket")

        def find(access):
            session = self.objects.sessions.get(access)
            return session.credentials if session and session.bucket == request.bucket \
                else None
        signed = sigv4.verify(*what, find, self.now(), *scope, "x-amz-s3session-token")
        if request.operation in WRITES and self.objects.sessions[signed.access].read_only:
            raise Refused(403, "AccessDenied", "Access Denied")

    def complain(self, request, refused):
        if refused.status in (404, 412, 416):
            return
        self.stats.log(f"{request.method} {request.target}: {refused}" + "".join(
            f"\n  {name}: {value}" for name, value in refused.fields.items()
            if not name.startswith("Token")).replace("\n", "\n  "))

    def faulty(self, fault):
        """Return the response of a fault that replaces the operation."""
        fields = dict(fault.get("fields", {}))
        headers = {}
        for word, name, header in (("region", "Region", "x-amz-bucket-region"),
                                   ("endpoint", "Endpoint", None),
                                   ("location", None, "Location"),
                                   ("retry_after", None, "Retry-After")):
            if word in fault and name:
                fields[name] = fault[word]
            if word in fault and header:
                headers[header] = fault[word]
        status = fault.get("status", 403)
        if "body" in fault:
            answer = Answer(status, headers, fault["body"].encode())
        elif status in (204, 304):
            answer = Answer(status, headers)
        else:
            code = fault.get("code", "AccessDenied" if status == 403 else "InternalError")
            answer = error_answer(Refused(status, code, fault.get("message", "A fault."),
                                          **fields))
            answer.headers.update(headers)
        return answer

    def finish(self, answer, request, last):
        """Add the headers of all responses."""
        answer.headers = {
            "x-amz-id-2": secrets.token_urlsafe(40), "x-amz-request-id": request.id,
            "Date": http_date(self.now()), "Server": "kvtier-test", **answer.headers}
        if answer.body[:1] == b"<":
            answer.headers.setdefault("Content-Type", "application/xml")
        if "x-amz-request-payer" in request.folded:
            answer.headers["x-amz-request-charged"] = "requester"
        if last or request.folded.get("connection", "").lower() == "close":
            answer.headers["Connection"] = "close"


def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((lifetime.LOOPBACK, port))
    listener.listen(1024)
    return listener


def check_payload(request):
    digest = request.folded["x-amz-content-sha256"]
    if digest != sigv4.UNSIGNED and hashlib.sha256(request.body).hexdigest() != digest:
        raise Refused(400, "XAmzContentSHA256Mismatch", "The provided "
                      "'x-amz-content-sha256' header does not match what was computed.")


def error_answer(refused):
    request_id = secrets.token_hex(8).upper()
    answer = Answer(refused.status, {"x-amz-request-id": request_id}, s3_xml.error(
        refused.code, refused.message, {**refused.fields, "RequestId": request_id,
                                        "HostId": secrets.token_urlsafe(40)}))
    answer.code = refused.code
    if "Region" in refused.fields:
        answer.headers["x-amz-bucket-region"] = refused.fields["Region"]
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", action="store_true", help="a second port with TLS")
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--cert", help="with --key: PEM files in place of own ones")
    parser.add_argument("--key")
    parser.add_argument("--state", help="directory for the certificate (a temporary one)")
    parser.add_argument("--bucket", action="append", dest="buckets", metavar="NAME",
                        help="a bucket that exists (test); may be given again")
    parser.add_argument("--access", default="AKTEST")
    parser.add_argument("--secret", default="SKTEST")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--domain", default="s3.localhost")
    parser.add_argument("--session-seconds", type=float, default=300)
    parser.add_argument("--delay-ms", type=float, default=0)
    words = vars(parser.parse_args())
    words["buckets"] = words["buckets"] or ["test"]
    lifetime.end_on_signals()
    try:
        with Server(**words) as server:
            lifetime.print_facts(**server.facts())
            lifetime.stay()
    except lifetime.Ended:
        pass


if __name__ == "__main__":
    main()
