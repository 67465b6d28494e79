# SPDX-License-Identifier: Apache-2.0
"""What s3.py does wrong on purpose.  A fault is
    {"match": {...}, "skip": 0, "count": 1, "do": {...}}
and stands until it was done count times (null: for ever), after the first skip
requests that match; with a "rate" below 1 to so many of them, drawn from the server's
seed.  The first fault of the list that matches a request is done.

match (regular expressions that must be found; what is left out matches all):
  method, bucket, key, query, operation (PutObject, CreateSession, ...), range (of the
  header Range)
do, instead of the operation:
  status, code, message, fields {name: text}  an error, also with status 200
  body                   text in place of the XML
  retry_after            seconds, in Retry-After
  region                 in x-amz-bucket-region and <Region>
  endpoint               in <Endpoint>
  location               in Location
  reset                  true: reset before anything is done
  listing                true: a listing in place of a session
  delete_errors          {regular expression: code} of keys of a DeleteObjects
do, to the answer, whichever it is (N counts bytes of the body as sent):
  delay_ms               wait before it
  hold                   true: wait before it until the faults are cleared
  early                  true: send it before the request's body is read, then close
  continue               how many times 100 (Continue) is sent, asked for or not
  headers                {name: value}, null leaves one out
  content_length         this length in place of the true one
  corrupt_at             turn the byte at N
  extra                  N bytes more than Content-Length says
  chunked                true or N: in chunks (of N bytes)
  reset_at, close_at     reset or close after N bytes
  stall_at, stall_s      stop after N bytes, for ever or for so long
  drip                   N bytes a second
  close                  true: close the connection after it without having said so
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
    """All of it may be called from any thread."""

    def __init__(self, seed=1):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.faults = []
        self.next_id = 1

    def add(self, fault):
        """Its id.  Raises ValueError for words that mean nothing here."""
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
        """What to do with this request, {} for nothing."""
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
