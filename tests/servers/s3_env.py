# SPDX-License-Identifier: Apache-2.0
"""Where scripts/s3-env has put its programs."""

import os
import shutil
import subprocess

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "..", "..", "scripts", "s3-env")


def find(program):
    """Its path, there or in $PATH; None: it is not installed."""
    done = subprocess.run([SCRIPT, "--check"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    path = os.path.join(done.stdout.strip(), "bin", program)
    return path if done.returncode == 0 and os.path.exists(path) else shutil.which(program)
