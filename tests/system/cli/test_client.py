"""hvctl against a stand-in daemon: what it asks for, how it takes what can go wrong."""
import json
import os
import socket
import subprocess
import threading
import time
import unittest

import util
from fakehvd import Answer, FakeDaemon, problem

REPORT = {
    "reason": "poweroff", "code": 0, "create_ns": 1000, "start_ns": 2000, "run_ns": 3_000_000,
    "unreachable_ns": 4000, "returned_ns": 5000, "instructions": 120, "loops": 9216,
    "loops_per_pass": [3584, 2048, 1024, 512], "entries_removed": 8, "tables_freed": 6,
    "roots_freed": 2, "frames_returned": 12, "steps": 1, "step_max_ns": 700, "teardown": "scan",
    "detail": "",
}
VM = {
    "name": "a", "uuid": "0b5e2f8a-7d52-4a0e-9f0c-3f6f0f6f0f6f", "memory": 16777216, "vcpus": 1,
    "kernel": "/k", "cmdline": "", "engine": "auto", "teardown": None, "on_reset": "restart",
    "weight": 100, "cap": 0, "transient": False, "id": None, "state": "shutoff",
    "teardown_active": None, "stats": None, "console_end": 0, "starts": 0, "end": None,
    "report": None,
}


def run_result(reason="poweroff", code=0, console="hi\n"):
    end = {"reason": reason, "code": code, "text": f"it ended by {reason}"}
    return {"name": "x", "console": console, "console_truncated": False, "end": end,
            "report": dict(REPORT, reason=reason, code=code), "wall_ns": 123456}


class FakeTest(util.CliTest):
    def setUp(self):
        super().setUp()
        self.daemon = FakeDaemon(self.socket)
        self.addCleanup(self.daemon.close)

    def on(self, method, path, answer):
        self.daemon.on(method, path, answer)

    def only_request(self, method, path):
        asked = self.daemon.asked(method, path)
        self.assertEqual(len(asked), 1)
        return asked[0]


