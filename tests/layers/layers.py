#!/usr/bin/env python3
"""Protects the layers: which folder may include what, and which symbols may be seen.

layers.py includes SOURCE_ROOT            the include graph against the table below
layers.py headers SOURCE_ROOT CC...       each header compiles alone, as C11
layers.py plugins FILE.so...              only `mayfly_plugin` is visible, only mem*/str* is needed
layers.py freestanding ARCHIVE.a          hv/mm needs nothing but mem*/str*
layers.py selftest CC...                  each check above catches a fault planted for it
"""
import os
import re
import subprocess
import sys
import tempfile

ABI_HEADERS = {"stdint.h", "stddef.h", "stdbool.h"}
FREESTANDING = ABI_HEADERS | {"stdatomic.h", "stdalign.h", "stdnoreturn.h", "limits.h", "string.h"}

# Third-party headers by their first path part or whole name.
LIBRARIES = {"uv.h": "libuv", "json-c": "json-c", "libxml": "libxml2", "microhttpd.h": "microhttpd",
             "curl": "curl", "Zydis": "zydis", "seccomp.h": "seccomp", "systemd": "systemd",
             "cmocka.h": "cmocka"}

# folder -> (folders of ours it may include, system headers: a set or "hosted", libraries)
# The longest folder that fits a file decides.
TABLE = {
    "proto": ({"proto"}, ABI_HEADERS, set()),
    "hv": ({"hv", "proto"}, "hosted", {"seccomp"}),
    "hv/mm": ({"hv/mm", "proto"}, FREESTANDING, set()),
    "hv/host": ({"hv/host", "hv/mm", "proto"}, "hosted", {"seccomp"}),
    "hv/cpu": ({"hv/cpu", "hv/mm", "proto"}, "hosted", {"zydis"}),
    "hv/dev": ({"hv/dev", "proto"}, "hosted", set()),
    "hv/boot": ({"hv/boot", "hv/mm", "proto"}, "hosted", set()),
    "hv/vm": ({"hv/vm", "hv/boot", "hv/cpu", "hv/dev", "hv/host", "hv/mm", "proto"}, "hosted", set()),
    "hv/call": ({"hv/call", "hv/vm", "hv/host", "hv/mm", "proto"}, "hosted", set()),
    "conform": ({"conform", "hv/host/plugin.h", "hv/host/error.h", "proto"}, "hosted", {"seccomp"}),
    "plugins": ({"proto/plugin.h"}, FREESTANDING, set()),
    "daemon": ({"daemon", "proto"}, "hosted",
               {"libuv", "json-c", "libxml2", "microhttpd", "systemd"}),
    "cli": ({"cli", "proto"}, "hosted", {"json-c", "curl"}),
}
OURS = {"proto", "hv", "plugins", "conform", "daemon", "cli", "tests"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
PLAIN_SYMBOL = re.compile(r"^(mem|str)[a-z]+$")
RUNTIME_SYMBOLS = {"_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "__cxa_finalize", "__gmon_start__",
                   "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}


def sources(root):
    for top in sorted(TABLE):
        if "/" in top:
            continue
        for directory, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".def", ".S")):
                    yield os.path.relpath(os.path.join(directory, name), root)


def row_of(path):
    folder = os.path.dirname(path)
    while folder not in TABLE:
        folder = os.path.dirname(folder)
    return folder, TABLE[folder]


def target_of(root, path, quote, name):
    """The path below root that an include names, or None for a header that is not ours."""
    if quote == '"':
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(os.path.join(root, beside)):
            return beside
    if name.split("/")[0] in OURS:
        return os.path.normpath(name)
    return None


def allowed(target, folders):
    return any(target == f or target.startswith(f + "/") for f in folders)


def check_includes(root):
    faults, count = [], 0
    for path in sources(root):
        folder, (ours, system, libraries) = row_of(path)
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        for quote, name in INCLUDE.findall(text):
            count += 1
            target = target_of(root, path, quote, name)
            if target is not None:
                if not allowed(target, ours):
                    faults.append(f"{path}: {folder} may not include {target}")
                continue
            library = LIBRARIES.get(name) or LIBRARIES.get(name.split("/")[0])
            if library:
                if library not in libraries:
                    faults.append(f"{path}: {folder} may not use {library}")
            elif quote == '"' and not name.endswith(".inc"):
                # Generated headers live in the build tree; only the folder's own may be named so.
                if "/" in name:
                    faults.append(f"{path}: {name} is not in the tree")
            elif system != "hosted" and name not in system:
                faults.append(f"{path}: {folder} may not include <{name}>")
    if count == 0:
        faults.append("no include found: wrong source root?")
    return faults


