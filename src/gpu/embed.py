#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write C sources as one text that a program carries: embed.py NAME OUTPUT INPUT..."""
import sys

name, output, inputs = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(output, "w") as out:
    out.write(f"extern const char {name}[];\nconst char {name}[] =\n")
    for path in inputs:
        with open(path) as source:
            for line in source:
                if not line.startswith('#include "'):  # they follow one another
                    text = line.rstrip("\n").replace("\\", "\\\\").replace('"', '\\"')
                    out.write(f'    "{text}\\n"\n')
    out.write("    ;\n")
