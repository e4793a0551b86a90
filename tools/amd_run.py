#!/usr/bin/env python3
"""Runs the program of a HIP build in an emulator of RDNA3, without a card and without AMD's runtime.

  tools/amd_run.py --tinygrad DIR [--target gfx1100] [--ridge build/hip/ridge] [--compare] [--results FILE] -- run -m MODEL --device hip ...

What stands behind -- are the program's own arguments. Its device code runs in the emulator that tools/amd_emulate.py
names; the runtime (memory, streams, graphs) is tools/amd/runtime.cpp, which the program finds in the place of libamdhip64. --compare
runs it on the CPU too, and ends with 1 where the two texts differ. A model of some hundred thousand parameters takes
seconds a token. It does not show speed, missing waits, caches between blocks, or AMD's runtime.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import amd_emulate  # noqa: E402
import hip_compile  # noqa: E402
from amd.families import HARDWARE_LDS  # noqa: E402

ROOT = amd_emulate.ROOT


def library_of(program):
    """(file name, path) of the runtime that the program was linked with."""
    lines = amd_emulate.run_tool(["ldd", program])
    found = re.search(r"(libamdhip64\.so\.\d+) => (/\S+)", lines)
    amd_emulate.need(found, f"{program} is not linked with libamdhip64: build the preset hip")
    return found[1], found[2]


def compile_runtime(program, folder):
    """The runtime under the name that the program asks for, its functions with the versions of AMD's library."""
    name, real = library_of(program)
    versions = collections.defaultdict(list)
    for line in amd_emulate.run_tool(["objdump", "-T", real]).splitlines():
        if found := re.search(r"\.text\s+\S+\s+(hip_\S+)\s+(\w+)$", line):
            versions[found[1]].append(found[2])
    script = folder / "versions"
    script.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items()), encoding="utf-8")
    amd_emulate.run_tool(["c++", "-std=c++20", "-O2", "-Wall", "-shared", "-fPIC", "-D__HIP_PLATFORM_AMD__", ROOT / "tools/amd/runtime.cpp",
                          f"-Wl,--version-script={script}", f"-Wl,-soname,{name}", "-o", folder / name])


def run_program(options, folder, launcher, own):
    """(standard output, records of launches, exit status). `folder` has the runtime, `own` is this run's."""
    config, log = own / "config.json", own / "launches.jsonl"
    config.write_text(json.dumps({"objects": [], "symbols": {}, "tinygrad": str(options.tinygrad), "seed": options.seed, "lds": HARDWARE_LDS,
                                  "target": options.target}), encoding="utf-8")
    log.write_text("", encoding="utf-8")
    environment = {**amd_emulate.environment_of(launcher, config, HARDWARE_LDS), "LD_LIBRARY_PATH": str(folder), "RIDGE_AMD_LOG": str(log),
                   "RIDGE_AMD_TARGET": options.target}
    done = subprocess.run([options.ridge, *options.arguments], env=environment, stdout=subprocess.PIPE, check=False)
    return done.stdout, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()], done.returncode


def row(options, text, records, equal):
    launches = [r for r in records if "instructions" in r]
    command = ["tools/amd_run.py", "--tinygrad", "DIR", "--target", options.target, "--seed", str(options.seed), *["--compare"] * options.compare,
               "--", *options.arguments]
    return {**amd_emulate.provenance("amd_program", command, options),
            "kernels": len({r["kernel"] for r in launches}), "launches": len(launches), "instructions": sum(r["instructions"] for r in launches),
            "lds_bytes": max((r["lds"] for r in launches), default=0), "text": text.decode(errors="replace"), "equal": equal}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinygrad", type=pathlib.Path, required=True, help="a checkout of tinygrad's repository")
    parser.add_argument("--target", default="gfx1100", choices=hip_compile.ARCHITECTURES)
    parser.add_argument("--ridge", type=pathlib.Path, default=ROOT / "build/hip/ridge")
    parser.add_argument("--seed", type=int, default=1, help="of the order of waves and blocks")
    parser.add_argument("--compare", action="store_true", help="with what the CPU prints")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/amd", help="folder of libraries and logs")
    parser.add_argument("--results", type=pathlib.Path, help="a row is appended here")
    parser.add_argument("arguments", nargs="+", help="of the program")
    options = parser.parse_args(arguments)
    options.tinygrad, options.ridge = options.tinygrad.resolve(), options.ridge.resolve()
    return options


def main(arguments):
    options = parse(arguments)
    amd_emulate.check_tools(options.tinygrad, options.ridge)
    folder = (options.build / "runtime").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    compile_runtime(options.ridge, folder)
    launcher = amd_emulate.compile_launcher(folder)
    with tempfile.TemporaryDirectory() as own:  # several may run at a time
        text, records, code = run_program(options, folder, launcher, pathlib.Path(own))
    sys.stdout.buffer.write(text)
    equal = None
    if options.compare and code == 0:
        on_cpu = [re.sub(r"^hip(:0)?$", "cpu", word) for word in options.arguments]
        equal = subprocess.run([options.ridge, *on_cpu], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout == text
    made = row(options, text, records, equal)
    print(f"\n{options.target}: {made['launches']} launches of {made['kernels']} kernels, {made['instructions']} instructions; the program ended "
          f"with {code}" + {None: "", True: "; the CPU prints the same", False: "; THE CPU PRINTS ANOTHER TEXT"}[equal], file=sys.stderr)
    for error in (r["error"] for r in records if "error" in r):
        print(f"  {error}", file=sys.stderr)
    if options.results and code == 0 and equal is not False:
        with open(options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(made, separators=(",", ":")) + "\n")
    return code or int(equal is False)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except amd_emulate.Stop as stop:
        print(f"amd_run: {stop}", file=sys.stderr)
        sys.exit(stop.code)
