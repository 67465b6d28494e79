# SPDX-License-Identifier: Apache-2.0
"""The command `kvtier` of a wheel: run the program that lies beside this file.

The program is linked to the libkvtier.so beside it and knows that library by its own
directory, so the program cannot lie in the environment's bin directory.
"""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvtier")
    os.execv(program, ["kvtier", *sys.argv[1:]])
