"""Finds the kernel and the busybox that the tests of real guests use."""
import glob
import os
import shutil
import subprocess

PACKAGE = "linux-image-cloud-amd64"


class Missing(Exception):
    """What the tests need cannot be had here; the text says what."""


def newest(pattern):
    files = sorted(glob.glob(pattern), key=os.path.getmtime)
    return files[-1] if files else None


def run(*command, cwd=None):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL, timeout=300, text=True, check=False)


def image_package():
    """The package that has the file: the other one only depends on its newest version."""
    for line in run("apt-cache", "depends", PACKAGE).stdout.splitlines():
        word = line.split()
        if len(word) == 2 and word[0] == "Depends:" and word[1].startswith("linux-image-"):
            return word[1]
    return None


def unpack(into):
    """Debian's package, fetched but not installed, below `into`; the path of its kernel."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Missing("no installed %s, and no apt-get to fetch it" % PACKAGE)
    package = image_package()
    if package is None and os.geteuid() == 0:
        run("apt-get", "update")
        package = image_package()
    if package is None:
        raise Missing("the package lists know no %s" % PACKAGE)
    os.makedirs(into, exist_ok=True)
    command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
    if run(*command, cwd=into).returncode != 0:
        if os.geteuid() == 0:
            run("apt-get", "update")
        if run(*command, cwd=into).returncode != 0:
            raise Missing("%s cannot be fetched" % package)
    deb = newest(os.path.join(into, "*.deb"))
    run("dpkg-deb", "-x", deb, into)
    os.remove(deb)
    kernel = newest(os.path.join(into, "boot", "vmlinuz-*"))
    if kernel is None:
        raise Missing("%s has no kernel" % package)
    return kernel


def fetch(into):
    kernel = unpack(into)
    # The modules are many and nobody needs them.
    shutil.rmtree(os.path.join(into, "lib"), ignore_errors=True)
    shutil.rmtree(os.path.join(into, "usr"), ignore_errors=True)
    return kernel


def find_kernel(cache):
    return (newest("/boot/vmlinuz-*-cloud-amd64") or
            newest(os.path.join(cache, "boot", "vmlinuz-*")) or fetch(cache))


def find_busybox():
    """A busybox that needs no library."""
    for path in ("/bin/busybox", "/usr/bin/busybox"):
        if os.path.exists(path):
            with open(path, "rb") as f:
                data = f.read()
            if data[:4] == b"\x7fELF" and b"/lib64/ld-linux" not in data:
                return path
    raise Missing("no static busybox: package busybox-static")
