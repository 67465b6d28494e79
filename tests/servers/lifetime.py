# SPDX-License-Identifier: Apache-2.0
"""What the servers for tests have in common: they say in one line of JSON where they
are, and live until a SIGTERM or until who started them has gone."""

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
    """The kernel takes ports from here on for connections and for port 0."""
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
    """Return a free port such that port + n is free too for each n of beside.  For programs
    that cannot take port 0.  The ports are not ephemeral: no connection of another process
    takes one of them before the program does.  If nearly all ports are ephemeral, the port
    is ephemeral too."""
    lowest = lowest_ephemeral_port()
    end = (lowest if lowest > 2048 else 65536) - max(beside, default=0)
    start = 10000 if end > 12000 else 1024
    while True:
        port = random.randrange(start, end)
        if all(is_free(port + n) for n in (0, *beside)):
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
