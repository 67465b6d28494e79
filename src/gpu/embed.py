#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write C sources as one C string constant: embed.py NAME OUTPUT INPUT..."""
import sys

name, output, inputs = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(output, "w") as out:
    out.write(f"extern const char {name}[];\nconst char {name}[] =\n")
    for path in inputs:
        with open(path) as source:
            for line in source:
                if not line.startswith('#include "'):  # the inputs include each other
                    text = line.rstrip("\n").replace("\\", "\\\\").replace('"', '\\"')
                    out.write(f'    "{text}\\n"\n')
    out.write("    ;\n")
