"""hvctl with the real daemon, core and guests: the whole life of VMs."""
import json
import os
import signal
import subprocess
import unittest

import util


class FirstCommand(util.DaemonTest):
    # hello needs nothing set up before: it starts the daemon, which starts the core; both stay.
    def test_hello_starts_all(self):
        done = self.hvctl("hello")
        self.assertEqual(done.stdout, "Hello world!\n")
        self.assertIn("poweroff", done.stderr)
        pids = [self.home.daemon_pid(name) for name in ("hvd", "hv")]
        self.assertTrue(all(pid and util.alive(pid) for pid in pids), pids)
        self.assertEqual(self.hvctl("hello", "--form", "elf64").stdout, "Hello world!\n")
        self.assertEqual([self.home.daemon_pid(name) for name in ("hvd", "hv")], pids)
        self.assertEqual(self.hvctl_json("list")["vms"], [])

    # Several first commands at once: all are served by one daemon and one core.
    def test_crowd(self):
        crowd = [self.spawn("hello") for _ in range(4)]
        for process in crowd:
            out, err = process.communicate(timeout=util.LIMIT)
            self.assertEqual((process.returncode, out), (0, b"Hello world!\n"), err)

    # A daemon that is killed takes no VM and no definition with it; the next command starts another.
    def test_killed_daemon(self):
        self.define("left", "idle")
        self.define("other", "idle")
        self.hvctl("start", "left")
        before = self.hvctl_json("show", "left")
        old, core = self.home.daemon_pid("hvd"), self.home.daemon_pid("hv")
        os.kill(old, signal.SIGKILL)
        util.until(lambda: not util.alive(old), "the daemon to be gone")
        self.assertEqual(self.hvctl_json("show", "left")["state"], "running")  # the first answer
        self.assertEqual(sorted(self.hvctl("list", "--names").stdout.split()), ["left", "other"])
        vms = {vm["name"]: vm for vm in self.hvctl_json("list")["vms"]}
        self.assertEqual((vms["left"]["id"], vms["left"]["uuid"]), (before["id"], before["uuid"]))
        self.assertEqual(self.home.daemon_pid("hv"), core)
        self.assertNotEqual(self.home.daemon_pid("hvd"), old)
        self.hvctl("destroy", "left")

    # A core that is killed: its VMs are marked, the daemon lives and gets another core.
    def test_killed_core(self):
        self.define("left", "idle")
        self.hvctl("start", "left")
        daemon, core = self.home.daemon_pid("hvd"), self.home.daemon_pid("hv")
        os.kill(core, signal.SIGKILL)
        util.until(lambda: self.state("left") == "crashed", "the VM to be marked")
        self.assertEqual(self.hvctl_json("show", "left")["end"]["reason"], "core-lost")
        util.until(lambda: self.hvctl("hello", code=None).returncode == 0, "a new core")
        self.assertEqual(self.home.daemon_pid("hvd"), daemon)


