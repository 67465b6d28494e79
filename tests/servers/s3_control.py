# SPDX-License-Identifier: Apache-2.0
"""The control port of s3.py: a test configures faults and reads the received requests.
JSON over HTTP:
  POST /faults       add a fault or a list of faults (s3_faults.py); returns {"ids": [...]}
  GET /faults        number of uses of each fault; DELETE removes all faults
  GET /stats         requests, connections, counts; DELETE resets the counts
  GET /log           lines of text: rejected signatures and malformed requests
  POST /config       any of clock_offset_s, clock_stands (true: stop the clock now), delay_ms,
                     chunked, idle_ms, region, session_seconds; returns all values
  POST /credentials  {"access", "secret", "token", "expires_in"}: the last two may be null
  POST /sessions     {"expires_in"}: new lifetime of existing sessions
  POST /objects      {"bucket", "objects": [{"key", "size", "age_s"}]}: create objects of zero
                     bytes, without requests
  GET /objects       {bucket: {key: {"size", "headers", "checksums"}}}
"""

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sigv4
from s3_objects import Object
from sigv4 import Credentials, Refused

CONFIG = {"clock_offset_s", "clock_stands", "delay_ms", "chunked", "idle_ms", "region",
          "session_seconds"}
SECRET_HEADERS = ("x-amz-security-token", "x-amz-s3session-token", "authorization",
                  "x-amz-server-side-encryption-customer-key")


def describe(request, connection):
    """Return a request in the form of GET /stats."""
    headers = {name: "(left out)" if name in SECRET_HEADERS else value
               for name, value in request.folded.items()}
    record = {"connection": connection, "method": request.method,
              "target": request.target, "bucket": request.bucket, "key": request.key,
              "operation": request.operation, "status": 0, "code": None,
              "headers": headers, "body_bytes": 0, "at": time.monotonic()}
    try:
        signed = sigv4.parse(request.folded.get("authorization", ""))
        record["signed"] = {"access": signed.access, "region": signed.region,
                            "service": signed.service, "headers": signed.headers}
    except Refused:
        pass
    return record


class Stats:
    """Any thread may call any method."""

    def __init__(self):
        self.lock = threading.Lock()
        self.open = 0
        self.lines = []
        self.clear()

    def clear(self):
        with self.lock:
            self.requests = []
            self.running = set()
            self.max_running = 0
            self.opened = self.resumed = self.failed_handshakes = 0
            self.max_open = self.open

    def log(self, line):
        with self.lock:
            self.lines.append(line)

    def connected(self, step):
        with self.lock:
            self.open += step
            self.opened += step > 0
            self.max_open = max(self.max_open, self.open)

    def handshake(self, done, resumed=False):
        with self.lock:
            self.failed_handshakes += not done
            self.resumed += resumed

    def begin(self, record):
        with self.lock:
            self.requests.append(record)
            self.running.add(id(record))
            self.max_running = max(self.max_running, len(self.running))

    def end(self, record, **more):
        with self.lock:
            record.update(more)
            self.running.discard(id(record))

    def show(self):
        with self.lock:
            counts = {"methods": {}, "operations": {}, "statuses": {}}
            for record in self.requests:
                for plural, name in (("methods", "method"), ("statuses", "status"),
                                     ("operations", "operation")):
                    of = counts[plural]
                    of[str(record[name])] = of.get(str(record[name]), 0) + 1
            return {**counts, "max_at_a_time": self.max_running,
                    "connections": {
                        "opened": self.opened, "open": self.open,
                        "max_open": self.max_open, "tls_resumed": self.resumed,
                        "tls_failed": self.failed_handshakes},
                    "requests": list(self.requests)}


def configure(server, words):
    if set(words) - CONFIG:
        raise ValueError(f"unknown words: {sorted(set(words) - CONFIG)}")
    server.config.update(words)
    if "clock_stands" in words:
        server.stands_at = time.time() if words["clock_stands"] else None
    server.objects.session_seconds = server.config["session_seconds"]
    server.objects.region = server.config["region"]
    return server.config


def add_credentials(server, words):
    seconds = words.get("expires_in")
    server.keys[words["access"]] = Credentials(
        words["access"], words["secret"], words.get("token"),
        None if seconds is None else server.now() + seconds)
    return {}


def set_session_expiry(server, words):
    with server.objects.lock:
        for session in server.objects.sessions.values():
            session.credentials = session.credentials._replace(
                expires=server.now() + words["expires_in"])
    return {}


def add_objects(server, words):
    bucket = server.objects.buckets[words["bucket"]]
    with server.objects.lock:
        for each in words["objects"]:
            body = bytes(each["size"])
            bucket.objects[each["key"]] = Object(
                body, hashlib.md5(body).hexdigest(), {}, {}, server.now() - each["age_s"])
    return {}


def show_objects(server):
    with server.objects.lock:
        return {name: {
            "objects": {key: {"size": len(each.body), "headers": each.headers,
                              "checksums": each.checksums}
                        for key, each in bucket.objects.items()}}
            for name, bucket in server.objects.buckets.items()}


def act(server, method, path, body):
    """Return the value of the response.  Raises KeyError for an unknown path."""
    if method == "POST":
        words = json.loads(body)
        if path == "/faults":
            words = words if isinstance(words, list) else [words]
            return {"ids": [server.faults.add(each) for each in words]}
        return {"/config": configure, "/credentials": add_credentials,
                "/sessions": set_session_expiry,
                "/objects": add_objects}[path](server, words)
    if method == "DELETE":
        {"/faults": server.faults.clear, "/stats": server.stats.clear}[path]()
        return {}
    return {"/faults": server.faults.show, "/stats": server.stats.show,
            "/log": lambda: list(server.stats.lines),
            "/objects": lambda: show_objects(server)}[path]()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            status, value = 200, act(self.server.of, self.command, self.path, body)
        except KeyError as e:
            status, value = 404, {"error": f"there is no {e}"}
        except (ValueError, TypeError) as e:
            status, value = 400, {"error": str(e)}
        text = (json.dumps(value) + "\n").encode() if self.path != "/log" or status != 200 \
            else "".join(line + "\n" for line in value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = do

    def log_message(self, *_):
        pass


def start(server, address):
    """Start and return a control server; server_address[1] is the port."""
    control = ThreadingHTTPServer((address, 0), Handler)
    control.daemon_threads = True
    control.of = server
    threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True).start()
    return control