class Usage(util.CliTest):
    # A wrong command line is 64, says what is wrong and how it is right, and asks no daemon.
    def test_wrong_command_lines(self):
        cases = [
            ([], "command is missing"),
            (["helo"], "did you mean 'hello'"),
            (["frobnicate"], "no command 'frobnicate'"),
            (["list", "--frob"], "unknown option --frob"),
            (["list", "-z"], "unknown option -z"),
            (["list", "x"], "'x' is too much"),
            (["list", "--names=1"], "--names takes no value"),
            (["list", "--state"], "--state needs a value"),
            (["list", "-o", "yaml"], "json or table"),
            (["show"], "something is missing"),
            (["show", ""], "empty"),
            (["hello", "--form", "bios"], "pvh or elf64"),
            (["hello", "--compare", "--teardown", "scan"], "leave --teardown out"),
            (["hello", "--", "x"], "nothing behind --"),
            (["run"], "something is missing"),
            (["run", "k", "--vcpus", "many"], "whole number"),
            (["run", "k", "--vcpus", "-1"], "whole number"),
            (["run", "k", "--timeout", "soon"], "500ms"),
            (["run", "k", "--timeout", "0"], "500ms"),
            (["run", "k", "--timeout", "25h"], "500ms"),
            (["run", "k", "--timeout", "99999999999999999999"], "500ms"),
            (["run", "k", "--cmdline", "a", "--", "b"], "do not go together"),
            (["define"], "--name is missing"),
            (["define", "--name", "x", "--memory", "1M"], "--kernel is missing"),
            (["define", "f", "--memory", "1M"], "the file says all"),
            (["define", "f", "--name", "x"], "only to --replace"),
            (["define", "/nonexistent.xml"], "No such file"),
            (["define", "/dev/null"], "empty"),
            (["start", "a", "--timeout", "x"], "500ms"),
            (["start", "a", "b", "--console"], "one VM"),
            (["shutdown", "a", "--grace", "11m"], "at most 10m"),
            (["console", "a", "--log", "--follow"], "one of them"),
            (["console", "a", "--offset", "-1"], "whole number"),
            (["console", "a", "--offset", "18446744073709551616"], "whole number"),
            (["events", "--count", "0"], "whole number"),
            (["strategy", "frob"], "not understood"),
            (["strategy", "load"], "not understood"),
            (["strategy", "unload", "scan"], "not understood"),
            (["strategy", "show", "heap", "x"], "allocator or teardown"),
            (["use", "allocator"], "something is missing"),
            (["use", "cache", "x"], "not 'cache'"),
            (["use", "allocator", "x", "--vm", "a"], "leave --vm out"),
            (["heap", "dump"], "not 'dump'"),
            (["bench", "goodbye"], "no benchmark 'goodbye'"),
            (["bench", "hello", "-n", "0"], "whole number"),
            (["bench", "hello", "--each", "--teardown", "x"], "leave --teardown out"),
            (["completion", "csh"], "no completion"),
            (["help", "frob"], "no command 'frob'"),
            (["list", "--socket", "x" * 200], "1 to 107 bytes"),
        ]
        for args, words in cases:
            with self.subTest(args=args):
                done = self.hvctl(*args, code=64)
                self.assertIn(words, done.stderr)
                self.assertIn("hvctl: ", done.stderr)
                self.assertEqual(done.stdout, "")

    # Help is for standard output, also where arguments are missing.
    def test_help(self):
        self.assertIn("commands:", self.hvctl("help").stdout)
        self.assertIn("commands:", self.hvctl("--help").stdout)
        self.assertIn("usage: hvctl define", self.hvctl("define", "--help").stdout)
        self.assertIn("--grace TIME", self.hvctl("help", "shutdown").stdout)
        self.assertRegex(self.hvctl("--version").stdout, r"^hvctl \d+\.\d+")

    # The completion script is one that bash takes, and offers commands and options.
    def test_completion(self):
        script = self.hvctl("completion", "bash").stdout
        probe = script + '\nCOMP_WORDS=(hvctl "$1" "$2"); COMP_CWORD=$3; _hvctl; echo "${COMPREPLY[@]}"'

        def complete(first, second, cword):
            return subprocess.run(["bash", "-c", probe, "x", first, second, str(cword)], text=True,
                                  capture_output=True, check=True).stdout.split()

        self.assertIn("hello", complete("he", "", 1))
        self.assertIn("--grace", complete("shutdown", "--g", 2))
        self.assertEqual(complete("use", "al", 2), ["allocator"])

    # Output that cannot be written is an error, not a success.
    def test_full_disk(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([util.HVCTL, "help"], stdout=full, stderr=subprocess.PIPE,
                                  text=True, env=self.env, timeout=util.LIMIT)
        self.assertEqual(done.returncode, 70)
        self.assertIn("cannot write", done.stderr)


class NoDaemon(util.CliTest):
    # Without a daemon each command says so with 69, at once.
    def test_nobody_there(self):
        for args in (["list"], ["hello"], ["console", "a"], ["events"], ["bench", "hello"]):
            with self.subTest(args=args):
                done = self.hvctl(*args, code=69)
                self.assertIn("no daemon answers on " + self.socket, done.stderr)
                self.assertIn("MAYFLY_NO_START", done.stderr)

    # --no-start and --socket start none either.
    def test_options_that_start_none(self):
        del self.env["MAYFLY_NO_START"]
        self.env["MAYFLY_HVD"] = "/nonexistent/hvd"
        self.hvctl("list", "--no-start", code=69)
        self.hvctl("list", "--socket", self.dir + "/other.sock", code=69)
        self.assertEqual(os.listdir(self.run_dir), [])

    # A stale socket is the same as none.
    def test_stale_socket(self):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(self.socket)
        self.assertIn("no daemon", self.hvctl("list", code=69).stderr)

    # A socket's path has a limit: said before anything is tried.
    def test_runtime_dir_too_long(self):
        self.env["MAYFLY_RUNTIME_DIR"] = "/tmp/" + "x" * 120
        done = self.hvctl("list", code=69)
        self.assertIn("MAYFLY_RUNTIME_DIR", done.stderr)

    # A guest that is not installed is said with where it was looked for.
    def test_no_guests(self):
        self.env["MAYFLY_GUESTS"] = self.dir
        self.assertIn("MAYFLY_GUESTS", self.hvctl("hello", code=70).stderr)


class Starting(util.CliTest):
    may_start = True

    def fake_hvd(self, script):
        path = os.path.join(self.dir, "hvd")
        with open(path, "w", encoding="ascii") as f:
            f.write(script)
        os.chmod(path, 0o755)
        self.env["MAYFLY_HVD"] = path

    # A daemon that is nowhere: named, with what to set.
    def test_no_program(self):
        self.env["MAYFLY_HVD"] = "/nonexistent/hvd"
        done = self.hvctl("list", code=69)
        self.assertIn("/nonexistent/hvd", done.stderr)
        self.assertIn("MAYFLY_HVD", done.stderr)

    # A daemon that ends at once: its status and its last words are shown, in bounded time.
    def test_daemon_that_ends(self):
        self.fake_hvd("#!/bin/sh\necho no memory left >&2\nexit 3\n")
        done = self.hvctl("list", code=69)
        self.assertIn("status 3", done.stderr)
        self.assertIn("no memory left", done.stderr)

    # Many at once on nothing: all are served, whichever start wins, and none is left waiting.
    def test_race(self):
        script = f"""#!/usr/bin/env python3
import fcntl, os, sys, time
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
os.makedirs({self.run_dir!r}, exist_ok=True)
lock = open({self.run_dir!r} + "/hvd.lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(1)
time.sleep(0.3)
from fakehvd import Answer, FakeDaemon
daemon = FakeDaemon({self.socket!r}, [("GET", "/v1/vms", Answer(body={{"vms": []}}))])
open({self.run_dir!r} + "/pid", "w").write(str(os.getpid()))
time.sleep(600)
"""
        self.fake_hvd(script)
        self.addCleanup(self.kill_fake)
        crowd = [self.spawn("list") for _ in range(6)]
        for process in crowd:
            _, err = process.communicate(timeout=util.LIMIT)
            self.assertEqual(process.returncode, 0, err)

    def kill_fake(self):
        try:
            with open(os.path.join(self.run_dir, "pid"), encoding="ascii") as f:
                os.kill(int(f.read()), 9)
        except (OSError, ValueError):
            pass


class Answers(FakeTest):
    # Refusals keep their word: exit code by status, the detail, the field and the code are shown.
    def test_problems(self):
        cases = [(400, 65), (403, 65), (404, 65), (405, 65), (409, 65), (413, 65), (415, 65),
                 (429, 65), (500, 70), (501, 65), (503, 69), (504, 73)]
        for status, code in cases:
            with self.subTest(status=status):
                self.on("GET", "/v1/vms/a",
                        problem(status, "some-code", "the memory is odd", "memory"))
                done = self.hvctl("show", "a", code=code)
                for words in ("the memory is odd", "[memory]", "some-code"):
                    self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertEqual(self.hvctl_json("show", "a", code=code)["code"], "some-code")

    # An answer that is not one: said, never taken for success, never a crash.
    def test_broken_answers(self):
        cases = [
            (Answer(raw=b""), 69), (Answer(raw=b"\0\1\2\3"), 69), (Answer(raw=b"HTTP/1.1 200 OK\r\n"), 70),
            (Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), 69),
            (Answer(body=b"not json"), 70), (Answer(body=b""), 70), (Answer(500, b"<html>"), 70),
            (Answer(body=[]), 0), (Answer(body={"vms": 7}), 0), (Answer(body={"vms": [1, None, {}]}), 0),
        ]
        for answer, code in cases:
            with self.subTest(raw=answer.raw, body=answer.body):
                self.on("GET", "/v1/vms", answer)
                done = self.hvctl("list", code=code)
                self.assertEqual(bool(done.stderr), code != 0)

    # Every reason has its exit code, in run and behind --wait.
    def test_end_codes(self):
        cases = [("poweroff", 0, 0), ("reset", 0, 0), ("debug-exit", 0, 0), ("debug-exit", 7, 7),
                 ("debug-exit", 63, 63), ("debug-exit", 64, 63), ("guest-call", 255, 63),
                 ("guest-call", 1, 1), ("triple-fault", 0, 71), ("bad-access", 4096, 71),
                 ("engine", 0, 71), ("no-memory", 0, 71), ("image", 0, 71), ("panic", 0, 71),
                 ("destroyed", 0, 72), ("shutdown", 0, 72), ("timeout", 0, 73), ("core-lost", 0, 69)]
        for reason, guest_code, code in cases:
            with self.subTest(reason=reason, guest_code=guest_code):
                result = run_result(reason, guest_code)
                self.on("POST", "/v1/run", Answer(body=result))
                done = self.hvctl("run", "/k", code=code)
                self.assertEqual(done.stdout, "hi\n")
                self.assertIn(reason, done.stderr)
                self.assertEqual(self.hvctl_json("run", "/k", code=code), result)
                self.on("POST", "/v1/vms/a/start", Answer(body=dict(VM, end=result["end"])))
                self.hvctl("start", "a", "--wait", code=code)
                self.hvctl("start", "a", code=0)

    # The guest's text stands alone on standard output, whole and with its line ended.
    def test_console_text(self):
        self.on("POST", "/v1/run", Answer(body=run_result(console="a\0b\u00e9 no newline")))
        done = self.hvctl("run", "/k", "--quiet")
        self.assertEqual(done.stdout, "a\0b\u00e9 no newline\n")
        self.assertEqual(done.stderr, "")
        self.on("POST", "/v1/run", Answer(body=run_result(console="")))
        self.assertEqual(self.hvctl("run", "/k").stdout, "")
        self.on("POST", "/v1/run", Answer(body=dict(run_result(), console_truncated=True)))
        self.assertIn("not whole", self.hvctl("run", "/k").stderr)

    # Times and counts are shown in units that people read.
    def test_report(self):
        self.on("POST", "/v1/run", Answer(body=run_result()))
        out = self.hvctl("run", "/k", "--report").stdout
        for words in ("3.00 ms", "4.00 µs", "9,216", "700 ns", "scan"):
            self.assertIn(words, out)

    # What a daemon says cannot steer the terminal through tables and messages.
    def test_control_characters(self):
        evil = "x\x1b[2Jy\nz"
        self.on("GET", "/v1/vms", Answer(body={"vms": [dict(VM, name=evil)]}))
        self.on("GET", "/v1/vms/a", Answer(body=dict(VM, cmdline=evil)))
        self.on("GET", "/v1/vms/b", problem(409, "wrong-state", evil))
        for args, code in ((["list"], 0), (["show", "a"], 0), (["show", "b"], 65)):
            done = self.hvctl(*args, code=code)
            self.assertNotIn("\x1b", done.stdout + done.stderr)
            self.assertIn("x?[2Jy?z", done.stdout + done.stderr)


