# SPDX-License-Identifier: Apache-2.0
"""The programs that scripts/s3-env has installed."""

import os
import shutil
import subprocess

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "..", "..", "scripts", "s3-env")


def find(program):
    """Return the path of a program, installed by s3-env or in $PATH; None: not installed."""
    done = subprocess.run([SCRIPT, "--check"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    path = os.path.join(done.stdout.strip(), "bin", program)
    return path if done.returncode == 0 and os.path.exists(path) else shutil.which(program)
