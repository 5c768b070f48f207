#!/usr/bin/env python3
"""embed.py OUT FILE...: a C file with the bytes of each FILE under the name embed_<file>."""
import os
import sys


def main():
    out, files = sys.argv[1], sys.argv[2:]
    lines = ['#include "daemon/embed.h"', ""]
    for path in files:
        name = "embed_" + os.path.basename(path).replace(".", "_").replace("-", "_")
        with open(path, "rb") as f:
            data = f.read()
        lines.append("const char %s[] = {" % name)
        row = [str(b - 256 if b > 127 else b) for b in data + b"\0"]
        for i in range(0, len(row), 24):
            lines.append("    " + ", ".join(row[i:i + 24]) + ",")
        lines.append("};")
        lines.append("const size_t %s_len = %d;" % (name, len(data)))
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")


main()
