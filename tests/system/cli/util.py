"""What the CLI's system tests share: a directory of their own, hvctl with its environment."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import unittest

BUILD = os.environ["MAYFLY_BUILD"]
SOURCE = os.environ["MAYFLY_SOURCE"]
HVCTL = os.path.join(BUILD, "cli", "hvctl")
HVD = os.path.join(BUILD, "daemon", "hvd")
HV = os.path.join(BUILD, "hv", "hv")
GUESTS = os.path.join(BUILD, "tests", "guests")

# Machines are slow and sanitizers slower: a limit that only a hang reaches.
LIMIT = 120


def until(condition, what="the condition", limit=LIMIT):
    """Polls until `condition` gives something true, and returns that."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit} s for {what}")
        time.sleep(0.02)


class Home:
    """Directories, sockets and environment of a daemon of one's own."""

    def __init__(self, may_start):
        self.dir = tempfile.mkdtemp(prefix="mfcli-")
        self.run_dir = os.path.join(self.dir, "run")
        self.socket = os.path.join(self.run_dir, "hvd.sock")
        for name in ("run", "state", "etc"):
            os.mkdir(os.path.join(self.dir, name), 0o700)
        # Checked by tests of their own; a check at each start would be long in a sanitizer build.
        with open(os.path.join(self.dir, "etc", "hvd.conf"), "w", encoding="ascii") as f:
            f.write("plugin-check = off\n")
        self.env = dict(os.environ)
        self.env.update(
            MAYFLY_RUNTIME_DIR=self.run_dir,
            MAYFLY_STATE_DIR=os.path.join(self.dir, "state"),
            MAYFLY_CONFIG_DIR=os.path.join(self.dir, "etc"),
            MAYFLY_HVD=HVD,
            MAYFLY_HV=HV,
            MAYFLY_GUESTS=GUESTS,
        )
        self.env.pop("MAYFLY_NO_START", None)
        if not may_start:
            self.env["MAYFLY_NO_START"] = "1"

    def daemon_pid(self, name):
        """From the daemon's lock, None when it has none."""
        try:
            with open(os.path.join(self.run_dir, name + ".lock"), encoding="ascii") as f:
                return int(f.read().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def stop_daemons(self):
        """Ends hvd, then hv; says which of them did not end when asked to."""
        stubborn = []
        for name in ("hvd", "hv"):
            pid = self.daemon_pid(name)
            if pid and not end_pid(pid):
                stubborn.append(name)
        return stubborn

    def logs(self):
        text = ""
        for name in ("hvd.log", "hv.log"):
            try:
                with open(os.path.join(self.run_dir, name), encoding="utf-8", errors="replace") as f:
                    text += f"--- {name}\n{f.read()[-4000:]}"
            except OSError:
                pass
        return text

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def end_pid(pid, limit=30):
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            return True
        end = time.monotonic() + limit
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.02)
        if not alive(pid):
            return sig == signal.SIGTERM
    return False


class CliTest(unittest.TestCase):
    """Each test has directories and a socket of its own."""

    may_start = False
    shared_home = None

    def setUp(self):
        self.home = self.shared_home
        if not self.home:
            self.home = Home(self.may_start)
            self.addCleanup(self.home.remove)
        self.dir, self.run_dir, self.socket = self.home.dir, self.home.run_dir, self.home.socket
        self.env = dict(self.home.env)

    def hvctl(self, *args, input=None, env=None, cwd=None, code=0):
        """Runs hvctl to its end; checks the exit code unless it is None."""
        done = subprocess.run([HVCTL, *args], input=input, env=env or self.env, cwd=cwd,
                              capture_output=True, text=True, timeout=LIMIT,
                              stdin=None if input is not None else subprocess.DEVNULL)
        if code is not None:
            self.assertEqual(done.returncode, code,
                             f"hvctl {' '.join(args)}\n{done.stdout}\n{done.stderr}")
        return done

    def hvctl_json(self, *args, code=0):
        return json.loads(self.hvctl("-o", "json", *args, code=code).stdout)

    def spawn(self, *args, **kwargs):
        """hvctl in the background, its output in pipes; killed at the end."""
        process = subprocess.Popen([HVCTL, *args], env=self.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)
        self.addCleanup(end_process, process)
        return process

    def guest(self, name):
        return os.path.join(GUESTS, name + ".elf")


def end_process(process):
    if process.poll() is None:
        process.kill()
    process.wait(LIMIT)
    for stream in (process.stdout, process.stderr, process.stdin):
        if stream:
            stream.close()


class DaemonTest(CliTest):
    """With the real daemon and core, which hvctl starts; both gone at the end."""

    may_start = True

    def setUp(self):
        super().setUp()
        if not self.shared_home:
            self.addCleanup(lambda: self.assertEqual(self.home.stop_daemons(), []))

    def run(self, result=None):
        """A failure says what the daemons said."""
        before = result.failures + result.errors if result else []
        done = super().run(result)
        if result and len(result.failures + result.errors) > len(before):
            print(self.last_logs)
        return done

    last_logs = ""

    def tearDown(self):
        self.last_logs = self.home.logs()
        super().tearDown()

    def state(self, vm):
        return self.hvctl_json("show", vm)["state"]

    def wait_state(self, vm, *states):
        return until(lambda: self.state(vm) in states, f"{vm} to be {' or '.join(states)}")

    def define(self, name, guest, *args, memory="16M"):
        self.hvctl("define", "--name", name, "--memory", memory, "--kernel", self.guest(guest), *args)


class SharedDaemonTest(DaemonTest):
    """One daemon and core for all tests of the class; each VM has a name of its own."""

    @classmethod
    def setUpClass(cls):
        cls.shared_home = Home(may_start=True)

    @classmethod
    def tearDownClass(cls):
        stubborn = cls.shared_home.stop_daemons()
        cls.shared_home.remove()
        assert not stubborn, f"{stubborn} did not end when asked to"


def alive(pid):
    """Whether it runs; one that only waits to be collected by its parent does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def terminal_settings(fd):
    return termios.tcgetattr(fd)


class Terminal:
    """hvctl on a pseudo-terminal."""

    def __init__(self, test, *args):
        self.master, self.slave = pty.openpty()
        self.output = b""
        self.process = subprocess.Popen([HVCTL, *args], env=test.env, stdin=self.slave,
                                        stdout=self.slave, stderr=self.slave,
                                        start_new_session=True)
        test.addCleanup(self.close)

    def close(self):
        end_process(self.process)
        os.close(self.master)
        os.close(self.slave)

    def type(self, text):
        os.write(self.master, text)

    def read_some(self, wait=0.05):
        ready, _, _ = select.select([self.master], [], [], wait)
        if ready:
            self.output += os.read(self.master, 65536)

    def expect(self, text, limit=LIMIT):
        end = time.monotonic() + limit
        while text not in self.output:
            if time.monotonic() > end:
                raise AssertionError(f"no {text!r} in {self.output!r}")
            self.read_some()

    def wait(self, limit=LIMIT):
        """The exit code; the output is read meanwhile, for a full terminal would block hvctl."""
        end = time.monotonic() + limit
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"hvctl does not end: {self.output!r}")
            self.read_some()
        self.read_some()
        return self.process.returncode
