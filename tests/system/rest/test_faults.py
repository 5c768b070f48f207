"""A core that dies, lies, or says nothing; daemons that die; two daemons at once."""
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from util import Case, Daemon, FAKECORE, HV, PATIENCE, alive, guest, until


class FakeCore(Case):
    """With the stand-in core."""

    def setUp(self):
        pass

    def daemon(self, fault=None):
        env = {"FAKECORE_FAULT": fault} if fault else {}
        self.d = Daemon(hv=FAKECORE, env=env).start()
        self.addCleanup(self.d.stop)
        until("the core is up", lambda: self.d.get("/v1/host").status == 200)
        self.d.core_pid_at_start = self.d.get("/v1/host").json()["core"]["pid"]
        self.d.cores.add(self.d.core_pid_at_start)
        return self.d

    def running(self, d, name="a"):
        self.ok(d.define(name), 201)
        self.ok(d.post("/v1/vms/%s/start?wait=running" % name))

    def usable_again(self, d):
        """Soon everything works; a core that had to be started anew is one of ours to clear."""
        until("another core is up", lambda: d.get("/v1/host").status == 200)
        d.cores.add(d.get("/v1/host").json()["core"]["pid"])

    def test_run(self):
        d = self.daemon()
        run = self.ok(d.run_guest(cmdline="end"))
        self.assertEqual(run["console"], "fake console\n")
        self.assertEqual(run["end"]["reason"], "poweroff")
        self.assertEqual(self.ok(d.get("/v1/vms")), {"vms": []})

    def test_run_timeout(self):
        d = self.daemon()
        run = self.ok(d.run_guest(timeout_ms=50))
        self.assertEqual(run["end"]["reason"], "timeout")
        self.assertEqual(self.ok(d.get("/v1/vms")), {"vms": []})

    def test_core_dies_in_a_call(self):
        """At a pause (11); below at a start (10) and where a run's console is read (19)."""
        d = self.daemon("die:11")
        self.running(d)
        self.problem(d.post("/v1/vms/a/pause"), 503, code="core-unavailable")
        vm = until("crashed", lambda: (lambda v: v["state"] == "crashed" and v)(d.vm("a")))
        self.assertEqual(vm["end"]["reason"], "core-lost")
        self.assertIsNone(vm["id"])
        self.usable_again(d)
        self.ok(d.post("/v1/vms/a/start?wait=running"))
        self.assertEqual(d.vm("a")["state"], "running")

    def test_core_dies_in_a_run(self):
        d = self.daemon("die:10")
        self.problem(d.run_guest(), 503, code="core-unavailable")
        self.assertEqual(self.ok(d.get("/v1/vms")), {"vms": []})
        self.usable_again(d)

    def test_core_dies_in_the_end_of_a_run(self):
        d = self.daemon("die:19")
        self.problem(d.run_guest(cmdline="end"), 503, code="core-unavailable")
        self.assertEqual(self.ok(d.get("/v1/vms")), {"vms": []})
        self.usable_again(d)

    def nonsense(self, kind):
        """The core lives on, only its talk is not to be trusted: VMs are still there afterwards."""
        d = self.daemon(kind + ":12")
        self.running(d)
        self.ok(d.post("/v1/vms/a/pause"))
        self.problem(d.post("/v1/vms/a/resume"), 503, code="core-unavailable")
        until("paused is known", lambda: d.post("/v1/vms/a/resume?wait=running").status == 200)
        self.assertEqual(d.vm("a")["state"], "running")
        self.assertEqual(d.get("/v1/host").json()["core"]["pid"], d.core_pid_at_start)

    def test_garbage(self):
        self.nonsense("garbage")

    def test_stray_reply(self):
        self.nonsense("stray")

    def test_short_reply(self):
        self.nonsense("short")

    def test_closed_connection(self):
        self.nonsense("close")

    def test_silent_core(self):
        """A call without an answer: its request waits, others do not."""
        d = self.daemon("silent:11")
        self.running(d)
        s = d.connect()
        s.request("POST", "/v1/vms/a/pause")
        for _ in range(20):
            self.ok(d.get("/v1/vms/a"))
            self.ok(d.run_guest(cmdline="end"))
        r = s.getresponse()
        self.assertEqual(r.status, 504)
        self.assertEqual(json.loads(r.read())["code"], "timeout")
        s.close()
        self.ok(d.post("/v1/vms/a/pause"))

    def test_core_that_will_not_start(self):
        d = Daemon(hv="/bin/false").start()
        self.addCleanup(d.stop)
        a = until("503", lambda: (lambda a: a.status == 503 and a)(d.get("/v1/host")))
        self.problem(a, 503, code="core-unavailable")
        self.assertEqual(a.headers["Retry-After"], "1")
        self.ok(d.define("a"), 201)  # definitions need no core
        self.assertEqual(self.ok(d.get("/v1/vms/a"))["state"], "shutoff")
        self.problem(d.post("/v1/vms/a/start"), 503)
        self.assertIn("mayfly_core_up 0", d.get("/metrics").body.decode())
        self.assertEqual(d.delete("/v1/vms/a").status, 204)

    def test_core_that_is_not_there(self):
        d = Daemon(hv="/no/such/hv").start()
        self.addCleanup(d.stop)
        self.problem(d.get("/v1/host"), 503, code="core-unavailable")

    def test_core_started_by_somebody_else(self):
        d = Daemon(hv="/no/such/hv").start()
        self.addCleanup(d.stop)
        core = subprocess.Popen([FAKECORE, "--socket", d.hv_socket])
        self.addCleanup(core.wait)
        self.addCleanup(core.kill)
        until("found", lambda: d.get("/v1/host").status == 200)
        self.assertEqual(d.get("/v1/host").json()["core"]["pid"], core.pid)

    def test_strangers_and_pages(self):
        """VMs of the core that nobody defined are listed; the list comes in several pieces."""
        d = self.daemon()
        for i in range(8):
            self.running(d, "vm-%d" % i)
        d.kill()
        for i in range(4):
            os.unlink(os.path.join(d.state, "vms", "vm-%d.xml" % i))
        d.start()
        until("up", lambda: d.get("/v1/host").status == 200)
        vms = {v["name"]: v for v in self.ok(d.get("/v1/vms"))["vms"]}
        self.assertEqual(len(vms), 8)
        for i in range(8):
            self.assertEqual(vms["vm-%d" % i]["state"], "running")
            self.assertEqual(vms["vm-%d" % i]["transient"], i < 4)
        self.ok(d.post("/v1/vms/vm-0/destroy?wait=shutoff"))
        self.assertEqual(d.delete("/v1/vms/vm-0").status, 204)
        self.problem(d.get("/v1/vms/vm-0"), 404)