class Requests(FakeTest):
    # Options become members; what was not given is not sent; paths become absolute.
    def test_run(self):
        self.on("POST", "/v1/run", Answer(body=run_result()))
        self.hvctl("run", "some/kernel.elf", "-m", "64M", "--vcpus=2", "--name", "n", "--engine",
                   "soft", "--teardown", "skip", "--on-reset", "restart", "--timeout", "1.5s", "--",
                   "mode=touch", "stride=4K", cwd=self.dir)
        request = self.only_request("POST", "/v1/run")
        self.assertEqual(request.json, {
            "kernel": os.path.join(self.dir, "some/kernel.elf"), "memory": "64M", "vcpus": 2,
            "name": "n", "engine": "soft", "teardown": "skip", "on_reset": "restart",
            "timeout_ms": 1500, "cmdline": "mode=touch stride=4K"})
        self.assertEqual(request.headers["Content-Type"], "application/json")
        self.daemon.requests.clear()
        self.hvctl("run", "/k")
        self.assertEqual(self.only_request("POST", "/v1/run").json, {"kernel": "/k"})

    # A file goes as it is, its type by its first character.
    def test_define_file(self):
        self.on("POST", "/v1/vms", Answer(201, dict(VM)))
        for text, type in (("\n <domain type='mayfly'/>\n", "application/xml"),
                           ('{"name": "a"}', "application/json"), ("garbage", "application/json")):
            path = os.path.join(self.dir, "file")
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
            for args, given in (([path], None), (["-"], text)):
                self.daemon.requests.clear()
                self.assertEqual(self.hvctl("define", *args, input=given).stdout, "a defined\n")
                request = self.only_request("POST", "/v1/vms")
                self.assertEqual(request.body.decode(), text)
                self.assertEqual(request.headers["Content-Type"], type)

    # A big file passes as a whole (no 100-continue waits), one that is absurd is refused here.
    def test_define_big(self):
        self.on("POST", "/v1/vms", problem(413, "too-big", "larger than 1 MiB"))
        self.assertIn("larger than 1 MiB", self.hvctl("define", "-", input="x" * (3 << 20), code=65).stderr)
        self.assertEqual(len(self.only_request("POST", "/v1/vms").body), 3 << 20)
        self.assertIn("no definition", self.hvctl("define", "-", input="x" * (5 << 20), code=64).stderr)

    # Replacing is a PUT to the name, from the option or the JSON itself.
    def test_replace(self):
        self.on("PUT", "/v1/vms/a", Answer(200, dict(VM)))
        self.assertEqual(self.hvctl("define", "-", "--replace", input='{"name": "a"}').stdout, "a replaced\n")
        self.assertEqual(self.hvctl("define", "-", "--replace", "--name", "a", input="<domain/>").stdout,
                         "a replaced\n")
        self.hvctl("define", "--replace", "--name", "a", "--memory", "1M", "--kernel", "/k")
        self.assertIn("--name NAME", self.hvctl("define", "-", "--replace", input="<domain/>", code=64).stderr)
        self.assertEqual(len(self.daemon.asked("PUT", "/v1/vms/a")), 3)

    # Names are data: nothing in one becomes a part of the path or the query.
    def test_names_are_encoded(self):
        for name, path in (("a/../b", "/v1/vms/a%2F..%2Fb"), ("a?x=1", "/v1/vms/a%3Fx%3D1"),
                           ("..", "/v1/vms/.."), ("é %", "/v1/vms/%C3%A9%20%25"), ("#", "/v1/vms/%23")):
            self.daemon.requests.clear()
            self.hvctl("show", name, code=65)
            self.assertEqual(self.daemon.requests[0].path, path)

    # Actions carry their times; the exit code is the first failure's, the others are still done.
    def test_actions(self):
        for name in ("a", "c"):
            self.on("POST", f"/v1/vms/{name}/shutdown", Answer(body=dict(VM, name=name)))
        done = self.hvctl("shutdown", "a", "b", "c", "--grace", "2s", "--timeout", "1m", code=65)
        self.assertEqual(done.stdout, "a asked to end\nc asked to end\n")
        self.assertEqual(self.only_request("POST", "/v1/vms/a/shutdown").path,
                         "/v1/vms/a/shutdown?timeout_ms=60000&grace_ms=2000")
        self.on("POST", "/v1/vms/a/start", Answer(body=dict(VM)))
        self.hvctl("start", "a", "-w")
        self.assertIn("wait=ended", self.only_request("POST", "/v1/vms/a/start").path)

    # use reaches the right door.
    def test_use(self):
        swap = {"from": "scan", "to": "skip", "pause_ns": 1500, "total_ns": 2500000, "free_frames": 1234567,
                "ranges": 3}
        for args, path in ((["allocator", "x"], "/v1/host/allocator"), (["teardown", "x"], "/v1/host/teardown"),
                           (["teardown", "x", "--vm", "a"], "/v1/vms/a/teardown")):
            self.on("PUT", path, Answer(body=swap))
            out = self.hvctl("use", *args).stdout
            self.assertIn("scan -> skip in 2.50 ms, stood still for 1.50 µs", out)
            self.assertEqual(self.only_request("PUT", path).json, {"name": "x"})

    # delete --force destroys what runs, leaves the rest alone, and forgets neither.
    def test_delete_force(self):
        self.on("GET", "/v1/vms/a", Answer(body=dict(VM, state="running")))
        self.on("POST", "/v1/vms/a/destroy", Answer(body=dict(VM)))
        self.on("DELETE", "/v1/vms/a", Answer(204))
        self.on("GET", "/v1/vms/b", Answer(body=dict(VM)))
        self.on("DELETE", "/v1/vms/b", Answer(204))
        self.hvctl("delete", "a", "b", "--force")
        self.assertEqual([f"{r.method} {r.path}" for r in self.daemon.requests],
                         ["GET /v1/vms/a", "POST /v1/vms/a/destroy?wait=ended", "DELETE /v1/vms/a",
                          "GET /v1/vms/b", "DELETE /v1/vms/b"])

    # A proxy of the environment is none of a Unix socket's business.
    def test_proxy_is_ignored(self):
        self.on("GET", "/v1/vms", Answer(body={"vms": []}))
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            self.env[name] = "http://127.0.0.1:1"
        self.hvctl("list")

    # The benchmark uses one connection, and its percentiles are those of its samples.
    def test_bench(self):
        runs = iter(range(1, 1000))

        def run(request):
            n = next(runs)
            return Answer(body=dict(run_result(), report=dict(REPORT, run_ns=n * 1000)))

        self.on("POST", "/v1/run", run)
        self.on("GET", "/v1/host", Answer(body={"version": "1", "cpus": 2, "workers": 2, "allocator": "x"}))
        result = json.loads(self.hvctl("bench", "hello", "-n", "100", "--json").stdout)
        self.assertEqual(result["bench"], "hello")
        row, = result["rows"]
        self.assertEqual((row["n"], row["strategy"], row["loops"]), (100, "scan", 9216))
        self.assertEqual(row["phases"]["run"], {"p50_ns": 50000, "p99_ns": 99000, "max_ns": 100000})
        self.assertEqual(row["phases"]["core"]["max_ns"], 1000 + 2000 + 100000 + 5000)
        self.assertLessEqual(row["p50_ns"], row["p99_ns"])
        self.assertLessEqual(row["max_ns"], row["total_ns"])

    # A benchmark of guests that do not end well is no result.
    def test_bench_fails(self):
        self.on("GET", "/v1/host", Answer(body={}))
        self.on("POST", "/v1/run", Answer(body=run_result("triple-fault")))
        done = self.hvctl("bench", "hello", code=71)
        self.assertEqual(done.stdout, "")
        self.assertIn("VM 1 did not end well", done.stderr)

    # compare runs each teardown strategy once, and only those.
    def test_compare(self):
        self.on("GET", "/v1/strategies", Answer(body={"strategies": [
            {"kind": "allocator", "name": "buddy-lazy"}, {"kind": "teardown", "name": "scan"},
            {"kind": "teardown", "name": "skip"}], "refused": []}))
        self.on("POST", "/v1/run", Answer(body=run_result()))
        out = self.hvctl("hello", "--compare").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in out], ["STRATEGY", "scan", "skip"])
        self.assertEqual([r.json["teardown"] for r in self.daemon.asked("POST", "/v1/run")], ["scan", "skip"])
        self.on("GET", "/v1/strategies", Answer(body={"strategies": [], "refused": []}))
        self.assertIn("no teardown strategy", self.hvctl("hello", "--compare", code=69).stderr)


