"""Our guests on the software engine: each prints what it checked, none may fail."""
import hashlib
import re
import time
import unittest

import util


def bytes_of_guest(n):
    """The bytes that the kernel's compute mode hashes."""
    state, out = 1, bytearray()
    for _ in range(n):
        state = (state * 1103515245 + 12345) & 0xFFFFFFFF
        out.append(state >> 16 & 0xFF)
    return bytes(out)


class Guests(util.SharedDaemonTest):
    def ok(self, guest, *words, memory="32M", code=0, least=1):
        done = self.hvctl("run", self.guest(guest), "-m", memory, "--timeout", "5m", "--", *words, code=code)
        self.assertNotIn("FAIL", done.stdout)
        self.assertGreaterEqual(done.stdout.count("\nok "), least, done.stdout)
        return done.stdout

    # Traps, page faults, rings, code that changes, arithmetic: by both ways in.
    def test_kernel(self):
        for form in ("kernel", "kernel64"):
            with self.subTest(form=form):
                self.assertIn(", 0 failed", self.ok(form, least=45))

    # 32-bit protected mode without and with paging.
    def test_kernel32(self):
        self.assertIn("kernel32: 0 failed", self.ok("kernel32", least=17))

    # Long integer work gives what another implementation gives.
    def test_compute(self):
        for n in (0, 1, 55, 56, 64, 4096):
            want = hashlib.sha256(bytes_of_guest(n)).hexdigest()
            self.assertIn(f"sha256 buffer {want}\n", self.ok("kernel", "mode=compute", f"bytes={n}"))

    # Every page of RAM keeps its pattern, from a small VM to one of sparse gigabytes.
    def test_touch(self):
        for memory, stride in (("2M", "4K"), ("64M", "4K"), ("6G", "64M")):
            with self.subTest(memory=memory):
                self.ok("kernel", "mode=touch", "stride=" + stride, memory=memory, least=2)

    # A VM never sees what another one left in a frame.
    def test_new_memory_is_zero(self):
        for _ in range(3):
            self.ok("kernel", "mode=touch", "stride=4K", memory="16M")
            self.ok("kernel", "mode=zero", memory="16M", least=2)

    # The machine around a CPU: PIT and PIC, LAPIC timer in all modes, a UART line through the IOAPIC.
    def test_interrupts(self):
        for mode, least in (("pit", 3), ("apic", 7), ("uart", 2)):
            with self.subTest(mode=mode):
                self.ok("kernel", "mode=" + mode, least=least)

    # kvm-clock and the RTC tell the host's time.
    def test_clock(self):
        text = self.ok("kernel", "mode=clock", least=10)
        wall = int(re.search(r"^wall (\d+)$", text, re.M).group(1))
        self.assertLess(abs(wall - time.time()), 3600)
        days = [time.strftime("rtc %Y-%m-%d\n", time.gmtime(time.time() - ago)) for ago in (0, 3600)]
        self.assertTrue(any(day in text for day in days), text)

    # Further CPUs start by INIT and SIPI, interrupt each other, add atomically.
    def test_smp(self):
        for vcpus in ("2", "4"):
            with self.subTest(vcpus=vcpus):
                done = self.hvctl("run", self.guest("kernel"), "-m", "32M", "-c", vcpus, "--timeout", "5m",
                                  "--", "mode=smp")
                self.assertIn(f"cpus {vcpus}\n", done.stdout)
                self.assertIn("kernel: 5 ok, 0 failed", done.stdout)

    # ACPI tables are where the start information says, name every CPU, and power off.
    def test_acpi(self):
        done = self.hvctl("run", self.guest("kernel"), "-m", "32M", "-c", "3", "--timeout", "5m", "--", "mode=acpi")
        self.assertIn("madt cpus 3\n", done.stdout)
        self.assertNotIn("FAIL", done.stdout)
        self.assertIn("powering off by port 604\n", done.stdout)
        self.assertIn("the guest powered off", done.stderr)

    # Console input interrupts a halted guest.
    def test_input_interrupts(self):
        self.hvctl("define", "--name", "rx", "--memory", "32M", "--kernel", self.guest("kernel"),
                   "--cmdline", "mode=uartrx")
        done = self.hvctl("start", "rx", "--console", input="a line of text\n")
        self.assertIn('got "a line of text" by interrupt', done.stdout)
        self.assertNotIn("FAIL", done.stdout)
        self.hvctl("delete", "rx")

    # Guest hypercalls by VMCALL and VMMCALL, good and bad.
    def test_hypercalls(self):
        text = self.ok("hypercall", least=20)
        self.assertIn("written by hypercall", text)
        self.assertIn("across the border", text)

    # The command line arrives whole, to its limit.
    def test_cmdline(self):
        line = "mode=cpuid " + "x" * (2047 - len("mode=cpuid "))
        self.assertIn(f'command line "{line}"', self.ok("kernel", line))
        self.assertIn("[cmdline]", self.hvctl("run", self.guest("kernel"), "--", line + "x", code=65).stderr)

    # A long text comes whole up to what is kept, and is said to be cut above that.
    def test_long_console(self):
        done = self.hvctl("run", self.guest("chatty"), "--", "lines=1000", "width=40")
        self.assertEqual(len(done.stdout.splitlines()), 1000)
        done = self.hvctl("run", self.guest("chatty"), "--", "lines=4000", "width=40")
        self.assertIn("not whole", done.stderr)
        self.assertIn("line 4000 ", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
