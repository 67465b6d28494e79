# SPDX-License-Identifier: Apache-2.0
"""Host names for the loopback, valid only in this process and the process's children."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile

MARK = "KVTIER_TEST_HOSTS"


def resolves(name):
    try:
        return socket.gethostbyname(name) == "127.0.0.1"
    except OSError:
        return False


def name_loopback(name):
    """Make `name` resolve to 127.0.0.1.

    If `name` does not resolve to 127.0.0.1, restart the program in a mount namespace with a
    longer /etc/hosts.  Return true if `name` resolves, false if the process may not create a
    mount namespace.
    """
    if resolves(name) or os.environ.get(MARK) or not shutil.which("unshare"):
        return resolves(name)
    with open("/etc/hosts") as file:
        text = file.read()
    handle, path = tempfile.mkstemp(prefix="hosts-")
    with open(handle, "w") as file:
        file.write(f"{text}\n127.0.0.1 {name}\n")
    os.chmod(path, 0o644)
    os.environ[MARK] = "1"
    script = f'mount --bind {path} /etc/hosts; rm {path}; exec "$@"'
    may = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    again = [sys.executable, *sys.orig_argv[1:]]
    if subprocess.run([*may, "true"], stderr=subprocess.DEVNULL).returncode:
        os.unlink(path)
        return False
    os.execvp("unshare", [*may, "sh", "-c", script, "sh", *again])