class Streams(FakeTest):
    # Events are shown whole however the bytes are cut, filtered, and counted.
    def test_events(self):
        lines = [{"seq": n, "time": "T", "type": "vm-state" if n % 2 else "vm-ended", "vm": "ab"[n % 3 == 0],
                  "state": "running"} for n in range(1, 7)]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        chunks = [text[i:i + 7] for i in range(0, len(text), 7)]
        self.on("GET", "/v1/events", Answer(type="application/x-ndjson", chunks=chunks))

        def seqs(*args, code=0):
            done = self.hvctl("events", "-o", "json", *args, code=code)
            return [json.loads(line)["seq"] for line in done.stdout.splitlines()]

        self.assertEqual(seqs("-n", "3"), [1, 2, 3])
        self.assertEqual(seqs("-n", "2", "--vm", "b"), [3, 6])
        self.assertEqual(seqs("-n", "2", "--type", "vm-ended"), [2, 4])
        self.assertEqual(seqs(code=69), [1, 2, 3, 4, 5, 6])  # the daemon ended the stream
        self.assertIn("vm-state", self.hvctl("events", "-n", "1").stdout)

    # A console comes through byte by byte, with nothing added.
    def test_console_log(self):
        self.on("GET", "/v1/vms/a/console", Answer(type="text/plain", chunks=[b"one\n", b"tw", b"o\0"]))
        for option in ("--log", "--follow"):
            self.assertEqual(self.hvctl("console", "a", option, "--offset", "5").stdout, "one\ntwo\0")
        self.assertEqual([r.path for r in self.daemon.requests],
                         ["/v1/vms/a/console?follow=0&offset=5", "/v1/vms/a/console?follow=1&offset=5"])

    # A refused console is an error, a broken one too.
    def test_console_errors(self):
        self.hvctl("console", "a", "--log", code=65)
        self.on("GET", "/v1/vms/a/console", Answer(type="text/plain", chunks=[b"one\n", None]))
        self.assertEqual(self.hvctl("console", "a", "--follow", code=69).stdout, "one\n")


