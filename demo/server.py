# SPDX-License-Identifier: Apache-2.0
"""Start, watch and stop a vLLM OpenAI server on 127.0.0.1, and send requests.

Needs only Python's standard library.  Each server is a process group.  Leaving the `with`
block kills the whole group, also after an exception or Ctrl-C.  The kernel stops the server
if the parent process is killed.
"""
import collections
import ctypes
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import time

REQUEST_TIMEOUT_S = 600
PR_SET_PDEATHSIG = 1

Answer = collections.namedtuple(
    "Answer", "token_ids logprobs ttft_s total_s finish_reason")


class ServerError(Exception):
    """The server did not start, died, or refused a request."""


def free_port():
    """A free port that the kernel does not give to another program: the server binds the
    port only after seconds."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
            first, last = map(int, f.read().split())
    except OSError:  # some sandboxes hide the file
        first, last = 32768, 60999
    ports = [*range(10000, first), *range(last + 1, 65536)]
    for port in random.sample(ports, min(len(ports), 100)):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def plain_environment():
    """Return this process's environment without the settings of kvtier."""
    return {k: v for k, v in os.environ.items()
            if not k.startswith(("LMCACHE_", "KVTIER_"))}


def install_signal_handlers():
    """Let SIGTERM and SIGHUP unwind the stack, so that servers are stopped."""
    def quit_cleanly(signum, _frame):
        raise SystemExit(128 + signum)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, quit_cleanly)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def group_is_alive(pgid):
    """Return True if a process group has a member that is no zombie."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as f:
                state, _, group = f.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == pgid and state not in "ZX":
            return True
    return False


def last_lines(path, count=25):
    try:
        with open(path, errors="replace") as f:
            return "".join(collections.deque(f, count))
    except OSError as e:
        return f"({e})\n"


class Server:
    """A vLLM server; use it in a `with` statement.

    python      the interpreter of an environment with vLLM
    model       the model's directory
    log         the file to which the server's output is appended
    transfer    the value of --kv-transfer-config (a dict), or None
    args, env   more arguments and environment variables
    progress    callback during the start; the argument is the seconds waited so far

    Subclasses for other servers replace command().
    """
    name = "vLLM"
    health = "/health"
    start_timeout_s = 400
    stop_timeout_s = 20
    shutdown_timeout_s = 10  # vLLM's timeout for its processes

    def __init__(self, python, model, log, transfer=None, args=(), env=None,
                 progress=None):
        self.python = python
        self.model = model
        self.log = log
        self.transfer = transfer
        self.args = list(args)
        self.env = dict(env or {})
        self.progress = progress or (lambda seconds: None)
        self.port = None
        self.process = None
        self.start_s = None

    def command(self):
        # Without a timeout vLLM ends its processes with SIGKILL.
        command = [
            self.python, "-m", "vllm.entrypoints.openai.api_server",
            "--model", self.model, "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(self.port),
            "--shutdown-timeout", str(self.shutdown_timeout_s),
            "--enforce-eager", "--dtype", "bfloat16"]
        if self.transfer:
            command += ["--kv-transfer-config", json.dumps(self.transfer)]
        return command + self.args

    def environment(self):
        env = plain_environment()
        env.update(
            HF_HUB_OFFLINE="1",
            TRANSFORMERS_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1",
            VLLM_CPU_KVCACHE_SPACE="1",
            OMP_NUM_THREADS=str(len(os.sched_getaffinity(0))),
            TOKENIZERS_PARALLELISM="false",
            NO_PROXY="127.0.0.1",
            no_proxy="127.0.0.1")
        env.update(self.env)
        return env

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_exception):
        self.stop()

    def start(self):
        self.port = free_port()
        began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), env=self.environment(), cwd="/",
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_parent)
        try:
            self.wait_ready(began)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - began

    def wait_ready(self, began):
        while True:
            waited = time.monotonic() - began
            self.progress(waited)
            if self.process.poll() is not None:
                raise ServerError(
                    "%s ended with status %d while it started; the end of "
                    "%s:\n%s" % (self.name, self.process.returncode, self.log,
                                 last_lines(self.log)))
            if waited > self.start_timeout_s:
                raise ServerError(
                    "%s is not ready after %d s; the end of %s:\n%s" %
                    (self.name, waited, self.log, last_lines(self.log)))
            try:
                self.get(self.health, timeout=5)
                return
            except (OSError, ServerError, http.client.HTTPException):
                time.sleep(0.25)

    def stop(self):
        """Stop the server with SIGTERM, as an operator does; then kill the rest of the
        process group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.stop_timeout_s
        while time.monotonic() < deadline:
            self.process.poll()
            if not group_is_alive(self.process.pid):
                break
            time.sleep(0.05)
        self.kill()

    def kill(self):
        """Kill the whole process group."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None

    # -- requests

    def connect(self, timeout=REQUEST_TIMEOUT_S):
        return http.client.HTTPConnection("127.0.0.1", self.port,
                                          timeout=timeout)

    def request(self, method, path, body=None, timeout=REQUEST_TIMEOUT_S):
        connection = self.connect(timeout)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body),
                {"Content-Type": "application/json", "Connection": "close"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise ServerError(f"{path}: HTTP {response.status}: {text[:500]}")
        return text

    def get(self, path, timeout=REQUEST_TIMEOUT_S):
        return self.request("GET", path, timeout=timeout)

    def tokenize(self, text):
        body = {"model": "model", "prompt": text}
        return json.loads(self.request("POST", "/tokenize", body))["tokens"]

    def send_completion(self, connection, token_ids, max_tokens, engine=None,
                        **more):
        """Send a streaming request.  engine: the rank of the data-parallel engine, or None;
        more: further members of the request."""
        headers = {"Content-Type": "application/json"}
        if engine is not None:
            headers["X-data-parallel-rank"] = str(engine)
        body = {"model": "model", "prompt": token_ids, "stream": True,
                "max_tokens": max_tokens, "temperature": 0, "logprobs": 5,
                "return_token_ids": True, "ignore_eos": True, **more}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)

    def open_completion(self, token_ids, max_tokens, **more):
        """Send a streaming request; return (connection, response)."""
        connection = self.connect()
        try:
            self.send_completion(connection, token_ids, max_tokens, **more)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError("/v1/completions: HTTP %d: %s" % (
                    response.status, response.read(500).decode()))
        except BaseException:
            connection.close()
            raise
        return connection, response

    def complete(self, token_ids, max_tokens=32, **more):
        """Return the greedy continuation of a prompt of token ids."""
        began = time.monotonic()
        ids, logprobs, ttft, finish = [], [], None, None
        connection, response = self.open_completion(token_ids, max_tokens,
                                                    **more)
        try:
            for event in events(response):
                if "error" in event:
                    raise ServerError("the server answered: %s" %
                                      event["error"])
                for choice in event.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
                    if not choice.get("token_ids"):
                        continue
                    if ttft is None:
                        ttft = time.monotonic() - began
                    ids += choice["token_ids"]
                    logprobs += list(zip(
                        choice["logprobs"]["token_logprobs"],
                        choice["logprobs"]["top_logprobs"]))
        finally:
            connection.close()
        if finish is None or ttft is None:
            raise ServerError("the answer ended before it was complete")
        if any(logprob is None for logprob, _ in logprobs):
            raise ServerError("the answer has log probabilities that are no numbers: the model "
                              "computed NaN")
        return Answer(ids, logprobs, ttft, time.monotonic() - began, finish)

    def score(self, token_ids, n):
        """Return the log probabilities of the last n tokens, each given the previous
        tokens.  vLLM computes prompt log probabilities without a cache."""
        body = {"model": "model", "prompt": token_ids, "max_tokens": 1,
                "temperature": 0, "prompt_logprobs": 0}
        answer = json.loads(self.request("POST", "/v1/completions", body))
        scores = answer["choices"][0]["prompt_logprobs"][-n:]
        return [score[str(token)]["logprob"]
                for score, token in zip(scores, token_ids[-n:])]

    def reset_prefix_cache(self, external=False):
        """Reset vLLM's own prefix cache (external: kvtier's cache too); needs
        VLLM_SERVER_DEV_MODE=1."""
        path = "/reset_prefix_cache?reset_external=%s" % str(external).lower()
        if not json.loads(self.request("POST", path))["success"]:
            raise ServerError("vLLM did not reset its prefix cache")

    def metrics(self):
        """Return every sample of /metrics, summed over the labels."""
        sums = collections.defaultdict(float)
        sample = re.compile(r"([\w:]+)(?:\{.*\})? (\S+)")
        for line in self.get("/metrics", timeout=60).splitlines():
            match = sample.fullmatch(line)
            if match:
                sums[match[1]] += float(match[2])
        return sums

    def settled_metrics(self, name, at_least, timeout=10):
        """Return the metrics when `name` has reached a value: vLLM publishes with delay."""
        deadline = time.monotonic() + timeout
        while True:
            metrics = self.metrics()
            if metrics[name] >= at_least or time.monotonic() > deadline:
                return metrics
            time.sleep(0.2)


def events(response):
    """Yield the JSON objects of a stream of server-sent events."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


def same_answer(a, b):
    """Return True if tokens and log probabilities are equal bit for bit."""
    return a.token_ids == b.token_ids and a.logprobs == b.logprobs


def max_logprob_difference(a, b):
    """Return the largest difference before the first different token."""
    largest = 0.0
    for i, (x, y) in enumerate(zip(a.logprobs, b.logprobs)):
        if a.token_ids[i] != b.token_ids[i]:
            break
        largest = max(largest, abs(x[0] - y[0]))
    return largest
