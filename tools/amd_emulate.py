#!/usr/bin/env python3
"""Runs the device code that clang makes for an AMD GPU in an emulator of RDNA3, through the tests of tests/gpu.

  tools/amd_emulate.py --tinygrad DIR [--target gfx1100] [--family NAME]... [--results FILE]

Nothing runs on AMD hardware: the emulator is that of tinygrad's repository (test/mockgpu/amd, which its wheel does not
have), made from AMD's manual. DIR is a checkout of it; commit a9069c177a9d of https://github.com/tinygrad/tinygrad is the
one that this script was written for.

The files of a family are compiled to code objects (clang++-19, lld-19, rocm-device-libs, libamdhip64-dev); the test binary
test_emulated, built before, hands each launch to the emulator by its kernel's name. Memory, streams and graphs stay the
emulated ones, guard pages included. Waves and blocks run in shuffled order. It does not show speed, missing waits, caches
or the runtime. Ends with 0 when every test passed and every kernel that has a code object ran there.
"""
import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

sys.dont_write_bytecode = True
import hip_compile  # noqa: E402
from amd.code_object import CodeObject  # noqa: E402
from amd.families import FAMILIES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLOW_FILES = ("tensor_gemm_cuda", "f16_gemv_cuda", "expert_gemm_cuda")  # -O3 takes minutes
USAGE_ERROR, MISSING, FAILED = 2, 6, 1


class Stop(Exception):
    """Ends the program with a code and a message."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def need(condition, what):
    if not condition:
        raise Stop(MISSING, what)


def check_tools(tinygrad, binary):
    for program in (hip_compile.COMPILER, "ld.lld-19", "clang", "nm", "cc"):
        need(shutil.which(program), f"{program} is missing: apt-get install clang-19 lld-19 clang binutils gcc")
    need(pathlib.Path("/usr/include/hip/hip_runtime.h").exists(), "HIP's headers are missing: apt-get install libamdhip64-dev")
    need((tinygrad / "test/mockgpu/amd/emu.py").exists(),
         f"{tinygrad} is no checkout of tinygrad with test/mockgpu/amd/emu.py; its wheel has no emulator")
    need(binary.exists(), f"{binary} is missing: cmake --build --preset release --target test_emulated")


def python_library():
    name = sysconfig.get_config_var("INSTSONAME") or ""
    for folder in (sysconfig.get_config_var("LIBDIR"), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"):
        if ".so" in name and folder and (pathlib.Path(folder) / name).exists():
            return pathlib.Path(folder) / name
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    library = pathlib.Path(f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libpython{version}.so.1.0")
    need(library.exists(), f"this Python has no shared library: apt-get install libpython{version}, or run another one")
    return library


def run_tool(command, **kwargs):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **kwargs)
    if done.returncode:
        raise Stop(FAILED, f"{command[0]} failed\n{done.stderr}")
    return done.stdout


def compile_object(source, target, build):
    """The code object of a device file, of the folder `build` where it was made from the same text before."""
    level = "-O1" if source.stem in SLOW_FILES else "-O3"
    command = hip_compile.command(source.relative_to(ROOT), target, level)
    text = run_tool([*command[:-2], "-E", "-P", command[-1]])
    key = hashlib.sha256((text + level).encode()).hexdigest()[:16]
    made = build / f"{source.stem}-{target}-{key}.co"
    if not made.exists():
        print(f"compiling {source.name} for {target}, {level}", flush=True)
        run_tool([*command, "-o", made.with_suffix(".part")])
        made.with_suffix(".part").rename(made)
    return {"path": made, "file": str(source.relative_to(ROOT)), "level": level}


def compile_launcher(build):
    library = python_library()
    made = build / "launcher.so"
    run_tool(["cc", "-std=gnu17", "-O2", "-Wall", "-shared", "-fPIC", ROOT / "tools/amd/launcher.c", "-o", made, library,
              f"-Wl,-rpath,{library.parent}"])
    return made


def emulator_version(tinygrad):
    return "tinygrad, emu.py " + hashlib.sha256((tinygrad / "test/mockgpu/amd/emu.py").read_bytes()).hexdigest()[:12]


def commit():
    name = run_tool(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"]).strip()
    return name + ("-dirty" if run_tool(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"]).strip() else "")


def symbols(binary):
    """Offsets of the project's functions in the test binary."""
    lines = (line.split() for line in run_tool(["nm", binary]).splitlines())
    return {line[2]: int(line[0], 16) for line in lines if len(line) == 3 and line[1] in "tTwW" and line[2].startswith("_ZN5ridge")}