class ExitCodes(util.SharedDaemonTest):
    def run_guest(self, name, *args, code):
        return self.hvctl("run", self.guest(name), *args, code=code)

    # The guest's own code is the command's.
    def test_guest_codes(self):
        for guest in ("debug-exit", "shutdown-aware", "hypercall"):
            if guest == "shutdown-aware":
                continue
            for given, code in ((0, 0), (1, 1), (7, 7), (63, 63), (64, 63), (255, 63)):
                with self.subTest(guest=guest, given=given):
                    self.run_guest(guest, "--", f"code={given}", code=code)
        self.run_guest("debug-exit", code=7)

    # Each way to end well is 0.
    def test_good_ends(self):
        for guest in ("hello-pvh", "hello", "reset-kbd", "reset-cf9"):
            with self.subTest(guest=guest):
                self.run_guest(guest, code=0)

    # A crash is 71 and says what it was.
    def test_crashes(self):
        self.assertIn("triple-fault", self.run_guest("triple", code=71).stderr)
        for access in ("read", "write", "exec", "table"):
            with self.subTest(access=access):
                done = self.run_guest("kernel", "-m", "32M", "--", "mode=outside", "access=" + access, code=71)
                self.assertIn("touching outside RAM", done.stdout)
                self.assertNotIn("FAIL", done.stdout)
                self.assertIn("bad-access", done.stderr)

    # A guest that does not end: 73 after the time it was given, and nothing of it is left.
    def test_timeout(self):
        for guest in ("loop", "idle"):
            with self.subTest(guest=guest):
                done = self.run_guest(guest, "--name", "late-" + guest, "--timeout", "300ms", code=73)
                self.assertIn("timeout", done.stderr)
                self.assertIn(guest[:4], done.stdout)
                self.hvctl("show", "late-" + guest, code=65)

    # What the daemon refuses is 65 and names the field.
    def test_refused(self):
        cases = [(["/nonexistent"], "kernel"), ([util.SOURCE], "kernel"), (["/dev/null"], "kernel"),
                 ([__file__], "kernel"), ([self.guest("idle"), "-m", "1"], "memory"),
                 ([self.guest("idle"), "-m", "4097K", "--vcpus", "9999"], "vcpus"),
                 ([self.guest("idle"), "-m", "65537"], "memory"), ([self.guest("idle"), "-m", "x"], "memory"),
                 ([self.guest("idle"), "--name", "17"], "name"), ([self.guest("idle"), "--name", "a/b"], "name"),
                 ([self.guest("idle"), "--engine", "magic"], "engine"),
                 ([self.guest("idle"), "--on-reset", "explode"], "on_reset")]
        for args, field in cases:
            with self.subTest(args=args):
                self.assertIn(f"[{field}]", self.hvctl("run", *args, code=65).stderr)

    # Ended by force is 72, for the one who waits for it.
    def test_forced(self):
        self.define("forced", "loop")
        waiting = self.spawn("start", "forced", "--wait", "--timeout", "5m")
        self.wait_state("forced", "running")
        self.hvctl("destroy", "forced")
        self.assertEqual(waiting.wait(util.LIMIT), 72)
        self.hvctl("start", "forced")
        self.assertEqual(self.hvctl("shutdown", "forced", "--grace", "100ms", "--wait", code=72).stdout[:12],
                         "forced ended")
        self.hvctl("delete", "forced")

    # A guest that listens ends by itself with its own code.
    def test_shutdown_request(self):
        self.define("aware", "shutdown-aware", "--cmdline", "code=5")
        self.hvctl("start", "aware")
        util.until(lambda: "waiting" in self.hvctl("console", "aware", "--log").stdout, "the guest")
        self.hvctl("shutdown", "aware", "--grace", "1m", "--wait", "--timeout", "2m", code=5)
        self.assertIn("shutting down", self.hvctl("console", "aware", "--log").stdout)
        self.hvctl("delete", "aware")