class Terminals(FakeTest):
    """The attached console, on a pseudo-terminal."""

    def setUp(self):
        super().setUp()
        self.typed = b""
        self.take = None
        self.release = threading.Event()
        self.addCleanup(self.release.set)
        self.on("GET", "/v1/vms/a", Answer(body=dict(VM, state="running")))
        self.on("POST", "/v1/vms/a/console", self.on_input)

        def output():
            yield b"login: "
            self.release.wait(util.LIMIT)

        self.on("GET", "/v1/vms/a/console", lambda request: Answer(type="text/plain", chunks=output()))

    def on_input(self, request):
        taken = len(request.body) if self.take is None else min(self.take, len(request.body))
        self.typed += request.body[:taken]
        return Answer(202, {"taken": taken})

    def attach(self):
        terminal = util.Terminal(self, "console", "a")
        before = util.terminal_settings(terminal.slave)
        terminal.expect(b"login: ")
        self.assertNotEqual(util.terminal_settings(terminal.slave), before)
        return terminal, before

    # What is typed arrives, ^C and all; ^] leaves with 0 and the terminal as it was.
    def test_detach(self):
        terminal, before = self.attach()
        terminal.type(b"root\r\x03\x04")
        util.until(lambda: self.typed == b"root\r\x03\x04", "the input")
        terminal.type(b"last\x1dnot this")
        self.assertEqual(terminal.wait(), 0)
        self.assertEqual(self.typed, b"root\r\x03\x04last")
        self.assertEqual(util.terminal_settings(terminal.slave), before)

    # A guest that takes little gets all in order, in as many pieces as it needs.
    def test_slow_guest(self):
        self.take = 3
        terminal, _ = self.attach()
        terminal.type(b"0123456789abcdef")
        util.until(lambda: self.typed == b"0123456789abcdef", "the input")
        terminal.type(b"\x1d")
        self.assertEqual(terminal.wait(), 0)

    # A guest that takes nothing does not hold the one who leaves.
    def test_deaf_guest(self):
        self.take = 0
        terminal, before = self.attach()
        terminal.type(b"x")
        util.until(lambda: len(self.daemon.asked("POST", "/v1/vms/a/console")) > 2, "tries")
        terminal.type(b"\x1d")
        self.assertEqual(terminal.wait(), 0)
        self.assertEqual(util.terminal_settings(terminal.slave), before)

    # The VM's end ends it, and says how.
    def test_vm_ends(self):
        terminal, before = self.attach()
        self.on("GET", "/v1/vms/a", Answer(body=dict(
            VM, end={"reason": "poweroff", "code": 0, "text": "powered off"})))
        self.release.set()
        self.assertEqual(terminal.wait(), 0)
        self.assertIn(b"a is shutoff: powered off", terminal.output)
        self.assertEqual(util.terminal_settings(terminal.slave), before)

    # Signals and a terminal that goes away leave it as it was, too.
    def test_signals(self):
        for sig in (1, 2, 3, 15):
            with self.subTest(sig=sig):
                terminal, before = self.attach()
                os.kill(terminal.process.pid, sig)
                self.assertEqual(terminal.wait(), 128 + sig)
                self.assertEqual(util.terminal_settings(terminal.slave), before)

    # A VM that does not exist: an error, and a terminal that was never touched.
    def test_no_vm(self):
        terminal = util.Terminal(self, "console", "b")
        before = util.terminal_settings(terminal.slave)
        self.assertEqual(terminal.wait(), 65)
        self.assertEqual(util.terminal_settings(terminal.slave), before)

    # Without a terminal, standard input is the input, and its end is not the end.
    def test_pipe(self):
        process = subprocess.Popen([util.HVCTL, "console", "a"], env=self.env, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(util.end_process, process)
        process.stdin.write(b"data\x1dmore")
        process.stdin.close()
        util.until(lambda: self.typed == b"data\x1dmore", "the input")
        time.sleep(0.1)
        self.assertIsNone(process.poll())
        self.release.set()
        self.assertEqual(process.wait(util.LIMIT), 0)
        self.assertEqual(process.stdout.read(), b"login: ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