def demangled(names):
    """Without the names that HIP gives to types of CUDA."""
    text = run_tool(["c++filt"], input="\n".join(names))
    return [re.sub(r"HIP_vector_type<(?:unsigned )?(\w+), (\d)u>", r"\1\2", line) for line in text.splitlines()]


def kernel_symbols(functions, objects):
    """Functions of the test binary and those that are kernels of code objects: {offset: name}."""
    kernels = [name for one in objects for name in CodeObject(one["path"].read_bytes()).kernels]
    of_text = dict(zip(demangled(kernels), kernels))
    plain = [re.sub(r"\bu(char|short|int|long)(\d)\b", r"\1\2", text) for text in demangled(functions)]
    return {offset: of_text.get(text, name) for (name, offset), text in zip(functions.items(), plain)}


def records_of(lines, log):
    """(records of launches with their tests, failed tests, passed tests) of what the test binary prints."""
    records, failed, passed, test = [], [], [], None
    for line in lines:
        if line.startswith("@amd "):
            records.append({"test": test, **json.loads(line[5:])})
            continue
        if line.strip():
            log.write(line)
        if found := re.match(r"\[ RUN      \] (\S+)", line):
            test = found[1]
        if found := re.match(r"\[       OK \] (\S+)", line):
            passed.append(found[1])
        if found := re.match(r"\[  FAILED  \] ([^\s,]+) \(\d+ ms\)|\[  FAILED  \] ([^\s,]+), where", line):
            failed.append(found[1] or found[2])
    return records, failed, passed


