#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build kvtier's wheel, install the wheel where no compiler can be found, and run
`kvtier doctor` from it.

The new virtual environment sees a PATH with python3 alone and no package index.  The
output has the size of the wheel, and the seconds from `pip install` to the end of the first
`kvtier doctor`.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import progress
import workplace
from progress import Step

STEPS = [
    Step("building the wheel", 20, "10 MB of downloads, 15 s of CPU time"),
    Step("making a virtual environment", 12),
    Step("pip install", 2.5),
    Step("kvtier doctor", 0.4),
    Step("checking what is loaded", 0.4),
]
# Programs of a build, which the installation must not need.
BUILDERS = ("cc", "gcc", "g++", "clang", "c++", "ld", "as", "make", "ninja", "meson",
            "cmake", "pkg-config")
# Libraries of the system that the wheel may use; all others must be inside.
SYSTEMS = {"libssl.so.3", "libcrypto.so.3", "libc.so.6", "libm.so.6", "librt.so.1",
           "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
LOAD = """
import json, importlib.metadata, os, sys
import kvtier._lib
kvtier._lib.lib()
with open("/proc/self/maps") as f:
    paths = sorted({line.split()[-1] for line in f if ".so" in line})
points = importlib.metadata.entry_points()
group = (points.select(group="vllm.general_plugins") if hasattr(points, "select")
         else points["vllm.general_plugins"])
print(json.dumps({"paths": paths, "package": os.path.dirname(kvtier.__file__),
                  "plugins": [p.value for p in group]}))
"""


class Failed(Exception):
    pass


def needed(path):
    """Return the names of the libraries that an ELF file is linked to."""
    done = subprocess.run(["objdump", "-p", path], check=True, text=True,
                          stdout=subprocess.PIPE)
    return {line.split()[1] for line in done.stdout.splitlines()
            if line.split()[:1] == ["NEEDED"]}


def run(env, *command):
    done = subprocess.run(command, env=env, cwd=env["HOME"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def check(condition, text):
    if not condition:
        raise Failed(text)


def bare_environment(directory):
    """Return the environment of a user without compiler, packages of headers or index."""
    programs = os.path.join(directory, "bin")
    home = os.path.join(directory, "home")
    os.mkdir(programs)
    os.mkdir(home)
    os.symlink(os.path.realpath(sys.executable), os.path.join(programs, "python3"))
    found = [name for name in BUILDERS if shutil.which(name, path=programs)]
    check(not found, f"{found} can be found")
    return {"PATH": programs, "HOME": home, "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def try_wheel(wheel, directory):
    """Install the wheel and use it; return the figures."""
    env = bare_environment(directory)
    venv = os.path.join(directory, "venv")
    with progress.step("making a virtual environment"):
        run(env, "python3", "-m", "venv", venv)
    programs = os.path.join(venv, "bin")
    env["PATH"] = programs + os.pathsep + env["PATH"]
    store = os.path.join(directory, "store")
    os.mkdir(store)
    begin = time.monotonic()
    with progress.step("pip install"):
        run(env, os.path.join(programs, "pip"), "install", wheel)
    installed = time.monotonic()
    kvtier = shutil.which("kvtier", path=env["PATH"])
    check(kvtier == os.path.join(programs, "kvtier"), f"kvtier on PATH is {kvtier}")
    with progress.step("kvtier doctor"):
        said = run(env, kvtier, "doctor", "--set", f"remote_url=fs://{store}",
                   "--set", "max_local_cpu_size=0.5")
    end = time.monotonic()
    with progress.step("checking what is loaded"):
        loaded = json.loads(run(env, os.path.join(programs, "python3"), "-c", LOAD))
        package = loaded["package"]
        check(package.startswith(venv), f"the package is {package}")
        check(os.path.join(package, "libkvtier.so") in loaded["paths"],
              f"the library is not that of the wheel: {loaded['paths']}")
        check(loaded["plugins"] == ["kvtier.plugin:register"],
              f"the plug-ins of vLLM are {loaded['plugins']}")
        source = os.path.join(workplace.REPOSITORY, "python", "kvtier")
        lacks = {name for name in os.listdir(source)
                 if name.endswith(".py")} - set(os.listdir(package))
        check(not lacks, f"the wheel lacks {sorted(lacks)}: name them in python/meson.build")
        version = run(env, kvtier, "version").split()[-1]
        check(f"-{version}-" in os.path.basename(wheel),
              f"the command is of version {version}")
        for name in ("libkvtier.so", "kvtier", "kvtier-gds-probe"):
            more = needed(os.path.join(package, name)) - SYSTEMS - {"libkvtier.so"}
            check(not more, f"{name} needs {sorted(more)}")
        check(os.access(os.path.join(package, "kvtier-gds-probe"), os.X_OK),
              "kvtier-gds-probe is no program")
    return {"wheel": os.path.basename(wheel), "wheel_bytes": os.path.getsize(wheel),
            "install_s": round(installed - begin, 2),
            "doctor_s": round(end - installed, 2), "doctor": said.strip().splitlines()}


def main():
    parser = argparse.ArgumentParser(prog="demo.sh --wheel", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE too")
    args = parser.parse_args()
    progress.announce("two cores", STEPS)
    with tempfile.TemporaryDirectory(prefix="demo-wheel-") as directory:
        with progress.step("building the wheel"):
            done = subprocess.run([os.path.join(workplace.REPOSITORY, "scripts", "make-wheel"),
                                   os.path.join(directory, "dist")],
                                  stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return done.returncode
        try:
            result = try_wheel(done.stdout.splitlines()[-1], directory)
        except Failed as e:
            print(f"demo.sh: {e}", file=sys.stderr)
            return 1
    print("\n".join(["", *("  " + line for line in result["doctor"]), "",
                     f"  {result['wheel']}",
                     f"  {result['wheel_bytes'] / 1e6:10.2f} MB",
                     f"  {result['install_s']:10.2f} s  pip install",
                     f"  {result['doctor_s']:10.2f} s  first kvtier doctor", ""]))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
