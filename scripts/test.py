#!/usr/bin/env python3
"""Builds Mayfly plain and with sanitizers, runs the meson suites in each, adds up the results.

The last line is 'N passed, N failed, N skipped'; the exit code is 0 when none failed and at least
one passed.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# name, meson options, suites
BUILDS = [
    ("plain", [], ["unit", "layers", "system", "fuzz", "linux"]),
    ("asan", ["-Db_sanitize=address,undefined", "-Db_lundef=false"],
     ["unit", "system", "fuzz"]),
    ("tsan", ["-Db_sanitize=thread", "-Db_lundef=false"], ["unit", "system"]),
]

SANITIZER_ENV = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def build(name, options, werror):
    directory = os.path.join(TOP, "build" if name == "plain" else "build-" + name)
    args = list(options)
    if werror:
        args.append("-Dwerror=true")
    started = time.monotonic()
    subprocess.run([os.path.join(TOP, "scripts", "build.sh"), directory, *args], check=True)
    print(f"built {name} in {time.monotonic() - started:.0f} s", flush=True)
    return directory


def failures_of(record):
    return f"--- {record['name']}: {record['result']}\n" + (record.get("stdout") or "")[-4000:] + (
        record.get("stderr") or "")[-4000:]


def run_suites(name, directory, suites, jobs, only):
    command = ["meson", "test", "-C", directory, "--no-rebuild", "--num-processes", str(jobs),
               "--timeout-multiplier", "1" if name == "plain" else "4"]
    for suite in suites:
        command += ["--suite", suite]
    command += only
    env = dict(os.environ, **SANITIZER_ENV)
    log = os.path.join(directory, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.remove(log)
    # Tests find their own sockets and state below a directory that goes away with the run.
    with tempfile.TemporaryDirectory(prefix="mayfly-test-") as tmp:
        env["TMPDIR"] = tmp
        subprocess.run(command, env=env, stdin=subprocess.DEVNULL)
    records = []
    if os.path.exists(log):
        with open(log, encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
    good = sum(r["result"] in ("OK", "EXPECTEDFAIL") for r in records)
    skipped = sum(r["result"] == "SKIP" for r in records)
    bad = [r for r in records if r["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")]
    for record in bad:
        print(failures_of(record))
    if not records and not only:
        print(f"{name}: no test ran")
        return 0, 1, 0
    return good, len(bad), skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="append", choices=[b[0] for b in BUILDS],
                        help="only this build (may be repeated)")
    parser.add_argument("--suite", action="append", help="only this meson suite (may be repeated)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clean", action="store_true", help="throw the build directories away first")
    parser.add_argument("tests", nargs="*", help="only these meson tests")
    options = parser.parse_args()

    werror = bool(os.environ.get("CI") or os.environ.get("MAYFLY_WERROR"))
    totals = [0, 0, 0]
    for name, meson_options, suites in BUILDS:
        if options.build and name not in options.build:
            continue
        if options.suite:
            suites = [s for s in suites if s in options.suite]
        if not suites:
            continue
        if options.clean:
            shutil.rmtree(os.path.join(TOP, "build" if name == "plain" else "build-" + name),
                          ignore_errors=True)
        try:
            directory = build(name, meson_options, werror)
        except subprocess.CalledProcessError:
            print(f"{name}: the build failed")
            totals[1] += 1
            continue
        for i, n in enumerate(run_suites(name, directory, suites, options.jobs, options.tests)):
            totals[i] += n
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 0 if totals[1] == 0 and totals[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