def check_headers(root, cc):
    faults, count = [], 0
    for path in sources(root):
        if not path.endswith(".h"):
            continue
        count += 1
        source = f'#include "{path}"\nextern int mayfly_header_alone;\n'
        run = subprocess.run(cc + ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I",
                                   root, "-x", "c", "-fsyntax-only", "-"],
                             input=source, text=True, capture_output=True)
        if run.returncode:
            faults.append(f"{path} does not compile alone:\n{run.stderr}")
    if count == 0:
        faults.append("no header found: wrong source root?")
    return faults


def nm(*args):
    out = subprocess.run(["nm", *args], text=True, capture_output=True, check=True).stdout
    return [line.split() for line in out.splitlines() if line and not line.endswith(":")]


def check_plugins(files):
    faults = [] if files else ["no plugin given"]
    for path in files:
        visible = {row[-1] for row in nm("-D", "--defined-only", path)}
        if visible != {"mayfly_plugin"}:
            faults.append(f"{path}: visible symbols are {sorted(visible)}")
        for row in nm("-D", "-u", path):
            symbol = row[-1].split("@")[0]
            if symbol not in RUNTIME_SYMBOLS and not PLAIN_SYMBOL.match(symbol):
                faults.append(f"{path}: needs {symbol}")
    return faults


def check_freestanding(archive):
    defined = {row[-1] for row in nm("--defined-only", archive) if len(row) >= 3}
    needed = {row[-1] for row in nm("-u", archive)}
    faults = [f"{archive}: needs {s}" for s in sorted(needed - defined - RUNTIME_SYMBOLS)
              if not PLAIN_SYMBOL.match(s)]
    if not defined:
        faults.append(f"{archive}: no symbol defined")
    return faults


def plant(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text)
    return full


def selftest(cc):
    include_faults = [
        ("proto/a.h", "#include <stdio.h>\n"),
        ("proto/b.h", '#include "hv/mm/x.h"\n'),
        ("hv/mm/a.c", "#include <stdlib.h>\n"),
        ("hv/mm/b.c", '#include "hv/vm/x.h"\n'),
        ("hv/dev/a.c", '#include "hv/mm/x.h"\n'),
        ("hv/cpu/soft/a.c", '#include "hv/vm/x.h"\n'),
        ("hv/boot/a.c", '#include "hv/cpu/x.h"\n'),
        ("plugins/a.c", '#include "proto/status.h"\n'),
        ("plugins/b.c", '#include "b.h"\n'),
        ("daemon/a.c", '#include "hv/mm/x.h"\n'),
        ("daemon/b.c", "#include <curl/curl.h>\n"),
        ("cli/a.c", "#include <uv.h>\n"),
        ("cli/b.c", '#include "../daemon/x.h"\n'),
    ]
    faults = []
    for path, text in include_faults:
        with tempfile.TemporaryDirectory() as root:
            for other in ("hv/mm/x.h", "hv/vm/x.h", "hv/cpu/x.h", "daemon/x.h", "proto/status.h",
                          "plugins/b.h"):
                plant(root, other, "/* empty */\n")
            plant(root, "proto/ok.h", "#include <stdint.h>\n")
            if check_includes(root):
                faults.append("the clean tree is refused")
            plant(root, path, text)
            if not check_includes(root):
                faults.append(f"not caught: {path} with {text.strip()}")
    with tempfile.TemporaryDirectory() as root:
        plant(root, "proto/a.h", "uint32_t not_declared;\n")
        if not check_headers(root, cc):
            faults.append("not caught: a header that does not compile alone")
        source = plant(root, "p.c", "int puts(const char *); int leak(void);\n"
                                    'int leak(void) { return puts("x"); }\n')
        shared, obj, archive = (os.path.join(root, n) for n in ("p.so", "p.o", "p.a"))
        subprocess.run(cc + ["-shared", "-fPIC", source, "-o", shared], check=True)
        if len(check_plugins([shared])) != 2:
            faults.append("not caught: a plugin with another visible symbol, or that needs libc")
        subprocess.run(cc + ["-c", source, "-o", obj], check=True)
        subprocess.run(["ar", "rc", archive, obj], check=True)
        if not check_freestanding(archive):
            faults.append("not caught: an archive that needs libc")
    return faults


def main():
    what, args = sys.argv[1], sys.argv[2:]
    faults = {"includes": lambda: check_includes(args[0]),
              "headers": lambda: check_headers(args[0], args[1:]),
              "plugins": lambda: check_plugins(args),
              "freestanding": lambda: check_freestanding(args[0]),
              "selftest": lambda: selftest(args)}[what]()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
