"""What a VM boots from: every entry protocol and form of kernel with guests of our own, and kernels,
RAM disks and command lines that are refused before anything starts."""
import bz2
import gzip
import lzma
import os
import struct
import unittest

from util import SharedCase, guest

DEFAULTS = "console=ttyS0 panic=-1 "


def fnv(data):
    sum_ = 0x811c9dc5
    for b in data:
        sum_ = (sum_ ^ b) * 0x01000193 & 0xffffffff
    return "%08x" % sum_


def lz4_legacy(data):
    """One block of literals in the legacy frame."""
    n = len(data) - 15
    block = b"\xf0" + b"\xff" * (n // 255) + bytes([n % 255]) + data
    return struct.pack("<II", 0x184c2102, len(block)) + block


def sized(pack):
    """As the kernel's build does for formats that do not carry the size."""
    return lambda data: pack(data) + struct.pack("<I", len(data))


PACKINGS = {
    "gzip": gzip.compress,
    "bzip2": sized(bz2.compress),
    "xz": sized(lambda d: lzma.compress(d, lzma.FORMAT_XZ, lzma.CHECK_CRC32)),
    "lzma": sized(lambda d: lzma.compress(d, lzma.FORMAT_ALONE)),
    "lz4": sized(lz4_legacy),
    "none": lambda d: d,
}


def bzimage(payload, version=0x20f, xload=1, loadflags=1, cmdline=2047, init_size=8 << 20):
    """A setup header in two sectors, and behind it the payload."""
    h = bytearray(1024)
    h[0x1f1] = 1
    struct.pack_into("<H2s4sH", h, 0x1fe, 0xaa55, b"\xeb\x6a", b"HdrS", version)
    h[0x211] = loadflags
    struct.pack_into("<I", h, 0x22c, 0x7fffffff)
    struct.pack_into("<HI", h, 0x236, xload, cmdline)
    struct.pack_into("<II", h, 0x248, 0, len(payload))
    struct.pack_into("<I", h, 0x260, init_size)
    return bytes(h) + payload


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Boot(SharedCase):
    def file(self, name, data):
        path = os.path.join(self.d.dir, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def says(self, kernel, **more):
        """The lines of a guest that says what it was told."""
        body = dict({"kernel": kernel, "memory": "32M"}, **more)
        r = self.ok(self.d.post("/v1/run", body))
        self.assertEqual(r["end"]["reason"], "poweroff", r)
        lines = r["console"].splitlines()
        self.assertEqual(lines[-1], "done")
        return lines

    def refused(self, body, field, detail=None, status=400):
        """By run and by define; nothing is left, and a good request works after it."""
        body = dict({"memory": "32M"}, **body)
        for path, more in (("/v1/run", {}), ("/v1/vms", {"name": "no"})):
            self.problem(self.d.post(path, dict(body, **more)), status, field, None, detail)
        self.assertEqual(self.d.get("/v1/vms").json()["vms"], [])

    # Modules and command lines arrive whole, by each protocol.
    def test_protocols(self):
        initrd, module = os.urandom(70001), os.urandom(4096)
        what = {"initrd": self.file("initrd", initrd), "cmdline": "a b=c",
                "modules": [{"file": self.file("module", module), "cmdline": "x  y"}]}
        first = 'module 0 aligned 1 bytes 70001 sum %s ""' % fnv(initrd)
        second = 'module 1 aligned 1 bytes 4096 sum %s "x  y"' % fnv(module)
        for kernel, head in (("loader", "loader: pvh 1"),
                             ("loader-multiboot", "loader: multiboot by Mayfly"),
                             ("loader-places", "loader: multiboot by Mayfly"),
                             ("loader-flat", "loader: multiboot by Mayfly"),
                             ("loader-linux", "loader: linux 20f header 53726448 flag aa55 type ff")):
            with self.subTest(kernel=kernel):
                lines = self.says(guest(kernel), **what)
                self.assertEqual(lines[0], head)
                self.assertIn(first, lines)
                if kernel == "loader-linux":
                    self.assertIn('cmdline "%s' % DEFAULTS, "\n".join(lines))
                    self.assertTrue(any(w.endswith(' a b=c"') for w in lines))
                else:
                    self.assertIn(second, lines)
                    self.assertIn('cmdline "a b=c"', lines)
                ram = [w.split() for w in lines if w.startswith("map ")]
                self.assertTrue(all(int(a[1], 16) + int(a[2], 16) <= 32 << 20 for a in ram))

    # A bzImage in each packing, with the header's own fields in the guest's boot_params.
    def test_bzimage(self):
        for name, pack in PACKINGS.items():
            with self.subTest(packing=name):
                path = self.file("bz-" + name, bzimage(pack(read(guest("loader-linux"))),
                                                       version=0x20e))
                lines = self.says(path, cmdline="console=none")
                self.assertEqual(lines[0], "loader: linux 20e header 53726448 flag aa55 type ff")
                self.assertIn(' console=none"', lines[1])
                self.assertNotIn("ttyS0", lines[1])

    # One file, many VMs at once: it is unpacked once and none of them fails.
    def test_bzimage_shared(self):
        path = self.file("bz-shared", bzimage(PACKINGS["xz"](read(guest("loader-linux")))))
        fds = self.d.fds()
        for i in range(20):
            self.ok(self.d.post("/v1/vms", {"name": "s%d" % i, "memory": "32M", "kernel": path}),
                    201)
        for i in range(20):
            self.ok(self.d.post("/v1/vms/s%d/start?wait=ended" % i))
            self.assertEqual(self.d.vm("s%d" % i)["end"]["reason"], "poweroff")
            self.assertEqual(self.d.delete("/v1/vms/s%d" % i).status, 204)
        self.assertLessEqual(self.d.fds(), fds + 4)

    # A file that changes is another kernel.
    def test_bzimage_changes(self):
        good = PACKINGS["gzip"](read(guest("loader-linux")))
        for version in (0x20e, 0x20d):
            path = self.file("bz-changes", bzimage(good, version=version))
            self.assertIn(" %x " % version, self.says(path)[0])

    def test_bad_bzimage(self):
        elf = read(guest("loader-linux"))
        good = PACKINGS["xz"](elf)
        spoilt = bytearray(good)
        for i in range(len(good) // 2, len(good) // 2 + 32):
            spoilt[i] ^= 0x55
        bomb = PACKINGS["xz"](elf + bytes(64 << 20))
        liar = bomb[:-4] + struct.pack("<I", 100)
        for name, data, detail in (
                ("old", bzimage(good, version=0x20b), "protocol 2.11"),
                ("32-bit", bzimage(good, xload=0), "32-bit Linux kernel"),
                ("zimage", bzimage(good, loadflags=0), "zImage"),
                ("cut", bzimage(good)[:-100], "truncated"),
                ("cut-payload", bzimage(good[:2000] + good[-4:]), "corrupt or truncated"),
                ("spoilt", bzimage(bytes(spoilt)), "corrupt or truncated"),
                ("bomb", bzimage(bomb, init_size=1 << 20), "setup header allows"),
                ("liar", bzimage(liar, init_size=1 << 20), "setup header allows"),
                ("bomb-ram", bzimage(bomb, init_size=128 << 20), "the VM's RAM has"),
                ("lzo", bzimage(b"\x89LZO" + bytes(100)), "LZO"),
                ("noise", bzimage(b"\1\2\3\4" + bytes(100)), "01 02 03 04"),
                ("no-elf", bzimage(PACKINGS["gzip"](b"x" * 4096)), "not an ELF"),
                ("sector", bytes(510) + b"\x55\xaa" + bytes(1024), "boot sector")):
            with self.subTest(name=name):
                self.refused({"kernel": self.file("bad-" + name, data)}, "kernel", detail)

    def test_32_bit_vmlinux(self):
        data = bytearray(read(guest("kernel32")))
        at = data.find(b"\4\0\0\0\4\0\0\0\x12\0\0\0Xen\0")
        data[at + 12:at + 16] = b"Xem\0"
        self.refused({"kernel": self.file("vmlinux32", data)}, "kernel", "32-bit")

    def test_initrd(self):
        kernel = guest("loader-linux")
        big = os.path.join(self.d.dir, "big")
        with open(big, "wb") as f:
            f.truncate(40 << 20)
        self.refused({"kernel": kernel, "initrd": big}, "initrd", "more than the guest's")
        with open(big, "wb") as f:
            f.truncate(32 << 20)
        self.refused({"kernel": kernel, "initrd": big}, "initrd", "no room")
        for path, detail in (("/no/such", "cannot be opened"), (self.d.dir, "not a regular"),
                             ("/dev/zero", "not a regular"), (self.file("empty", b""), "is empty"),
                             ("relative", "absolute")):
            self.refused({"kernel": kernel, "initrd": path}, "initrd", detail)
            self.refused({"kernel": kernel, "modules": [{"file": path}]}, "modules", None)

    # The limit is the kernel's own where it names one; the user's words are never cut.
    def test_command_line(self):
        path = self.file("bz-short", bzimage(PACKINGS["gzip"](read(guest("loader-linux"))),
                                             cmdline=255))
        self.refused({"kernel": path, "cmdline": "c" * 256}, "cmdline", "this kernel takes 255")
        lines = self.says(path, cmdline="c" * 255)
        self.assertEqual(lines[1], 'cmdline "%s"' % ("c" * 255))
        self.assertIn('cmdline "%s' % DEFAULTS, self.says(path, cmdline="c" * 200)[1])
        self.refused({"kernel": path, "cmdline": "c" * 2048}, "cmdline", "longer than")
        self.refused({"kernel": path, "modules": [{"file": path, "cmdline": "c" * 2048}]},
                     "modules", "command lines")

    # A kernel that panics ends as that, whatever a reset does, and says why.
    def test_panic(self):
        r = self.ok(self.d.run_guest("panic"))
        self.assertEqual(r["end"]["reason"], "panic")
        self.assertIn("Attempted to kill init!", r["end"]["text"])
        self.assertEqual(self.ok(self.d.run_guest("panic", cmdline="quietly"))["end"]["reason"],
                         "reset")
        self.ok(self.d.define("p", "panic", on_reset="restart"), 201)
        self.ok(self.d.post("/v1/vms/p/start?wait=ended"))
        vm = self.d.vm("p")
        self.assertEqual((vm["state"], vm["end"]["reason"], vm["starts"]), ("crashed", "panic", 1))
        self.assertEqual(self.d.delete("/v1/vms/p").status, 204)

    # XML says the same as JSON.
    def test_xml(self):
        initrd = self.file("initrd-xml", b"some bytes")
        xml = ("<domain type='mayfly' xmlns:mayfly='urn:mayfly:domain:1'><name>x</name>"
               "<memory unit='MiB'>32</memory><os><type>hvm</type><kernel>%s</kernel>"
               "<initrd>%s</initrd></os><mayfly:module file='%s' cmdline='a &amp; b'/></domain>"
               % (guest("loader"), initrd, initrd))
        self.ok(self.d.post("/v1/vms", xml, {"Content-Type": "application/xml"}), 201)
        vm = self.d.vm("x")
        self.assertEqual(vm["initrd"], initrd)
        self.assertEqual(vm["modules"], [{"file": initrd, "cmdline": "a & b"}])
        self.ok(self.d.post("/v1/vms/x/start?wait=ended"))
        text = self.d.get("/v1/vms/x/console").body.decode()
        self.assertIn('module 1 aligned 1 bytes 10 sum %s "a & b"' % fnv(b"some bytes"), text)
        self.assertEqual(self.d.delete("/v1/vms/x").status, 204)


if __name__ == "__main__":
    unittest.main()
