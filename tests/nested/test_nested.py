#!/usr/bin/env python3
"""The KVM engine on a real KVM, in a machine made for it.

QEMU's TCG emulates a processor with SVM; in it Debian's kernel with its kvm modules offers a
/dev/kvm to our own programs, which run there from an initramfs. Machines without a /dev/kvm thus
test the engine as well as others. Skipped, with the reason, where QEMU or the kernel cannot be had.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD = os.environ["MAYFLY_SOURCE"], os.environ["MAYFLY_BUILD"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "linux"))
from initramfs import CHAR, DIR, FILE, LINK, member, read  # noqa: E402
from kernel import Missing, find_busybox, newest, unpack  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(BUILD, "tests", "nested", "packages")
MODULES = ["irqbypass", "ccp", "kvm", "kvm-amd"]
TESTS = ["core_kvm", "core_life"]
LIMIT = 900  # seconds: only a hang reaches it
SKIP = 77


def find_kernel():
    """Kernel and modules: those of an installed package, else of one that is fetched."""
    for root in ("/", CACHE):
        kernel = newest(os.path.join(root, "boot", "vmlinuz-*-cloud-amd64"))
        if kernel and find_modules(root, kernel):
            return kernel, find_modules(root, kernel)
    kernel = unpack(CACHE)
    modules = find_modules(CACHE, kernel)
    if not modules:
        raise Missing("the kernel's package has no kvm-amd module")
    return kernel, modules


def find_modules(root, kernel):
    version = os.path.basename(kernel)[len("vmlinuz-"):]
    found = {}
    for m in MODULES:
        for path in glob.glob(os.path.join(root, "lib/modules", version, "kernel/**", m + ".ko"),
                              recursive=True):
            found[m] = path
    return found if "kvm" in found and "kvm-amd" in found else None


def libraries(program):
    out = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", out)


def stripped(path, scratch):
    to = os.path.join(scratch, os.path.basename(path))
    if shutil.which("strip") is None or subprocess.run(["strip", "-o", to, path]).returncode:
        return path
    return to


def archive(busybox, modules, scratch):
    programs = {"bin/hv": os.path.join(BUILD, "hv", "hv")}
    for t in TESTS:
        programs["tests/" + t] = os.path.join(BUILD, "tests", "system", "core", "test_" + t)
    files = {"bin/busybox": busybox, "init": os.path.join(HERE, "init.sh")}
    for name, path in programs.items():
        files[name] = stripped(path, scratch)
        for lib in libraries(path):
            # The loader is named by its whole path, the others are searched by name.
            files[lib[1:] if "ld-linux" in lib else "lib/" + os.path.basename(lib)] = lib
    for path in glob.glob(os.path.join(BUILD, "plugins", "*.so")):
        files["plugins/" + os.path.basename(path)] = stripped(path, scratch)
    for path in glob.glob(os.path.join(BUILD, "tests", "guests", "*.elf")):
        files["guests/" + os.path.basename(path)] = path
    for m, path in modules.items():
        files["modules/%s.ko" % m] = path
    dirs = {"proc", "sys", "dev", "tmp"}
    for name in files:
        while "/" in name:
            name = os.path.dirname(name)
            dirs.add(name)
    members = [(d, DIR | 0o755, b"", (0, 0)) for d in sorted(dirs)]
    members += [("dev/console", CHAR | 0o600, b"", (5, 1)), ("bin/sh", LINK | 0o777, b"busybox", (0, 0)),
                ("tests/order", FILE | 0o644, ("\n".join(TESTS) + "\n").encode(), (0, 0))]
    members += [(n, FILE | 0o755, read(p), (0, 0)) for n, p in sorted(files.items())]
    return b"".join(member(i + 1, *m) for i, m in enumerate(members)) + member(0, "TRAILER!!!", 0)


def boot(kernel, initrd, log):
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "EPYC", "-smp", "1", "-m", "2048",
               "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
               "-kernel", kernel, "-initrd", initrd, "-append",
               "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests tsc=reliable"]
    with open(log, "wb") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                                  stderr=subprocess.DEVNULL) as q:
        try:
            q.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            print("nested: timed out")
        finally:
            q.kill()
    return read(log).decode(errors="replace")


def main():
    try:
        if shutil.which("qemu-system-x86_64") is None:
            raise Missing("no qemu-system-x86_64: package qemu-system-x86")
        kernel, modules = find_kernel()
        busybox = find_busybox()
    except Missing as e:
        print("SKIP: no nested machine: %s" % e)
        return SKIP
    with tempfile.TemporaryDirectory(prefix="mayfly-nested-") as scratch:
        initrd = os.path.join(scratch, "initrd")
        with open(initrd, "wb") as f:
            f.write(archive(busybox, modules, scratch))
        out = boot(kernel, initrd, os.path.join(scratch, "log"))
    print(out.replace("\r", ""))
    ends = dict(re.findall(r"nested: end (\S+) (\d+) ", out))
    for t in TESTS:
        print("nested %s: %s" % (t, "ok" if ends.get(t) == "0" else "FAILED, status " + str(ends.get(t))))
    return 0 if all(ends.get(t) == "0" for t in TESTS) and "nested: done" in out else 1


if __name__ == "__main__":
    sys.exit(main())