class RealCore(Case):
    def test_second_start(self):
        """A second daemon says who is there, and harms nothing."""
        p = subprocess.run(self.d.command(), env=self.d.env, stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual(p.returncode, 1)
        self.assertIn(str(self.d.process.pid), p.stderr.decode())
        self.assertIn("hvd.sock", p.stderr.decode())
        self.ok(self.d.get("/v1/host"))

    def test_stale_socket(self):
        self.d.kill()
        self.assertTrue(os.path.exists(self.d.socket))
        self.d.start()
        self.ok(self.d.get("/v1/host"))
        self.assertEqual(os.stat(self.d.socket).st_mode & 0o777, 0o600)

    def test_foreign_file_is_left_alone(self):
        self.d.kill()
        os.unlink(self.d.socket)
        with open(self.d.socket, "w") as f:
            f.write("precious")
        p = subprocess.run(self.d.command(), env=self.d.env, stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual(p.returncode, 1)
        self.assertEqual(open(self.d.socket).read(), "precious")

    def test_bad_options(self):
        for args in (["--memory", "x"], ["--memory", "0"], ["--bogus"], ["extra"],
                     ["--memory", "9223372036854775808T"], ["--allocator", "No Such"],
                     ["--idle-exit", "-1"], ["--socket", "/x" * 100], ["--socket"]):
            p = subprocess.run(self.d.command()[:1] + args, env=self.d.env,
                               stderr=subprocess.PIPE, timeout=PATIENCE)
            self.assertEqual(p.returncode, 1, args)
            self.assertTrue(p.stderr.startswith(b"hvd: "), p.stderr)

    def test_term(self):
        """A daemon that is told to end answers who waits, and leaves no socket; the VMs go on."""
        self.ok(self.d.define("a"), 201)
        self.ok(self.d.post("/v1/vms/a/start?wait=running"))
        waiting = self.d.connect()
        waiting.request("POST", "/v1/vms/a/shutdown?wait=shutoff&grace_ms=600000")
        events = self.d.connect()
        events.request("GET", "/v1/events")
        stream = events.getresponse()
        core = self.d.core_pid()
        time.sleep(0.2)
        self.assertEqual(self.d.kill(signal.SIGTERM), 0)
        r = waiting.getresponse()
        self.assertEqual(r.status, 503)
        stream.read()  # ends, and ends well
        self.assertFalse(os.path.exists(self.d.socket))
        self.assertTrue(alive(core))
        self.d.start()
        until("reconciled", lambda: self.d.vm("a")["id"] is not None)

    def test_kill_hvd(self):
        """SIGKILL while VMs run loses no VM and no definition."""
        for name in ("a", "b", "c"):
            self.ok(self.d.define(name), 201)
            self.ok(self.d.post("/v1/vms/%s/start?wait=running" % name))
        self.ok(self.d.post("/v1/vms/b/pause?wait=paused"))
        self.ok(self.d.define("off"), 201)
        before = {v["name"]: (v["id"], v["uuid"], v["state"])
                  for v in self.ok(self.d.get("/v1/vms"))["vms"]}
        core = self.d.core_pid()
        for _ in range(3):
            self.d.kill()
            self.d.start()
            # The very first answer is right: it waits for the core's list.
            after = {v["name"]: (v["id"], v["uuid"], v["state"])
                     for v in self.ok(self.d.get("/v1/vms"))["vms"]}
            self.assertEqual(before, after)
        self.assertEqual(self.d.core_pid(), core)
        self.ok(self.d.post("/v1/vms/b/resume?wait=running"))
        for name in ("a", "b", "c"):
            self.ok(self.d.post("/v1/vms/%s/destroy?wait=shutoff" % name))

    def test_kill_hvd_in_a_run(self):
        """What a run of a dead daemon left goes when it has ended."""
        c = self.d.connect()
        c.request("POST", "/v1/run", json.dumps({"kernel": guest("idle"), "name": "left"}),
                  {"Content-Type": "application/json"})
        until("it runs", lambda: [v for v in self.d.get("/v1/vms").json()["vms"]
                                  if v["state"] == "running"])
        self.d.kill()
        self.d.start()
        until("reconciled", lambda: self.d.get("/v1/host").status == 200)
        vm = self.d.vm("left")
        self.assertEqual((vm["state"], vm["transient"]), ("running", True))
        self.ok(self.d.post("/v1/vms/left/destroy"))
        until("swept", lambda: self.d.get("/v1/vms").json() == {"vms": []})
        heap = self.d.heap()
        self.assertEqual(heap["free"], heap["frames"])

    def test_kill_hv(self):
        """SIGKILL of the core: VMs are crashed, the daemon lives and starts another core."""
        self.ok(self.d.define("a"), 201)
        self.ok(self.d.define("off"), 201)
        self.ok(self.d.post("/v1/vms/a/start?wait=running"))
        follow = self.d.connect()
        follow.request("GET", "/v1/vms/a/console?follow=1")
        stream = follow.getresponse()
        run = self.d.connect()
        run.request("POST", "/v1/run", json.dumps({"kernel": guest("idle")}),
                    {"Content-Type": "application/json"})
        until("both run", lambda: len([v for v in self.d.get("/v1/vms").json()["vms"]
                                       if v["state"] == "running"]) == 2)
        first = self.d.core_pid()
        os.kill(first, signal.SIGKILL)
        r = run.getresponse()
        self.assertEqual(r.status, 503)
        self.assertEqual(json.loads(r.read())["code"], "core-unavailable")
        stream.read()  # ends
        vm = until("crashed", lambda: (lambda v: v["state"] == "crashed" and v)(self.d.vm("a")))
        self.assertEqual(vm["end"]["reason"], "core-lost")
        self.assertEqual(self.d.vm("off")["state"], "shutoff")
        until("another core", lambda: self.d.get("/v1/host").status == 200)
        self.assertNotEqual(self.d.core_pid(), first)
        self.ok(self.d.post("/v1/vms/a/start?wait=running"))
        self.assertEqual(self.ok(self.d.run_guest())["end"]["reason"], "poweroff")

    def test_idle_exit(self):
        """A daemon that nobody needs ends, and takes the core that it started along."""
        d = Daemon()
        self.addCleanup(d.stop)
        d.start("--idle-exit", "1")
        self.ok(d.run_guest())
        core = d.core_pid()
        self.assertEqual(d.process.wait(PATIENCE), 0)
        until("the core ended", lambda: not alive(core))
        self.assertFalse(os.path.exists(d.socket))


if __name__ == "__main__":
    unittest.main()
