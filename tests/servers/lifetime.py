# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the servers for tests: a server prints its addresses in a line of
JSON, and runs until a SIGTERM or until the starting process has ended."""

import ctypes
import json
import os
import random
import select
import signal
import socket
import stat
import subprocess
import sys

LOOPBACK = "127.0.0.1"


def lowest_ephemeral_port():
    """Return the lowest port that the kernel chooses for connections and for port 0."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return int(file.read().split()[0])
    except OSError:
        return 32768


def is_free(port):
    with socket.socket() as sock:
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(beside=()):
    """Return a free port such that port + n is free too for each n of beside, for programs
    without support for port 0.  The ports are not ephemeral, so connections of other
    processes cannot take the ports before the program does.  If nearly all ports are
    ephemeral, the port is ephemeral too."""
    lowest = lowest_ephemeral_port()
    end = (lowest if lowest > 2048 else 65536) - max(beside, default=0)
    start = 10000 if end > 12000 else 1024
    while True:
        port = random.randrange(start, end)
        if all(is_free(port + n) for n in (0, *beside)):
            return port


def make_certificate(directory, domain="s3.localhost"):
    """Return the files (certificate, key) for the loopback address and the domain; the
    certificate is self-signed."""
    paths = os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem")
    names = f"DNS:localhost,DNS:{domain},DNS:*.{domain},IP:{LOOPBACK}"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj",
                    "/CN=localhost", "-addext", f"subjectAltName={names}",
                    "-out", paths[0], "-keyout", paths[1]],
                   check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return paths


def print_facts(**facts):
    print(json.dumps(facts), flush=True)


class Ended(Exception):
    """Raised by SIGTERM and SIGINT after a call of end_on_signals."""


def on_signals(action):
    for each in signal.SIGTERM, signal.SIGINT:
        signal.signal(each, action)


def end_on_signals():
    def handler(_number, _frame):
        on_signals(signal.SIG_IGN)  # do not disturb the cleanup
        raise Ended
    on_signals(handler)


def stay(children=()):
    """Wait until standard input closes (a pipe or a terminal), a child ends, or Ended is
    raised."""
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
    """Start a child in a separate process group; the child dies with this process."""
    libc = ctypes.CDLL(None)

    def die_with_parent():
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    with open(log, "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=output, start_new_session=True,
                                preexec_fn=die_with_parent, **options)


def end(child, seconds=2):
    """Kill a child and the child's process group."""
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
