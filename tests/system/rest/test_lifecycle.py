"""VMs from definition to deletion with real guests; runs; swaps; what is left afterwards."""
import json
import os
import re
import socket
import threading
import time
import unittest

from util import Case, Daemon, PATIENCE, guest, until

XML = {"Content-Type": "application/xml"}
END_MEMBERS = {"reason", "code", "create_ns", "start_ns", "run_ns", "unreachable_ns", "returned_ns",
               "instructions", "loops", "loops_per_pass", "entries_removed", "tables_freed",
               "roots_freed", "frames_returned", "steps", "step_max_ns", "engine", "kernel_ns",
               "teardown", "detail"}


class Lifecycle(Case):
    def all_free(self):
        heap = self.d.heap()
        self.assertEqual((heap["free"], heap["used_ram"], heap["used_table"]),
                         (heap["frames"], 0, 0))
        audit = self.ok(self.d.get("/v1/host/heap/audit"))
        for key in ("overlaps", "bad_records", "listed_in_use", "lost", "used_ram", "used_table"):
            self.assertEqual(audit[key], 0, audit)

    def test_define_show_delete(self):
        a = self.d.define("web-1", vcpus=1, teardown="scan", cmdline="a <b> & c", weight=7, cap=50)
        vm = self.ok(a, 201)
        self.assertEqual(a.headers["Location"], "/v1/vms/web-1")
        self.assertEqual(vm["memory"], 16 << 20)
        self.assertEqual((vm["state"], vm["id"], vm["end"], vm["transient"]),
                         ("shutoff", None, None, False))
        self.assertEqual(self.ok(self.d.get("/v1/vms/" + vm["uuid"])), vm)
        self.assertEqual(self.ok(self.d.get("/v1/vms")), {"vms": [vm]})
        self.problem(self.d.define("web-1"), 409, "name", "exists")
        self.problem(self.d.define("web-2", uuid=vm["uuid"]), 409, "uuid", "exists")
        head = self.d.ask("HEAD", "/v1/vms/web-1")
        self.assertEqual((head.status, head.body), (200, b""))
        self.assertEqual(self.d.delete("/v1/vms/web-1").status, 204)
        self.problem(self.d.delete("/v1/vms/web-1"), 404)

    def test_xml_both_ways(self):
        text = ("<domain type='mayfly' xmlns:mayfly='urn:mayfly:domain:1'>\n<name>x</name>"
                "<memory unit='MiB'>16</memory><vcpu>1</vcpu><os><type>hvm</type>"
                "<kernel>%s</kernel><cmdline>q &amp; r</cmdline></os>"
                "<on_reboot>destroy</on_reboot>"
                "<mayfly:strategy teardown='skip' engine='soft'/></domain>" % guest("idle"))
        self.ok(self.d.post("/v1/vms", text, XML), 201)
        vm = self.d.vm("x")
        self.assertEqual((vm["cmdline"], vm["teardown"], vm["engine"], vm["on_reset"]),
                         ("q & r", "skip", "soft", "end"))
        got = self.d.get("/v1/vms/x", Accept="application/xml")
        self.assertEqual(got.headers["Content-Type"], "application/xml")
        self.assertEqual(self.d.delete("/v1/vms/x").status, 204)
        self.ok(self.d.post("/v1/vms", got.body, XML), 201)
        self.assertEqual(self.d.vm("x"), vm)

    def test_put(self):
        self.ok(self.d.put("/v1/vms/p", {"name": "p", "memory": "16M", "kernel": guest("idle")}), 201)
        uuid = self.d.vm("p")["uuid"]
        new = {"name": "p", "memory": "32M", "kernel": guest("idle"), "cmdline": "new"}
        self.ok(self.d.put("/v1/vms/p", new))
        vm = self.d.vm("p")
        self.assertEqual((vm["memory"], vm["cmdline"], vm["uuid"]), (32 << 20, "new", uuid))
        self.problem(self.d.put("/v1/vms/q", new), 400, "name")
        self.problem(self.d.put("/v1/vms/p", dict(new, uuid="0c80c3ff-25e3-4312-9557-278613256d56")),
                     409, "uuid")
        self.ok(self.d.post("/v1/vms/p/start?wait=running"))
        self.problem(self.d.put("/v1/vms/p", new), 409, code="wrong-state")
        self.problem(self.d.delete("/v1/vms/p"), 409, code="wrong-state")
        self.ok(self.d.post("/v1/vms/p/destroy?wait=shutoff"))
        self.ok(self.d.put("/v1/vms/p", dict(new, memory="64M")))
        vm = self.ok(self.d.post("/v1/vms/p/start?wait=running"))
        self.assertEqual(vm["memory"], 64 << 20)
        self.ok(self.d.post("/v1/vms/p/destroy?wait=shutoff"))
        self.assertEqual(self.d.delete("/v1/vms/p").status, 204)
        self.all_free()

    def test_wrong_state(self):
        """An action that does not fit the state is 409, and the state stays."""
        self.ok(self.d.define("s"), 201)
        for action in ("pause", "resume", "reset", "shutdown", "destroy"):
            self.problem(self.d.post("/v1/vms/s/" + action), 409, code="wrong-state")
        self.problem(self.d.post("/v1/vms/s/console", b"x"), 409, code="wrong-state")
        self.ok(self.d.post("/v1/vms/s/start?wait=running"))
        for action in ("start", "resume"):
            self.problem(self.d.post("/v1/vms/s/" + action), 409, code="wrong-state")
        self.assertEqual(self.d.vm("s")["state"], "running")
        self.ok(self.d.post("/v1/vms/s/pause?wait=paused"))
        for action in ("start", "pause"):
            self.problem(self.d.post("/v1/vms/s/" + action), 409, code="wrong-state")
        self.assertEqual(self.d.vm("s")["state"], "paused")
        # A paused VM can still be ended.
        self.ok(self.d.post("/v1/vms/s/shutdown?wait=shutoff&grace_ms=50"))
        self.assertIn(self.d.vm("s")["end"]["reason"], ("shutdown", "destroyed"))
        for action in ("pause", "resume", "destroy"):
            self.problem(self.d.post("/v1/vms/s/" + action), 409, code="wrong-state")

    def test_lives(self):
        """The same VM several times: started, ended, started; reset; each end has its report."""
        self.ok(self.d.define("v", kernel="hello-pvh"), 201)
        for life in range(1, 4):
            vm = self.ok(self.d.post("/v1/vms/v/start?wait=ended"))
            self.assertEqual(vm["state"], "shutoff")
            self.assertEqual(vm["end"]["reason"], "poweroff")
            self.assertEqual(set(vm["report"]), END_MEMBERS)
            self.assertEqual(self.d.get("/v1/vms/v/console").body, b"Hello world!\n" * life)
        self.ok(self.d.define("r"), 201)
        self.ok(self.d.post("/v1/vms/r/start?wait=running"))
        starts = self.d.vm("r")["starts"]
        self.ok(self.d.post("/v1/vms/r/reset?wait=running"))
        until("it runs again", lambda: self.d.vm("r")["starts"] == starts + 1)
        self.ok(self.d.post("/v1/vms/r/destroy?wait=shutoff"))
        self.all_free()

    def test_endless_loop(self):
        """A guest that spins with interrupts off is destroyed, running and paused."""
        self.ok(self.d.define("l", kernel="loop"), 201)
        for pause in (False, True):
            self.ok(self.d.post("/v1/vms/l/start?wait=running"))
            if pause:
                self.ok(self.d.post("/v1/vms/l/pause?wait=paused"))
            vm = self.ok(self.d.post("/v1/vms/l/destroy?wait=shutoff"))
            self.assertEqual(vm["end"]["reason"], "destroyed")
        self.all_free()

    def test_wait_timeout(self):
        self.ok(self.d.define("w"), 201)
        self.problem(self.d.post("/v1/vms/w/start?wait=ended&timeout_ms=50"), 504, code="timeout")
        self.assertEqual(self.d.vm("w")["state"], "running")
        self.ok(self.d.post("/v1/vms/w/destroy?wait=ended"))

    # ---- runs

    def test_run(self):
        for kernel in ("hello-pvh", "hello"):
            run = self.ok(self.d.run_guest(kernel))
            self.assertEqual(run["console"], "Hello world!\n")
            self.assertFalse(run["console_truncated"])
            self.assertEqual(run["end"]["reason"], "poweroff")
            self.assertEqual(set(run["report"]), END_MEMBERS)
            self.assertEqual(run["report"]["teardown"], "single")
            self.assertEqual(len(run["report"]["loops_per_pass"]), 4)
            self.assertGreater(run["report"]["frames_returned"], 0)
            self.assertGreater(run["wall_ns"], 0)
        self.assertEqual(self.ok(self.d.get("/v1/vms")), {"vms": []})
        self.all_free()

    def test_run_ends(self):
        for kernel, reason in (("triple", "triple-fault"), ("reset-cf9", "reset"),
                               ("reset-kbd", "reset"), ("debug-exit", "debug-exit")):
            self.assertEqual(self.ok(self.d.run_guest(kernel))["end"]["reason"], reason, kernel)
        run = self.ok(self.d.run_guest("loop", timeout_ms=100, teardown="scan"))
        self.assertEqual(run["end"]["reason"], "timeout")
        self.assertEqual(run["report"]["teardown"], "scan")
        self.problem(self.d.run_guest(teardown="no-such"), 503, "teardown", "no-teardown")
        self.all_free()

    def test_run_names(self):
        self.ok(self.d.define("taken"), 201)
        self.problem(self.d.run_guest(name="taken"), 409, "name", "exists")
        self.assertEqual(self.ok(self.d.run_guest(name="mine"))["name"], "mine")
        self.assertEqual(self.ok(self.d.run_guest(name="mine"))["name"], "mine")

    def test_run_client_goes(self):
        """Nobody waits for the run any more: its VM goes, too."""
        c = self.d.connect()
        c.request("POST", "/v1/run", json.dumps({"kernel": guest("loop")}),
                  {"Content-Type": "application/json"})
        until("it runs", lambda: self.d.get("/v1/vms").json()["vms"])
        c.close()
        until("it went", lambda: not self.d.get("/v1/vms").json()["vms"])
        self.all_free()

    def test_thousand_runs(self):
        """A thousand runs on one connection leave no file, no frame and no VM."""
        self.ok(self.d.run_guest())
        core = self.d.core_pid()
        c = self.d.connect()
        self.d.ask("GET", "/v1/version", connection=c)
        free = self.d.heap()["free"]
        fds, core_fds = self.d.fds(), self.d.fds(core)
        body = json.dumps({"kernel": guest("hello-pvh")})
        for _ in range(1000):
            a = self.d.ask("POST", "/v1/run", body, {"Content-Type": "application/json"}, c)
            self.assertEqual(a.status, 200, a.body)
            self.assertIn(b'"console":"Hello world!\\n"', a.body)
        self.assertEqual(self.d.heap()["free"], free)
        # Connections that just closed may still be on their way out, before and after; a leak of one
        # file a run would be a thousand.
        until("the files are let go of", lambda: self.d.fds() <= fds + 1)
        until("the core's files are let go of", lambda: self.d.fds(core) <= core_fds + 1)
        c.close()
        self.all_free()
        text = self.d.get("/metrics").body.decode()
        self.assertIn("mayfly_runs_total 1001\n", text)
        self.assertIn("mayfly_run_seconds_count 1001\n", text)

    def test_parallel_runs(self):
        """Many at once, with a list and a heap in between, get each their own answer."""
        bad = []

        def work():
            c = self.d.connect()
            for i in range(20):
                a = self.d.ask("POST", "/v1/run", {"kernel": guest("hello")}, None, c)
                if a.status != 200 or a.json()["console"] != "Hello world!\n":
                    bad.append(a.body)
                self.d.ask("GET", "/v1/vms", connection=c)
            c.close()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(bad, [])
        self.assertEqual(self.ok(self.d.get("/v1/vms")), {"vms": []})
        self.all_free()

    # ---- swaps

    def test_swaps(self):
        """The acceptance walk: three VMs alive, teardown and allocator swapped under them."""
        self.ok(self.d.put("/v1/host/allocator", {"name": "buddy-page"}))
        for name in ("a", "b", "c"):
            self.ok(self.d.define(name), 201)
            self.ok(self.d.post("/v1/vms/%s/start?wait=running" % name))
        self.ok(self.d.post("/v1/vms/a/pause?wait=paused"))
        swap = self.ok(self.d.put("/v1/vms/a/teardown", {"name": "scan"}))
        self.assertEqual((swap["from"], swap["to"]), ("single", "scan"))
        swap = self.ok(self.d.put("/v1/vms/b/teardown", {"name": "tracked"}))
        self.assertEqual((swap["from"], swap["to"]), ("single", "tracked"))
        swap = self.ok(self.d.put("/v1/host/allocator", {"name": "buddy-lazy"}))
        self.assertEqual((swap["from"], swap["to"]), ("buddy-page", "buddy-lazy"))
        self.assertGreater(swap["free_frames"], 0)
        self.assertGreater(self.d.heap()["used_table"], 0)
        self.assertEqual(self.d.vm("a")["teardown_active"], "scan")
        self.assertEqual(self.d.vm("a")["teardown"], "scan")
        for name, teardown in (("a", "scan"), ("b", "tracked"), ("c", "single")):
            vm = self.ok(self.d.post("/v1/vms/%s/destroy?wait=ended" % name))
            self.assertEqual(vm["report"]["teardown"], teardown)
            self.assertEqual(self.d.delete("/v1/vms/" + name).status, 204)
        self.all_free()

    def test_bad_swaps(self):
        self.ok(self.d.define("a"), 201)
        heap = self.d.heap()
        for path in ("/v1/host/allocator", "/v1/host/teardown", "/v1/vms/a/teardown"):
            self.problem(self.d.put(path, {"name": "no-such"}), 404, "name")
            self.problem(self.d.put(path, {"name": "No"}), 400, "name", "bad-name")
        # Of the other kind.
        self.problem(self.d.put("/v1/host/allocator", {"name": "scan"}), 404)
        self.problem(self.d.put("/v1/host/teardown", {"name": "buddy-lazy"}), 404)
        self.assertEqual(self.d.heap(), heap)
        self.assertIsNone(self.d.vm("a")["teardown"])

    def test_teardown_is_remembered(self):
        self.ok(self.d.define("a"), 201)
        self.ok(self.d.put("/v1/vms/a/teardown", {"name": "skip"}))
        self.ok(self.d.put("/v1/host/teardown", {"name": "scan"}))
        self.assertEqual(self.ok(self.d.get("/v1/host"))["teardown_default"], "scan")
        self.d.kill()
        self.d.start()
        self.assertEqual(self.d.vm("a")["teardown"], "skip")

    # ---- the rest

    def test_host(self):
        host = self.ok(self.d.get("/v1/host"))
        self.assertEqual(host["memory"], 4 << 30)
        self.assertEqual(host["abi"], 1)
        self.assertTrue(host["engines"]["soft"]["usable"])
        # Whatever this machine has: not usable, and then why.
        kvm = host["engines"]["kvm"]
        self.assertTrue(kvm["usable"] or kvm["why"])
        self.assertEqual(host["core"]["pid"], self.d.core_pid())
        self.assertRegex(host["core"]["instance"], "^[0-9a-f]{32}$")
        heap = self.d.heap()
        self.assertEqual(heap["allocator"], "buddy-lazy")
        self.assertEqual(len(heap["free_blocks"]), 19)
        schema = self.ok(self.d.get("/v1/openapi.json"))
        with open(os.path.join(os.environ["MAYFLY_SOURCE"], "proto", "openapi.json")) as f:
            self.assertEqual(schema, json.load(f))

    def test_answers_follow_the_schema(self):
        """Objects on the wire have exactly the members that the schema says."""
        schema = self.ok(self.d.get("/v1/openapi.json"))["components"]["schemas"]

        def same(name, value):
            want = schema[name]
            self.assertLessEqual(set(want.get("required", [])), set(value), name)
            self.assertLessEqual(set(value), set(want["properties"]), name)

        self.ok(self.d.define("a"), 201)
        self.ok(self.d.post("/v1/vms/a/start?wait=running"))
        same("Vm", self.d.vm("a"))
        same("Stats", self.d.vm("a")["stats"])
        same("Stats", self.ok(self.d.get("/v1/vms/a/stats")))
        same("Swap", self.ok(self.d.put("/v1/vms/a/teardown", {"name": "scan"})))
        vm = self.ok(self.d.post("/v1/vms/a/destroy?wait=ended"))
        same("End", vm["end"])
        same("EndReport", vm["report"])
        run = self.ok(self.d.run_guest())
        same("RunResult", run)
        same("EndReport", run["report"])
        same("Host", self.ok(self.d.get("/v1/host")))
        same("Heap", self.d.heap())
        same("HeapAudit", self.ok(self.d.get("/v1/host/heap/audit")))
        same("Version", self.ok(self.d.get("/v1/version")))
        listed = self.ok(self.d.get("/v1/strategies"))
        same("StrategyList", listed)
        same("Strategy", listed["strategies"][0])
        same("Problem", self.d.get("/v1/vms/none").json())

    def test_metrics(self):
        self.ok(self.d.define("a"), 201)
        text = self.d.get("/metrics").body.decode()
        for line in text.splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) \w+ .+|\w+(\{\w+=\"[^\"]*\"\})? [0-9.e+-]+)$")
        self.assertIn('mayfly_vms{state="shutoff"} 1', text)
        self.assertIn("mayfly_core_up 1", text)
        names = re.findall(r"^# TYPE (\w+)", text, re.M)
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
