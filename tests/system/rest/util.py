"""Starts hvd and hv of the build tree in a directory of their own and talks HTTP to them."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ["MAYFLY_BUILD"]
HVD = os.path.join(BUILD, "daemon", "hvd")
HV = os.path.join(BUILD, "hv", "hv")
FAKECORE = os.path.join(BUILD, "tests", "system", "rest", "fakecore")
GUESTS = os.path.join(BUILD, "tests", "guests")
PLUGINS = os.path.join(BUILD, "plugins")
PATIENCE = 60.0  # seconds for what takes milliseconds on a machine that is not busy


def guest(name):
    return os.path.join(GUESTS, name + ".elf")


def until(what, check, patience=PATIENCE):
    """Polls `check` until it gives something true, which is returned."""
    end = time.monotonic() + patience
    while True:
        got = check()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError("did not happen: " + what)
        time.sleep(0.01)


def alive(pid):
    """True while the process runs: one that is dead and waits to be collected does not count."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout=PATIENCE):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.headers = response.headers
        self.body = body

    def json(self):
        return json.loads(self.body)


class Daemon:
    """hvd in a fresh directory; the core it starts lives there, too."""

    # Plugins of this build are checked by tests of their own; a check at each start would be long in
    # a sanitizer build.
    plugin_check = "off"

    def __init__(self, hv=HV, memory="4G", env=None):
        self.dir = tempfile.mkdtemp(prefix="mfr-")
        self.run_dir = os.path.join(self.dir, "run")
        self.state = os.path.join(self.dir, "state")
        os.mkdir(self.run_dir, 0o700)
        self.socket = os.path.join(self.run_dir, "hvd.sock")
        self.hv_socket = os.path.join(self.run_dir, "hv.sock")
        self.memory = memory
        self.env = dict(os.environ, MAYFLY_RUNTIME_DIR=self.run_dir, MAYFLY_STATE_DIR=self.state,
                        MAYFLY_CONFIG_DIR=os.path.join(self.dir, "config"), MAYFLY_HV=hv,
                        MAYFLY_PLUGIN_PATH=PLUGINS, **(env or {}))
        self.process = None
        self.cores = set()

    def command(self, *args):
        return [HVD, "--memory", self.memory, "--plugin-check", self.plugin_check, *args]

    def start(self, *args, wait=True):
        with open(os.path.join(self.dir, "hvd.log"), "a") as log:
            self.process = subprocess.Popen(self.command(*args), env=self.env, stderr=log,
                                            stdin=subprocess.DEVNULL)
        if wait:
            until("hvd answers", self.answers)
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError("hvd ended: " + self.log())
        try:
            return self.get("/v1/version").status == 200
        except OSError:
            return False

    def log(self, name="hvd.log"):
        for place in (self.dir, self.run_dir):
            path = os.path.join(place, name)
            if os.path.exists(path):
                with open(path, errors="replace") as f:
                    return f.read()
        return ""

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        return self.process.wait(PATIENCE)

    def stop(self):
        """Everything that was started here ends; what hvd said at its end is returned."""
        core = self.core_pid()
        status = None
        if self.process is not None and self.process.poll() is None:
            status = self.kill(signal.SIGTERM)
        for pid in self.cores | ({core} if core else set()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)
        return status

    def core_pid(self):
        """The core's process, by who has its socket."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(self.hv_socket)
                cred = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                pid = int.from_bytes(cred[:4], "little")
                self.cores.add(pid)
                return pid
        except OSError:
            return None

    # ---- requests

    def connect(self, timeout=PATIENCE):
        return Connection(self.socket, timeout)

    def ask(self, method, path, body=None, headers=None, connection=None):
        c = connection or self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers = dict({"Content-Type": "application/json"}, **(headers or {}))
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return Answer(r, r.read())
        finally:
            if connection is None:
                c.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body=None, headers=None):
        return self.ask("POST", path, body, headers)

    def put(self, path, body, headers=None):
        return self.ask("PUT", path, body, headers)

    def delete(self, path):
        return self.ask("DELETE", path)

    def define(self, name, kernel="idle", **more):
        return self.post("/v1/vms", dict({"name": name, "memory": "16M", "kernel": guest(kernel)},
                                         **more))

    def vm(self, name):
        return self.get("/v1/vms/" + name).json()

    def run_guest(self, kernel="hello-pvh", **more):
        return self.post("/v1/run", dict({"kernel": guest(kernel)}, **more))

    def heap(self):
        return self.get("/v1/host/heap").json()

    def fds(self, pid=None):
        return len(os.listdir("/proc/%d/fd" % (pid or self.process.pid)))


class Case(unittest.TestCase):
    """A test with a daemon and a real core."""

    def setUp(self):
        self.d = Daemon().start()
        self.addCleanup(self.d.stop)

    def ok(self, answer, status=200):
        self.assertEqual(answer.status, status, answer.body[:500])
        return answer.json() if answer.body else None

    def problem(self, answer, status, field=None, code=None, detail=None):
        """The answer is a problem document with these parts."""
        self.assertEqual(answer.status, status, answer.body[:500])
        self.assertEqual(answer.headers["Content-Type"], "application/problem+json")
        doc = answer.json()
        self.assertEqual(doc["type"], "about:blank")
        self.assertEqual(doc["status"], status)
        self.assertTrue(doc["title"] and doc["code"] and doc["detail"])
        if field is not None:
            self.assertEqual(doc.get("field"), field, doc)
        if code is not None:
            self.assertEqual(doc["code"], code, doc)
        if detail is not None:
            self.assertIn(detail, doc["detail"])
        return doc


class SharedCase(Case):
    """Tests that change nothing for each other, and so have one daemon together."""

    @classmethod
    def setUpClass(cls):
        cls.shared = Daemon().start()

    @classmethod
    def tearDownClass(cls):
        cls.shared.stop()

    def setUp(self):
        self.d = self.shared
