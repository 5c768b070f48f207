#!/usr/bin/env python3
"""Writes an initramfs: a static busybox, our /init and the commands that the test runs.

usage: initramfs.py BUSYBOX OUT

The archive is in cpio's newc format, made here so that device nodes need no root and the same
input gives the same bytes.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DIR, FILE, LINK, CHAR = 0o040000, 0o100000, 0o120000, 0o020000
DIRS = ["bin", "dev", "proc", "sys", "tmp", "etc", "root"]


def member(number, name, mode, data=b"", device=(0, 0)):
    raw = name.encode() + b"\0"
    fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, device[0], device[1], len(raw), 0]
    head = b"070701" + b"".join(b"%08x" % f for f in fields) + raw
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def archive(busybox):
    members = [(d, DIR | 0o755, b"", (0, 0)) for d in DIRS]
    members += [
        ("dev/console", CHAR | 0o600, b"", (5, 1)),
        ("bin/busybox", FILE | 0o755, read(busybox), (0, 0)),
        ("bin/sh", LINK | 0o777, b"busybox", (0, 0)),
        ("init", FILE | 0o755, read(os.path.join(HERE, "init.sh")), (0, 0)),
        ("commands.sh", FILE | 0o755, read(os.path.join(HERE, "commands.sh")), (0, 0)),
    ]
    out = b"".join(member(i + 1, *m) for i, m in enumerate(members))
    return out + member(0, "TRAILER!!!", 0)


def main():
    busybox, out = sys.argv[1:]
    with open(out, "wb") as f:
        f.write(archive(busybox))


if __name__ == "__main__":
    main()
