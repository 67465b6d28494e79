# SPDX-License-Identifier: Apache-2.0
"""The command `kvtier` of a wheel: run the program `kvtier` in the directory of this file.

The program loads the libkvtier.so in the program's own directory, so the program cannot be in
the environment's bin directory.
"""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvtier")
    os.execv(program, ["kvtier", *sys.argv[1:]])
