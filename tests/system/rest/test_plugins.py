"""Plugins: what is found, what is refused and why, loading and unloading by request."""
import json
import os
import shutil
import signal
import struct
import time
import unittest

from util import BUILD, Case, Daemon, PLUGINS, alive, until

BROKEN = os.path.join(BUILD, "tests", "plugins", "broken")


class Plugins(Case):
    def setUp(self):
        self.dir = None

    def daemon(self, prepare):
        """A daemon whose plugin directory holds what `prepare` puts there."""
        self.d = Daemon()
        self.addCleanup(self.d.stop)
        self.dir = os.path.join(self.d.dir, "plugins")
        os.mkdir(self.dir, 0o755)
        prepare(self.dir)
        self.d.env["MAYFLY_PLUGIN_PATH"] = "/no/such/dir:" + self.dir
        self.d.start()
        until("up", lambda: self.d.get("/v1/strategies").status == 200)
        return self.d

    @staticmethod
    def copy(to, name, new=None, mode=0o644):
        path = os.path.join(to, new or name)
        shutil.copy(os.path.join(PLUGINS, name), path)
        os.chmod(path, mode)
        return path

    def listing(self):
        got = self.ok(self.d.get("/v1/strategies"))
        return ({(s["kind"], s["name"]) for s in got["strategies"]},
                {os.path.basename(r["path"]): r["detail"] for r in got["refused"]})

    def base(self, to):
        self.copy(to, "allocator_buddy-lazy.so")
        self.copy(to, "teardown_single.so")

    def test_shipped(self):
        self.d = Daemon().start()
        self.addCleanup(self.d.stop)
        until("up", lambda: self.d.get("/v1/strategies").status == 200)
        loaded, refused = self.listing()
        self.assertLessEqual({("allocator", n) for n in ("buddy-page", "buddy-chunk", "buddy-lazy")} |
                             {("teardown", n) for n in ("scan", "skip", "single", "tracked")}, loaded)
        self.assertEqual(refused, {})
        one = self.ok(self.d.get("/v1/strategies/allocator/buddy-lazy"))
        self.assertTrue(one["default"])
        self.assertEqual(one["users"], 1)
        self.assertTrue(one["path"].endswith("allocator_buddy-lazy.so"))
        self.problem(self.d.get("/v1/strategies/allocator/scan"), 404)
        self.problem(self.d.get("/v1/strategies/engine/soft"), 404)

    def test_refused_files(self):
        def prepare(to):
            self.base(to)
            self.copy(to, "teardown_scan.so", mode=0o664)
            self.copy(to, "teardown_skip.so", mode=0o646)
            with open(os.path.join(to, "text.so"), "w") as f:
                f.write("not an ELF file, but long enough to be looked at as one, one would think")
            open(os.path.join(to, "empty.so"), "w").close()
            whole = open(os.path.join(PLUGINS, "teardown_tracked.so"), "rb").read()
            with open(os.path.join(to, "cut.so"), "wb") as f:
                f.write(whole[:200])
            at = whole.index(b"Mayfly\0\0") + 8
            other = bytearray(whole)
            struct.pack_into("<I", other, at + 4, 99)
            with open(os.path.join(to, "abi.so"), "wb") as f:
                f.write(other)
            os.symlink("teardown_single.so", os.path.join(to, "link.so"))
            os.mkdir(os.path.join(to, "dir.so"))
            self.copy(to, "teardown_single.so", "zz-again.so")
            with open(os.path.join(to, "readme.txt"), "w") as f:
                f.write("not looked at")

        self.daemon(prepare)
        loaded, refused = self.listing()
        self.assertEqual(loaded, {("allocator", "buddy-lazy"), ("teardown", "single")})
        for name, word in (("teardown_scan.so", "group or by others"),
                           ("teardown_skip.so", "group or by others"), ("text.so", "not an ELF"),
                           ("empty.so", "bytes"), ("cut.so", ""), ("abi.so", "99"),
                           ("link.so", "regular"), ("dir.so", "regular"),
                           ("zz-again.so", "of this name")):
            self.assertIn(word, refused.get(name, "NOT REFUSED: " + name))
        self.assertEqual(len(refused), 9)

    def test_directory_of_others(self):
        self.daemon(lambda to: (self.base(to), os.chmod(to, 0o777)))
        loaded, refused = self.listing()
        self.assertEqual(loaded, set())
        self.assertEqual(len(refused), 2)
        # No allocator, no teardown: said so, and nothing is made up.
        a = self.d.run_guest()
        self.assertEqual(a.status, 503)
        self.assertIn(a.json()["code"], ("no-allocator", "no-teardown"))

    def test_load_and_unload(self):
        self.daemon(self.base)
        path = os.path.join(PLUGINS, "teardown_scan.so")
        a = self.d.post("/v1/strategies", {"path": path})
        got = self.ok(a, 201)
        self.assertEqual((got["kind"], got["name"], got["users"], got["path"]),
                         ("teardown", "scan", 0, path))
        self.assertEqual(a.headers["Location"], "/v1/strategies/teardown/scan")
        self.problem(self.d.post("/v1/strategies", {"path": path}), 409, code="exists")
        self.ok(self.d.put("/v1/host/teardown", {"name": "scan"}))
        self.problem(self.d.delete("/v1/strategies/teardown/scan"), 409, code="in-use")
        self.problem(self.d.delete("/v1/strategies/allocator/buddy-lazy"), 409, code="in-use")
        self.ok(self.d.put("/v1/host/teardown", {"name": "single"}))
        self.assertEqual(self.d.delete("/v1/strategies/teardown/scan").status, 204)
        self.problem(self.d.delete("/v1/strategies/teardown/scan"), 404)
        self.ok(self.d.post("/v1/strategies", {"path": path}), 201)

    def test_bad_loads(self):
        self.daemon(self.base)
        before = self.listing()
        writable = self.copy(self.dir, "teardown_scan.so", mode=0o666)
        text = os.path.join(self.dir, "text.so")
        with open(text, "w") as f:
            f.write("x" * 1000)
        for path in ("relative.so", "", "/no/such.so", "/dev/zero", self.dir, writable, text):
            a = self.d.post("/v1/strategies", {"path": path})
            self.problem(a, 403 if path == writable else 400, "path")
        self.problem(self.d.post("/v1/strategies", {"path": 5}), 400, "path")
        self.assertEqual(self.listing(), before)

    def test_rescan(self):
        self.daemon(self.base)
        self.copy(self.dir, "teardown_skip.so")
        self.d.process.send_signal(signal.SIGHUP)
        until("found", lambda: ("teardown", "skip") in self.listing()[0])

    def test_reload_after_restart(self):
        """A daemon that finds a core with plugins loads what is missing and keeps what is selected."""
        self.daemon(lambda to: (self.base(to), self.copy(to, "allocator_buddy-page.so")))
        self.ok(self.d.put("/v1/host/allocator", {"name": "buddy-page"}))
        self.d.kill()
        self.copy(self.dir, "teardown_skip.so")
        self.d.start()
        until("up", lambda: self.d.get("/v1/strategies").status == 200)
        self.assertEqual(len(self.listing()[0]), 4)
        self.assertEqual(self.ok(self.d.get("/v1/host"))["allocator"], "buddy-page")