class Lifecycle(util.SharedDaemonTest):
    # From definition to deletion, with every wrong step refused on the way.
    def test_whole_life(self):
        self.define("whole", "chatty", "--cmdline", "lines=3 stay")
        self.assertEqual(self.state("whole"), "shutoff")
        self.hvctl("define", "--name", "whole", "--memory", "16M", "--kernel", self.guest("idle"), code=65)
        for action in ("pause", "resume", "reset", "destroy", "shutdown"):
            self.assertIn("wrong-state", self.hvctl(action, "whole", code=65).stderr)
        self.hvctl("start", "whole")
        follower = self.spawn("console", "whole", "--follow")
        self.assertIn("wrong-state", self.hvctl("start", "whole", code=65).stderr)
        self.assertIn("wrong-state", self.hvctl("delete", "whole", code=65).stderr)
        util.until(lambda: "line 3\n" in self.hvctl("console", "whole", "--log").stdout, "the guest's lines")
        self.hvctl("pause", "whole")
        self.assertEqual(self.state("whole"), "paused")
        first = self.hvctl_json("stats", "whole")["instructions"]
        self.assertEqual(self.hvctl_json("stats", "whole")["instructions"], first)
        self.hvctl("resume", "whole")
        util.until(lambda: self.hvctl_json("stats", "whole")["instructions"] > first, "the guest to go on")
        self.hvctl("reset", "whole")
        util.until(lambda: self.hvctl("console", "whole", "--log").stdout.count("line 3\n") == 2, "the second life")
        self.hvctl("destroy", "whole")
        self.assertEqual(self.state("whole"), "shutoff")
        out, err = follower.communicate(timeout=util.LIMIT)
        self.assertEqual(follower.returncode, 0, err)
        self.assertTrue(out.startswith(b"line 1\nline 2\nline 3\n"), out)
        self.assertIn("destroyed", self.hvctl("list").stdout)
        self.hvctl("delete", "whole")
        self.assertIn("not-found", self.hvctl("show", "whole", code=65).stderr)

    # A paused VM can be ended in each way.
    def test_end_while_paused(self):
        self.define("still", "loop")
        for args, code in ((["destroy", "still"], 0), (["shutdown", "still", "--grace", "100ms", "--wait"], 72)):
            self.hvctl("start", "still")
            self.hvctl("pause", "still")
            self.hvctl(*args, code=code)
            self.assertEqual(self.state("still"), "shutoff")
        self.hvctl("delete", "still")

    # --force ends what runs; several names at once; by UUID as well.
    def test_delete(self):
        for name in ("da", "db", "dc"):
            self.define(name, "idle")
        self.hvctl("start", "da", "db")
        uuid = self.hvctl_json("show", "dc")["uuid"]
        self.hvctl("delete", "da", "db", uuid, code=65)
        self.assertEqual([self.state(n) for n in ("da", "db")], ["running"] * 2)
        self.hvctl("show", "dc", code=65)
        self.hvctl("delete", "--force", "da", "db")
        self.assertEqual([vm for vm in self.hvctl("list", "--names").stdout.split() if vm in ("da", "db", "dc")], [])

    # What dumpxml prints defines the same VM again; replacing changes it.
    def test_xml_and_json(self):
        self.define("xml", "idle", "--cmdline", 'quiet "<&>"', "--weight", "7", memory="24M")
        before = self.hvctl_json("show", "xml")
        xml = self.hvctl("dumpxml", "xml").stdout
        self.assertIn("<domain", xml)
        self.hvctl("delete", "xml")
        path = os.path.join(self.dir, "xml.xml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(xml)
        self.hvctl("define", path)
        self.assertEqual(self.hvctl_json("show", "xml"), before)
        self.hvctl("define", "--replace", "-", input=json.dumps(
            {"name": "xml", "memory": "32M", "kernel": self.guest("hello")}))
        self.assertEqual(self.hvctl_json("show", "xml")["memory"], 32 << 20)
        self.assertIn("broken", self.hvctl("define", "-", input="<broken/>", code=65).stderr)
        self.hvctl("delete", "xml")

    # -o json is JSON for every command that answers.
    def test_json(self):
        self.define("json", "idle")
        for args in (["list"], ["show", "json"], ["start", "json"], ["pause", "json"], ["resume", "json"],
                     ["reset", "json"], ["stats"], ["stats", "json"], ["dumpxml", "json"], ["host"], ["heap"],
                     ["heap", "audit"], ["version"], ["strategy", "list"], ["strategy", "show", "teardown", "scan"],
                     ["use", "teardown", "scan", "--vm", "json"], ["destroy", "json"], ["hello"],
                     ["hello", "--compare"], ["bench", "hello", "-n", "3"], ["run", self.guest("hello")],
                     ["delete", "json"]):
            with self.subTest(args=args):
                self.assertIsInstance(self.hvctl_json(*args), dict)
        problem = self.hvctl_json("show", "nothing", code=65)
        self.assertEqual((problem["code"], problem["status"]), ("not-found", 404))

    # The same commands print something for people, without a trace of JSON.
    def test_tables(self):
        self.define("table", "idle")
        self.hvctl("start", "table")
        for args, words in ((["list"], "16 MiB"), (["show", "table"], "running"), (["stats"], "table"),
                            (["host"], "engine soft"), (["heap"], "allocator"), (["version"], "hvd"),
                            (["heap", "audit"], "every frame is accounted for"),
                            (["strategy", "list"], "tracked")):
            with self.subTest(args=args):
                out = self.hvctl(*args).stdout
                self.assertIn(words, out)
                self.assertNotIn("{", out)
        self.hvctl("delete", "--force", "table")

    # Memory of a live VM and the host's frames by command: what is said, and what is refused.
    def test_memory(self):
        self.define("mem", "writer", "--claim", "--pages", "2M", memory="32M")
        vm = self.hvctl_json("show", "mem")
        self.assertEqual((vm["claim"], vm["pages"]), (True, "2M"))
        self.hvctl("start", "mem")
        util.until(lambda: "ready" in self.hvctl("console", "--log", "mem").stdout, "the guest")
        took = self.hvctl("balloon", "take", "mem", "4M", "0x800000").stdout
        self.assertIn("2048 frames", took)
        self.assertIn("took", took)
        self.hvctl("dirty", "start", "mem")
        gave = self.hvctl("balloon", "give", "mem", "5M", "1M").stdout
        self.assertIn("256 frames", gave)
        self.assertIn("1 splits", gave)
        self.assertEqual(self.hvctl("dirty", "fetch", "mem", "4M", "8M").stdout,
                         "0x500000 0x100000\n")
        self.assertEqual(self.hvctl("dirty", "fetch", "mem", "4M", "8M").stdout, "")
        self.hvctl("dirty", "stop", "mem")
        for args in (("balloon", "eat", "mem", "0", "4K"), ("balloon", "give", "mem", "x", "4K"),
                     ("balloon", "give", "mem", "4M", "4Q"), ("dirty", "fetch", "mem"),
                     ("balloon", "give", "mem", "0xffffffffffffffff", "16E"),
                     ("dirty", "start", "mem", "4M"), ("dirty", "fetch", "mem", "1T", "99999999T"),
                     ("heap", "eat"), ("heap", "scrub"), ("heap", "offline", "x", "1"),
                     ("heap", "online", "1")):
            with self.subTest(args=args):
                self.assertTrue(self.hvctl(*args, code=64).stderr)
        self.assertIn("RAM", self.hvctl("balloon", "give", "mem", "1T", "4K", code=65).stderr)
        self.assertIn("multiple", self.hvctl("balloon", "give", "mem", "1", "4K", code=65).stderr)
        self.hvctl("delete", "--force", "mem")
        self.hvctl("heap", "scrub", "free")
        self.assertEqual(self.hvctl_json("heap")["scrub"], "free")
        self.hvctl("heap", "scrub", "background")
        self.hvctl("heap", "scrub", "never", code=65)
        self.assertIn(" frames are out of use now", self.hvctl("heap", "offline", "8", "4").stdout)
        self.assertIn(" frames are in use now", self.hvctl("heap", "online", "8", "4").stdout)

    # Events of one VM's life, in order.
    def test_events(self):
        self.define("seen", "idle")
        watcher = subprocess.Popen([util.HVCTL, "-o", "json", "events", "--vm", "seen"], env=self.env,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(util.end_process, watcher)
        os.set_blocking(watcher.stdout.fileno(), False)
        seen = []

        def types():
            line = watcher.stdout.readline()
            if line:
                seen.append(json.loads(line))
            return [(e["type"], e.get("state") or e.get("reason")) for e in seen]

        def cycle():
            self.hvctl("start", "seen")
            self.hvctl("destroy", "seen")
            return types()

        util.until(cycle, "the stream to begin")
        count = len(types())
        self.hvctl("start", "seen")
        self.hvctl("destroy", "seen")
        self.hvctl("delete", "seen")
        util.until(lambda: ("vm-deleted", None) in types(), "the last event")
        self.assertGreater(len(types()), count)
        last = types()
        start = len(last) - 1 - last[::-1].index(("vm-state", "running"))
        self.assertIn(("vm-ended", "destroyed"), last[start:])
        numbers = [e["seq"] for e in seen]
        self.assertEqual(numbers, sorted(numbers))


class Strategies(util.SharedDaemonTest):
    # What ships is loaded, and one of each kind is in use.
    def test_list(self):
        loaded = self.hvctl_json("strategy", "list")["strategies"]
        names = {(s["kind"], s["name"]) for s in loaded}
        for want in ("buddy-page", "buddy-chunk", "buddy-lazy"):
            self.assertIn(("allocator", want), names)
        for want in ("scan", "skip", "single", "tracked"):
            self.assertIn(("teardown", want), names)
        self.assertEqual(sorted(s["kind"] for s in loaded if s["default"]), ["allocator", "teardown"])

    # Allocators are swapped under living VMs, and no frame is lost.
    def test_use_allocator(self):
        for name in ("ua", "ub", "uc"):
            self.define(name, "idle")
        self.hvctl("start", "ua", "ub", "uc")
        before = self.hvctl_json("heap")["allocator"]
        for name in ("buddy-page", "buddy-chunk", "buddy-lazy"):
            if name != before:
                self.assertIn(f"-> {name} in", self.hvctl("use", "allocator", name).stdout)
                self.assertEqual(self.hvctl_json("heap")["allocator"], name)
                before = name
        self.hvctl("delete", "--force", "ua", "ub", "uc")
        self.assertIn("every frame is accounted for", self.hvctl("heap", "audit").stdout)
        heap = self.hvctl_json("heap")
        self.assertEqual((heap["used_ram"], heap["used_table"]), (0, 0))

    # A VM's teardown is swapped while it is paused and while it runs; its end is told by the new one.
    def test_use_teardown(self):
        self.define("ut", "loop")
        self.hvctl("start", "ut")
        self.hvctl("use", "teardown", "skip", "--vm", "ut")
        self.hvctl("pause", "ut")
        self.hvctl("use", "teardown", "tracked", "--vm", "ut")
        self.hvctl("resume", "ut")
        self.hvctl("destroy", "ut")
        self.assertEqual(self.hvctl_json("show", "ut")["report"]["teardown"], "tracked")
        self.hvctl("delete", "ut")
        self.hvctl("use", "teardown", "scan")
        self.assertEqual(self.hvctl_json("hello")["report"]["teardown"], "scan")
        self.hvctl("use", "teardown", "single")

    # What is not there or in use is refused by name.
    def test_refused(self):
        for args in (["use", "allocator", "nothing"], ["use", "teardown", "nothing"],
                     ["strategy", "show", "teardown", "nothing"], ["strategy", "load", "/nonexistent.so"],
                     ["strategy", "load", util.HVCTL],
                     ["use", "teardown", "scan", "--vm", "nothing"]):
            with self.subTest(args=args):
                self.hvctl(*args, code=65)
        self.assertIn("in-use", self.hvctl("strategy", "unload", "teardown", "single", code=65).stderr)

    # Unloading and loading again, by file.
    def test_load(self):
        path = self.hvctl_json("strategy", "show", "teardown", "scan")["path"]
        self.hvctl("strategy", "unload", "teardown", "scan")
        self.hvctl("strategy", "show", "teardown", "scan", code=65)
        self.hvctl("strategy", "load", os.path.relpath(path, self.dir), cwd=self.dir)
        self.assertEqual(self.hvctl_json("strategy", "show", "teardown", "scan")["name"], "scan")
        self.hvctl("strategy", "load", path, code=65)

    # Every strategy does the same work on the same guest, whatever it takes to find it.
    def test_compare(self):
        runs = self.hvctl_json("hello", "--compare")["runs"]
        reports = {r["report"]["teardown"]: r["report"] for r in runs}
        self.assertLessEqual({"scan", "skip", "single", "tracked"}, set(reports))
        self.assertEqual({r["console"] for r in runs}, {"Hello world!\n"})
        # A deferred teardown may still be at it when the run is told; an arena returns its extents,
        # with the frames in them that nobody used.
        whole = {name: r for name, r in reports.items() if name != "deferred" or r["returned_ns"]}
        for member in ("entries_removed", "tables_freed"):
            self.assertEqual(len({r[member] for r in whole.values()}), 1, member)
        frames = {name: r["frames_returned"] for name, r in whole.items()}
        extents = frames.pop("arena")
        self.assertEqual(len(set(frames.values())), 1)
        self.assertGreaterEqual(extents, frames["scan"])
        self.assertGreater(reports["scan"]["loops"], reports["skip"]["loops"])
        self.assertGreater(reports["skip"]["loops"], reports["tracked"]["loops"])
        table = self.hvctl("hello", "--compare").stdout
        self.assertEqual(len(table.splitlines()), 1 + len(runs))

    # The benchmark has one row for each strategy, with numbers that fit together.
    def test_bench(self):
        result = json.loads(self.hvctl("bench", "hello", "-n", "20", "--each", "--json").stdout)
        self.assertEqual(result["bench"], "hello")
        self.assertLessEqual({"scan", "tracked"}, {row["strategy"] for row in result["rows"]})
        for row in result["rows"]:
            self.assertEqual(row["n"], 20)
            self.assertTrue(0 < row["p50_ns"] <= row["p99_ns"] <= row["max_ns"] <= row["total_ns"])
            self.assertTrue(0 < row["phases"]["core"]["p50_ns"] < row["max_ns"])
        self.assertIn("STRATEGY", self.hvctl("bench", "hello", "-n", "3").stdout)


class Console(util.SharedDaemonTest):
    # Attached: what is typed is echoed, ^] leaves the VM alone and the terminal as it was.
    def test_attach_and_leave(self):
        self.define("talk", "echo")
        self.hvctl("start", "talk")
        terminal = util.Terminal(self, "console", "talk")
        before = util.terminal_settings(terminal.slave)
        terminal.expect(b"echo: ready")
        self.assertNotEqual(util.terminal_settings(terminal.slave), before)
        terminal.type(b"one two\x03three")
        terminal.expect(b"one two\x03three")
        terminal.type(b"\x1d")
        self.assertEqual(terminal.wait(), 0)
        self.assertEqual(util.terminal_settings(terminal.slave), before)
        self.assertEqual(self.state("talk"), "running")

        again = util.Terminal(self, "console", "talk")
        again.expect(b"three")  # what was said before is still there
        again.type(b"q")
        again.expect(b"echo: bye")
        self.assertEqual(again.wait(), 0)
        self.assertIn(b"talk is shutoff", again.output)
        self.assertEqual(util.terminal_settings(again.slave), before)
        self.hvctl("delete", "talk")

    # start --console attaches at once; input may come from a pipe.
    def test_start_attached(self):
        self.define("pipe", "echo")
        done = self.hvctl("start", "pipe", "--console", input="some words q")
        self.assertIn("some words q\necho: bye\n", done.stdout)
        self.hvctl("delete", "pipe")

    # run --console: the console meanwhile, the guest's exit code after, nothing left; ^] ends it.
    def test_run_attached(self):
        echo, code = self.guest("echo"), self.guest("debug-exit")
        done = self.hvctl("run", echo, "--console", input="to and fro q")
        self.assertIn("to and fro q\necho: bye\n", done.stdout)
        self.assertIn("the guest powered off", done.stderr)
        self.hvctl("run", code, "--console", "--cmdline", "code=5", input="", code=5)
        terminal = util.Terminal(self, "run", echo, "--console", "--name", "mine")
        terminal.expect(b"echo: ready")
        self.assertEqual(self.state("mine"), "running")
        terminal.type(b"\x1d")
        self.assertEqual(terminal.wait(), 0)
        self.assertNotIn("mine", self.hvctl("list", "--names").stdout)
        self.hvctl("run", echo, "--console", "--report", code=64)

    # Much input arrives whole and in order, however little fits at a time.
    def test_much_input(self):
        self.define("much", "echo")
        self.hvctl("start", "much")
        text = "".join(chr(ord("A") + i % 26) for i in range(5000))
        done = self.hvctl("console", "much", input=text + "q")
        self.assertIn(text + "q\n", done.stdout)
        self.hvctl("delete", "much")

    # The log of a VM that has ended is still there, from any offset.
    def test_log_after_end(self):
        self.define("log", "chatty", "--cmdline", "lines=10")
        self.hvctl("start", "log", "--wait")
        whole = "".join(f"line {n}\n" for n in range(1, 11))
        self.assertEqual(self.hvctl("console", "log", "--log").stdout, whole)
        self.assertEqual(self.hvctl("console", "log", "--follow").stdout, whole)
        self.assertEqual(self.hvctl("console", "log", "--log", "--offset", "7").stdout, whole[7:])
        self.hvctl("delete", "log")


if __name__ == "__main__":
    unittest.main(verbosity=2)