def environment_of(launcher, config, lds):
    """Of a program whose launches go to the emulator."""
    return {**os.environ, "RIDGE_LAUNCHER": str(launcher), "RIDGE_AMD_CONFIG": str(config), "RIDGE_AMD_LDS": str(lds),
            "RIDGE_AMD_TOOLS": str(ROOT / "tools"), "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}


def run_family(name, family, options, launcher):
    """Compiles and runs one family. Returns (rows, whether all is as it should be)."""
    build = options.build
    objects = [compile_object(ROOT / "src/op" / f, options.target, build) for f in family.files]
    config = {"objects": [str(o["path"]) for o in objects], "tinygrad": str(options.tinygrad), "seed": options.seed, "lds": family.lds,
              "symbols": kernel_symbols(symbols(options.binary), objects)}
    if options.fault is not None:
        instruction, _, number = (options.fault or family.instruction).partition("@")
        config["fault"] = {"kernel": family.kernel, "instruction": instruction, "number": int(number or 1)}
    config_file = build / f"{name}-{options.target}.json"
    config_file.write_text(json.dumps(config), encoding="utf-8")
    environment = environment_of(launcher, config_file, family.lds)
    command = [str(options.binary), f"--gtest_filter={options.filter or family.tests}"]
    log_file = build / f"{name}-{options.target}.log"
    with open(log_file, "w", encoding="utf-8") as log, \
         subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        records, failed, passed = records_of(process.stdout, log)
    return report(name, family, options, objects, (records, failed, passed, process.returncode, log_file))


def report(name, family, options, objects, outcome):
    records, failed, passed, code, log_file = outcome
    launches = [r for r in records if "instructions" in r]
    errors = [r["error"] for r in records if "error" in r]
    fibers = sorted({r["fibers"] for r in records if "fibers" in r})
    planted = next((r["fault"] for r in reversed(launches) if r["fault"]), None)
    print(f"{name}, {options.target}: {len(passed)} tests passed, {len(failed)} failed; {len(launches)} launches of "
          f"{len({r['kernel'] for r in launches})} kernels, {sum(r['instructions'] for r in launches)} instructions, "
          f"{sum(r['seconds'] for r in launches):.1f} s; log: {log_file}")
    for kernel in fibers:
        print(f"  not compiled for it, run by the emulated GPU: {demangled([kernel])[0]}")
    for error in errors:
        print(f"  {error}")
    if code not in (0, 1) and not errors:
        print(f"  the tests ended with {code}")
    if (code not in (0, 1)) and (begun := [r["begins"] for r in records if "begins" in r]):
        print(f"  the last kernel that began: {demangled([begun[-1]])[0]}")
    if options.fault is not None:
        found = bool(planted and (failed or errors or code))
        print(f"  planted fault: {planted or 'none: no such instruction ran'}: " + ("found" if found else "NOT FOUND"))
        row = {**facts(name, options), "kind": "amd_emulated_fault", "instruction": planted and planted.split()[0], "fault": planted,
               "found": found, "failed": failed, "error": errors[0] if errors else None}
        return [row], found
    return rows_of(name, options, objects, launches), code == 0 and bool(launches) and not failed and not errors


def facts(family, options):
    """What every row says."""
    command = ["tools/amd_emulate.py", "--tinygrad", "DIR", "--target", options.target, "--family", family, "--seed", str(options.seed)]
    command += ["--filter", options.filter] * bool(options.filter) + ["--fault"] * (options.fault is not None) + [options.fault] * bool(options.fault)
    return {**provenance("amd_emulated", command, options), "family": family}


def provenance(kind, command, options):
    """What rows of both tools begin with."""
    return {"kind": kind, "build_commit": commit(), "command": shlex.join(command),
            "test_time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "load_1min": round(os.getloadavg()[0], 2),
            "device": "emulator", "target": options.target, "emulator": emulator_version(options.tinygrad), "seed": options.seed}


def rows_of(family, options, objects, launches):
    """A row for each kernel and test."""
    same, compiler = facts(family, options), re.search(r"clang version \S+", run_tool([hip_compile.COMPILER, "--version"]))[0]
    of_object = {o["path"].name: o for o in objects}
    rows = {}
    for r in launches:
        source = of_object[r["object"]]
        row = rows.setdefault((r["kernel"], r["test"]), {
            **same, "file": source["file"], "kernel": demangled([r["kernel"]])[0], "test": r["test"], "compiler": f"{compiler} {source['level']}",
            "launches": 0, "instructions": 0, "clocks": collections.Counter(), "counts": collections.Counter(), "lds_bytes": 0, "scratch_bytes": r["scratch"], "registers": r["vgprs"], "spills": r["spills"]})
        row["launches"] += 1
        row["instructions"] += r["instructions"]
        for what in ("clocks", "counts"):
            row[what].update(r[what])
        row["lds_bytes"] = max(row["lds_bytes"], r["lds"])
    return list(rows.values())


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinygrad", type=pathlib.Path, required=True, help="a checkout of tinygrad's repository")
    parser.add_argument("--target", default="gfx1100", choices=hip_compile.ARCHITECTURES)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="all without it: " + ", ".join(FAMILIES))
    parser.add_argument("--filter", help="gtest's filter in place of the family's tests")
    parser.add_argument("--seed", type=int, default=1, help="of the order of waves and blocks")
    parser.add_argument("--fault", nargs="?", const="", metavar="REGEX[@N]",
                        help="leave out an instruction of the family's kernel, the Nth that fits; succeeds when the tests notice")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/tests/test_emulated")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/amd", help="folder of code objects and logs")
    parser.add_argument("--results", type=pathlib.Path, help="rows are appended here")
    options = parser.parse_args(arguments)
    options.tinygrad, options.binary = options.tinygrad.resolve(), options.binary.resolve()
    return options


def main(arguments):
    options = parse(arguments)
    check_tools(options.tinygrad, options.binary)
    options.build.mkdir(parents=True, exist_ok=True)
    options.build = options.build.resolve()
    launcher = compile_launcher(options.build)
    right = True
    for name in options.family or FAMILIES:
        rows, family_right = run_family(name, FAMILIES[name], options, launcher)
        right &= family_right
        if options.results and rows and (family_right or options.fault is not None):
            with open(options.results, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return 0 if right else FAILED


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as stop:
        print(f"amd_emulate: {stop}", file=sys.stderr)
        sys.exit(stop.code)