class Conformance(Case):
    """Plugins are checked before the core gets them."""

    def setUp(self):
        self.d = Daemon()
        self.addCleanup(self.d.stop)
        self.d.plugin_check = "enforce"
        self.dir = os.path.join(self.d.dir, "plugins")
        os.mkdir(self.dir, 0o755)
        for name in ("allocator_buddy-lazy.so", "teardown_single.so"):
            Plugins.copy(self.dir, name)
        self.d.env["MAYFLY_PLUGIN_PATH"] = self.dir
        # Of a file that was written just now no verdict is kept.
        old = time.time() + 0.3
        until("files have settled", lambda: time.time() > old)

    def broken(self, name, to=None):
        path = os.path.join(to or self.d.dir, name + ".so")
        shutil.copy(os.path.join(BROKEN, name + ".so"), path)
        os.chmod(path, 0o644)
        return path

    def up(self):
        self.d.start()
        return self.ok(self.d.get("/v1/strategies"))

    def test_broken_ones_are_refused_by_rule(self):
        self.up()
        for name, rule in (("broken_allocator_double_hand_out", "no-double-hand-out"),
                           ("broken_teardown_skips_after_yield", "no-skipped-entry"),
                           ("broken_teardown_crash", "no-crash")):
            doc = self.problem(self.d.post("/v1/strategies", {"path": self.broken(name)}), 400,
                               "path", "bad-plugin", rule)
            self.assertEqual(doc["rule"], rule)
            self.assertIn("seed 1", doc["detail"])
        names = {s["name"] for s in self.ok(self.d.get("/v1/strategies"))["strategies"]}
        self.assertEqual(names, {"buddy-lazy", "single"})
        self.problem(self.d.post("/v1/strategies?force=2", {"path": "/x"}), 400, "force")

    def test_found_ones(self):
        """One in the directory is refused at the start and at a look for new ones; the rest loads."""
        self.broken("broken_teardown_table_twice", self.dir)
        got = self.up()
        self.assertEqual([os.path.basename(r["path"]) for r in got["refused"]],
                         ["broken_teardown_table_twice.so"])
        self.assertIn("table-freed-once", got["refused"][0]["detail"])
        self.assertEqual({s["name"]: s["check"] for s in got["strategies"]},
                         {"buddy-lazy": "passed", "single": "passed"})
        self.ok(self.d.run_guest())
        self.broken("broken_allocator_stats_lie", self.dir)
        self.d.process.send_signal(signal.SIGHUP)
        until("refused", lambda: "rule totals" in str(self.ok(self.d.get("/v1/strategies"))))

    def again(self):
        """Both anew."""
        core = self.d.core_pid()
        self.d.kill()
        os.kill(core, signal.SIGKILL)
        until("the core is gone", lambda: not alive(core))
        return self.up()

    def test_verdicts_are_kept(self):
        """What was found out holds at the next start, for that very file and in a private file only."""
        self.up()
        kept = os.path.join(self.d.state, "plugin-verdicts")
        self.assertEqual(os.stat(kept).st_mode & 0o777, 0o600)
        with open(kept) as f:
            lines = f.read().splitlines()
        self.assertEqual(len(lines), 3)
        inode = " %d " % os.stat(os.path.join(self.dir, "teardown_single.so")).st_ino
        lines = [line[:-2] + "totals not found again" if inode in line else line for line in lines]
        with open(kept, "w") as f:
            f.write("\n".join(lines) + "\n")
        got = self.again()
        self.assertEqual(len(got["refused"]), 1)
        self.assertIn("totals: not found again", got["refused"][0]["detail"])
        os.chmod(kept, 0o666)
        self.assertEqual(self.again()["refused"], [])
        with open(kept, "a") as f:
            f.write("not a verdict\n")
        self.assertEqual(self.again()["refused"], [])
        Plugins.copy(self.dir, "teardown_skip.so", "teardown_single.so")
        self.assertIn("skip", {s["name"] for s in self.again()["strategies"]})

    def test_without_the_checker(self):
        """What cannot be checked is refused, unless it is asked for."""
        path = os.path.join(self.dir, "teardown_single.so")
        # Not there, not a program, one without a verdict, one that dies.
        killed = os.path.join(self.d.dir, "killed")
        with open(killed, "w") as f:
            f.write("#!/bin/sh\nkill -9 $$\n")
        os.chmod(killed, 0o755)
        for n, program in enumerate(("/no/such/program", "/etc/passwd", "/bin/true", killed)):
            self.d.env["MAYFLY_PLUGIN_CHECK"] = program
            got = self.again() if n else self.up()
            self.assertEqual(got["strategies"], [], program)
            self.assertEqual(len(got["refused"]), 2)
            self.assertIn("cannot be checked", got["refused"][0]["detail"])
            self.problem(self.d.post("/v1/strategies", {"path": path}), 500, "path", "io")
        fds = self.d.fds()
        for _ in range(5):
            self.d.post("/v1/strategies", {"path": path})
        until("no descriptor is left", lambda: self.d.fds() <= fds)
        s = self.ok(self.d.post("/v1/strategies?force=1", {"path": path}), 201)
        self.assertEqual(s["check"], "not-checked")
        got = self.ok(self.d.get("/v1/strategies"))
        self.assertEqual(len(got["refused"]), 1)

    def test_going_down_in_a_check(self):
        """A daemon that is told to end while a check runs answers, ends, and leaves no process."""
        slow = os.path.join(self.d.dir, "slow")
        with open(slow, "w") as f:
            f.write("#!/bin/sh\necho $$ > %s.pid\nexec sleep 1000\n" % slow)
        os.chmod(slow, 0o755)
        self.d.plugin_check = "off"
        self.d.env["MAYFLY_PLUGIN_CHECK"] = slow
        self.up()
        c = self.d.connect()
        self.addCleanup(c.close)
        c.request("POST", "/v1/strategies", json.dumps({"path": self.broken("broken_teardown_crash")}),
                  {"Content-Type": "application/json"})
        until("the check runs", lambda: os.path.exists(slow + ".pid") and open(slow + ".pid").read())
        self.assertEqual(self.d.kill(signal.SIGTERM), 0)
        with open(slow + ".pid") as f:
            pid = int(f.read())
        until("the checker is gone", lambda: not alive(pid))

    def test_warn(self):
        self.d.plugin_check = "warn"
        self.broken("broken_teardown_counts_back", self.dir)
        got = self.up()
        self.assertEqual(got["refused"], [])
        self.assertEqual({s["name"]: s["check"] for s in got["strategies"]}["broken-teardown"],
                         "broken")
        self.assertIn("counters", self.d.log())

    def test_forced_allocator_harms_nobody(self):
        """Double hand-outs are refused by the frame table, and the way back is open."""
        self.up()
        path = self.broken("broken_allocator_double_hand_out")
        self.ok(self.d.post("/v1/strategies?force=1", {"path": path}), 201)
        self.ok(self.d.put("/v1/host/allocator", {"name": "broken-allocator"}))
        for _ in range(20):
            self.d.run_guest()
        self.assertGreater(self.d.heap()["refused_plugin"], 0)
        self.ok(self.d.put("/v1/host/allocator", {"name": "buddy-lazy"}))
        audit = self.ok(self.d.get("/v1/host/heap/audit"))
        self.assertEqual((audit["overlaps"], audit["lost"], audit["bad_records"]), (0, 0, 0))
        self.assertEqual(audit["free"], audit["frames"])
        self.assertTrue(alive(self.d.core_pid()))

    def test_forced_teardown_harms_nobody(self):
        """A VM whose strategy skips entries ends all the same, and all of its memory comes back."""
        self.up()
        before = self.d.heap()["free"]
        path = self.broken("broken_teardown_skips_after_yield")
        self.ok(self.d.post("/v1/strategies?force=1", {"path": path}), 201)
        self.ok(self.d.put("/v1/host/teardown", {"name": "broken-teardown"}))
        for _ in range(3):
            self.ok(self.d.run_guest())
        self.ok(self.d.put("/v1/host/teardown", {"name": "single"}))
        self.ok(self.d.run_guest())
        until("all frames are back", lambda: self.d.heap()["free"] == before)
        self.assertEqual(self.ok(self.d.get("/v1/host/heap/audit"))["lost"], 0)


if __name__ == "__main__":
    unittest.main()
