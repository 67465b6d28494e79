# SPDX-License-Identifier: Apache-2.0
"""The faults of s3.py.  A fault is
    {"match": {...}, "skip": 0, "count": 1, "do": {...}}
The server skips the first `skip` matching requests, then applies the fault `count` times
(null: always).  With a "rate" below 1, the fault applies to this share of the matching
requests, chosen at random from the server's seed.  A request gets the first matching fault
of the list.

match (regular expressions to search for; a missing entry matches every request):
  method, bucket, key, query, operation (PutObject, CreateSession, ...), range (of the
  header Range)
do, in place of the operation:
  status, code, message, fields {name: text}  an error, also with status 200
  body                   text in place of the XML
  retry_after            seconds, in Retry-After
  region                 in x-amz-bucket-region and <Region>
  endpoint               in <Endpoint>
  location               in Location
  reset                  true: reset before anything is done
  listing                true: a listing in place of a session
  delete_errors          {regular expression: code} of keys of a DeleteObjects
do, to any response (N counts bytes of the sent body):
  delay_ms               wait before the response
  hold                   true: wait before the response until the faults are removed
  early                  true: respond before the request's body is read, then close
  continue               number of 100 (Continue) responses, also without Expect
  headers                {name: value}, null removes a header
  content_length         a wrong Content-Length
  corrupt_at             invert the byte at N
  extra                  send N bytes more than Content-Length
  chunked                true or N: send chunks (of N bytes)
  reset_at, close_at     reset or close after N bytes
  stall_at, stall_s      stop after N bytes, for ever or for stall_s seconds
  drip                   send N bytes per second
  close                  true: close the connection after the response, unannounced
"""

import random
import re
import threading

MATCH = {"method", "bucket", "key", "query", "operation", "range"}
DO = {"status", "code", "message", "fields", "body", "retry_after", "region", "endpoint",
      "location", "reset", "listing", "delete_errors", "delay_ms", "hold", "early", "continue",
      "headers", "content_length", "corrupt_at", "extra", "chunked", "reset_at",
      "close_at", "stall_at", "stall_s", "drip", "close"}


class Faults:
    """Any thread may call any method."""

    def __init__(self, seed=1):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.faults = []
        self.next_id = 1

    def add(self, fault):
        """Add a fault and return the fault's id.  Raises ValueError for unknown words."""
        unknown = (set(fault) - {"match", "skip", "count", "rate", "do"} |
                   set(fault.get("match", {})) - MATCH | set(fault.get("do", {})) - DO)
        if unknown or not fault.get("do"):
            raise ValueError(f"unknown words in a fault: {sorted(unknown)}")
        compiled = {name: re.compile(text, re.S)
                    for name, text in fault.get("match", {}).items()}
        with self.lock:
            number, self.next_id = self.next_id, self.next_id + 1
            self.faults.append({"id": number, "match": compiled, "do": fault["do"],
                                "skip": fault.get("skip", 0), "done": 0,
                                "rate": fault.get("rate", 1),
                                "left": fault.get("count", 1)})
        return number

    def clear(self):
        with self.lock:
            self.faults.clear()

    def has(self, do):
        with self.lock:
            return any(fault["do"] is do for fault in self.faults)

    def take(self, request):
        """Return the actions for this request, {} for none."""
        with self.lock:
            for fault in self.faults:
                if fault["left"] == 0 or not all(
                        regex.search(getattr(request, name))
                        for name, regex in fault["match"].items()):
                    continue
                if fault["skip"] > 0:
                    fault["skip"] -= 1
                    continue
                if self.random.random() >= fault["rate"]:
                    continue
                fault["done"] += 1
                if fault["left"] is not None:
                    fault["left"] -= 1
                return fault["do"]
        return {}

    def show(self):
        with self.lock:
            return [{"id": fault["id"], "done": fault["done"], "left": fault["left"]}
                    for fault in self.faults]
