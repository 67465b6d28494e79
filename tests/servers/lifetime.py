# SPDX-License-Identifier: Apache-2.0
"""What the servers for tests have in common: they say in one line of JSON where they
are, and live until a SIGTERM or until who started them has gone."""

import ctypes
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys

LOOPBACK = "127.0.0.1"


def free_port(below=65536):
    """A port that nobody has now: for programs that cannot take port 0."""
    while True:
        with socket.socket() as sock:
            sock.bind((LOOPBACK, 0))
            port = sock.getsockname()[1]
        if port < below:
            return port


def make_certificate(directory, domain="s3.localhost"):
    """(certificate, key) for the loopback address and the domain; the first is its
    own authority."""
    paths = os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem")
    names = f"DNS:localhost,DNS:{domain},DNS:*.{domain},IP:{LOOPBACK}"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj",
                    "/CN=localhost", "-addext", f"subjectAltName={names}",
                    "-out", paths[0], "-keyout", paths[1]],
                   check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return paths


def say(**facts):
    print(json.dumps(facts), flush=True)


class Ended(Exception):
    """Raised by SIGTERM and SIGINT, once end_on_signals was called."""


def on_signals(action):
    for each in signal.SIGTERM, signal.SIGINT:
        signal.signal(each, action)


def end_on_signals():
    def handler(_number, _frame):
        on_signals(signal.SIG_IGN)  # what is ending is not disturbed
        raise Ended
    on_signals(handler)


def stay(children=()):
    """Until standard input closes, where that is a pipe or a terminal, or a child has
    ended, or Ended is raised."""
    watched = select.poll()
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0):
        watched.register(0, select.POLLIN)
    while True:
        ended = [child for child in children if child.poll() is not None]
        for child in ended:
            print(f"{child.args[0]} has ended with {child.returncode}", file=sys.stderr)
        if ended or watched.poll(200) and not os.read(0, 4096):
            on_signals(signal.SIG_IGN)
            return


def spawn(command, log, **options):
    """A child in a process group of its own, which does not outlive this one."""
    libc = ctypes.CDLL(None)

    def die_with_parent():
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    with open(log, "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=output, start_new_session=True,
                                preexec_fn=die_with_parent, **options)


def end(child, seconds=2):
    """End a child and what it started."""
    for number, patience in (signal.SIGTERM, seconds), (signal.SIGKILL, None):
        if child.poll() is None:
            os.killpg(child.pid, number)
            try:
                child.wait(patience)
            except subprocess.TimeoutExpired:
                pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
