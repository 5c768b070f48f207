"""Debian's own kernel, unmodified, with a busybox: boots, is used, and ends in each way it can."""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["MAYFLY_SOURCE"], "tests", "system", "rest"))
from util import BUILD, Daemon  # noqa: E402

from initramfs import archive  # noqa: E402
from kernel import Missing, find_busybox, find_kernel  # noqa: E402

HVCTL = os.path.join(BUILD, "cli", "hvctl")
CACHE = os.path.join(BUILD, "tests", "linux", "packages")
LIMIT = 600  # seconds for a boot: only a hang reaches it

# What this kernel warns of on every machine without PCI, and of hosts that are slow or busy.
EXPECTED = re.compile(r"PCI: (Fatal: No config space access function found|System does not support"
                      r" PCI)$|hrtimer: interrupt took|rcu: |clocksource: |workqueue: .*hogged|"
                      r"sched: RT throttling|perf: interrupt took too long")

kernel = busybox = None


class Linux(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon().start()
        cls.initrd = os.path.join(cls.d.dir, "initrd")
        with open(cls.initrd, "wb") as f:
            f.write(archive(busybox))
        host = cls.d.get("/v1/host").json()
        cls.engines = [e for e in ("soft", "kvm") if host["engines"][e]["usable"] and
                       "why" not in host["engines"][e]]

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def boot(self, what, *options, code=0, stdin=""):
        """What the guest said, and what hvctl said of its end."""
        done = subprocess.run(
            [HVCTL, "run", kernel, "--memory", "256M", "--initrd", self.initrd, "--socket",
             self.d.socket, "--timeout", "%ds" % LIMIT, *options, "--", what],
            input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * LIMIT,
            text=True, errors="replace", check=False)
        self.assertEqual(done.returncode, code, done.stdout[-4000:] + done.stderr)
        return done.stdout, done.stderr

    def commands(self, *options, cpus=1):
        said, end = self.boot("do=commands", "--vcpus", str(cpus), *options)
        lines = said.splitlines()
        self.assertIn("commands done", lines, said[-3000:])
        self.assertEqual([w for w in lines if w.startswith("bad ")], [])
        self.assertGreaterEqual(len([w for w in lines if w.startswith("ok ")]), 13)
        self.assertIn("cpus %d" % cpus, lines)
        self.assertIn("interrupts 1", lines)
        self.assertTrue(end.startswith("poweroff"), end)
        warnings = lines[lines.index("warnings begin") + 1:lines.index("warnings end")]
        self.assertEqual([w for w in warnings if not EXPECTED.search(w)], [])

    # Files, processes, pipes, arithmetic, a clock, power off, and no warning that is not expected.
    def test_commands(self):
        for engine in self.engines:
            with self.subTest(engine=engine):
                self.commands("--engine", engine)

    # A panic is an end of its own, and says why.
    def test_panic(self):
        _, end = self.boot("do=panic", "--engine", self.engines[-1], code=71)
        self.assertTrue(end.startswith("panic: the guest's kernel panicked: sysrq"), end)

    # A shell on the console: what is typed is done, and a reboot is a reset, which ends a run.
    def test_shell(self):
        shell = subprocess.Popen(
            [HVCTL, "run", kernel, "--memory", "256M", "--initrd", self.initrd, "--socket",
             self.d.socket, "--engine", self.engines[-1], "--console"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(shell.stdout.close)
        self.addCleanup(shell.kill)
        said = b""
        for wanted, typed in ((b"/ # ", b"echo answer $((6 * 7))\n"),
                              (b"answer 42", b"reboot -f\n"), (b"asked for a reset", b"")):
            while wanted not in said:
                more = os.read(shell.stdout.fileno(), 65536)
                self.assertTrue(more, said[-2000:])
                said += more
            shell.stdin.write(typed)
            shell.stdin.flush()
        shell.stdin.close()
        self.assertEqual(shell.wait(LIMIT), 0)


if __name__ == "__main__":
    try:
        kernel, busybox = find_kernel(CACHE), find_busybox()
    except Missing as why:
        print("skipped: %s" % why)
        sys.exit(77)
    print("kernel: %s" % kernel)
    unittest.main(verbosity=2)
