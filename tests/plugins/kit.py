"""Runs the conformance kit's program and reads what it says."""
import json
import os
import subprocess

BUILD = os.environ["MAYFLY_BUILD"]
PROGRAM = os.path.join(BUILD, "conform", "mayfly-plugin-check")
PLUGINS = os.path.join(BUILD, "plugins")
BROKEN = os.path.join(BUILD, "tests", "plugins", "broken")
PATIENCE = 300
SANITIZED = os.environ.get("MAYFLY_TEST_SANITIZED", "")


def run(*args):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=PATIENCE)


def check(path, seed=1, operations=20000):
    """The exit code and the verdict."""
    r = run("--seed", seed, "--operations", operations, "--json", path)
    if r.returncode not in (0, 1):
        raise AssertionError("exit code %d: %s" % (r.returncode, r.stderr))
    return r.returncode, json.loads(r.stdout)


def shipped():
    return sorted(os.path.join(PLUGINS, n) for n in os.listdir(PLUGINS) if n.endswith(".so"))


def in_parallel(fn, items):
    """[fn(i) for i in items], two at a time."""
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(fn, items))
