"""Consoles, events, and clients that do not behave."""
import json
import os
import socket
import time
import unittest

from util import Case, PATIENCE, guest, until


class Streams(Case):
    def setUp(self):
        super().setUp()
        self.ok(self.d.get("/v1/host"))  # the core is up, and what it told at its start is told

    def start(self, name, kernel):
        self.ok(self.d.define(name, kernel), 201)
        self.ok(self.d.post("/v1/vms/%s/start?wait=running" % name))

    def follow(self, path, **headers):
        c = self.d.connect()
        c.request("GET", path, headers=headers)
        r = c.getresponse()
        self.assertEqual(r.status, 200)
        self.addCleanup(c.close)
        return c, r

    def read_line(self, r):
        line = b""
        while not line.endswith(b"\n"):
            more = r.read(1)
            if not more:
                break
            line += more
        return line

    # ---- console

    def test_console_offset(self):
        self.ok(self.d.define("h", "hello-pvh"), 201)
        self.assertEqual(self.d.get("/v1/vms/h/console").body, b"")
        self.assertEqual(self.d.get("/v1/vms/h/console?follow=1").body, b"")
        self.ok(self.d.post("/v1/vms/h/start?wait=ended"))
        a = self.d.get("/v1/vms/h/console")
        self.assertEqual((a.body, a.headers["Mayfly-Console-Offset"]), (b"Hello world!\n", "0"))
        a = self.d.get("/v1/vms/h/console?offset=6")
        self.assertEqual((a.body, a.headers["Mayfly-Console-Offset"]), (b"world!\n", "6"))
        self.assertEqual(self.d.get("/v1/vms/h/console?offset=13").body, b"")
        self.assertEqual(self.d.get("/v1/vms/h/console?follow=1").body, b"Hello world!\n")
        self.assertEqual(self.d.get("/v1/vms/h/console?follow=1&offset=12").body, b"\n")

    def test_follow_echo(self):
        """What is typed comes back through the guest, and the stream ends with the VM."""
        self.start("e", "echo")
        c, r = self.follow("/v1/vms/e/console?follow=1")
        text = b"some text for the guest\r"
        sent = 0
        got = b""
        end = time.monotonic() + PATIENCE
        while sent < len(text):
            a = self.ok(self.d.post("/v1/vms/e/console", text[sent:],
                                    {"Content-Type": "application/octet-stream"}), 202)
            sent += a["taken"]
            self.assertLess(time.monotonic(), end)
        while b"some text for the guest" not in got.replace(b"\r", b"").replace(b"\n", b""):
            got += r.read1(100)
        self.ok(self.d.post("/v1/vms/e/destroy?wait=shutoff"))
        r.read()
        self.problem(self.d.post("/v1/vms/e/console", b"x"), 409)

    def test_several_followers(self):
        """All see the same, also who comes late and who goes early; then everybody is let go."""
        self.start("c", "echo")
        streams = [self.follow("/v1/vms/c/console?follow=1") for _ in range(5)]
        streams.pop()[0].close()
        self.ok(self.d.post("/v1/vms/c/console", b"abc\r"), 202)
        self.ok(self.d.post("/v1/vms/c/destroy?wait=shutoff"))
        whole = self.d.get("/v1/vms/c/console").body
        for _, r in streams:
            self.assertEqual(r.read(), whole)

    def test_vanishing_clients(self):
        """Console and event clients that go away without a word leave nothing behind."""
        self.start("v", "idle")
        until("settled", lambda: self.d.get("/v1/host").status == 200)
        before = self.d.fds()
        log = len(self.d.log())
        for _ in range(50):
            for path in ("/v1/vms/v/console?follow=1", "/v1/events"):
                s = socket.socket(socket.AF_UNIX)
                s.connect(self.d.socket)
                s.sendall(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                s.close()
            c = self.d.connect()
            c.request("POST", "/v1/vms/v/shutdown?wait=shutoff&grace_ms=600000")
            c.close()
        until("no file is left open", lambda: self.d.fds() <= before)
        self.assertLess(len(self.d.log()) - log, 1000)
        self.ok(self.d.post("/v1/vms/v/destroy?wait=shutoff"))

    def test_slow_console_client(self):
        """A client that does not read its console costs the others nothing."""
        self.start("s", "chatty")
        s = socket.socket(socket.AF_UNIX)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        s.connect(self.d.socket)
        s.sendall(b"GET /v1/vms/s/console?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(50):
            self.ok(self.d.run_guest())
        self.d.post("/v1/vms/s/destroy?wait=shutoff")
        s.close()
        self.ok(self.d.get("/v1/vms/s"))

    def test_chatty(self):
        """More than the core keeps: the newest is there, and its offset is told."""
        self.ok(self.d.define("c", "chatty"), 201)
        self.ok(self.d.post("/v1/vms/c/start?wait=running"))
        until("it has said a lot", lambda: self.d.vm("c")["console_end"] > 200000 or
              self.d.vm("c")["state"] == "shutoff")
        if self.d.vm("c")["state"] == "running":
            self.ok(self.d.post("/v1/vms/c/destroy?wait=shutoff"))
        end = self.d.vm("c")["console_end"]
        a = self.d.get("/v1/vms/c/console")
        self.assertEqual(int(a.headers["Mayfly-Console-Offset"]) + len(a.body), end)
        b = self.d.get("/v1/vms/c/console?follow=1")
        self.assertEqual(b.body, a.body)

    # ---- events

    def test_events(self):
        c, r = self.follow("/v1/events")
        self.assertEqual(r.headers["Content-Type"], "application/x-ndjson")
        self.ok(self.d.define("a", "idle"), 201)
        self.ok(self.d.post("/v1/vms/a/start?wait=running"))
        self.ok(self.d.put("/v1/vms/a/teardown", {"name": "scan"}))
        self.ok(self.d.post("/v1/vms/a/destroy?wait=shutoff"))
        self.assertEqual(self.d.delete("/v1/vms/a").status, 204)
        events = []
        while not events or events[-1]["type"] != "vm-deleted":
            events.append(json.loads(self.read_line(r)))
        mine = [e for e in events if e.get("vm") == "a"]
        self.assertEqual([e["seq"] for e in events],
                         list(range(events[0]["seq"], events[0]["seq"] + len(events))))
        self.assertEqual(mine[0]["type"], "vm-defined")
        states = [(e["from"], e["state"]) for e in mine if e["type"] == "vm-state"]
        self.assertEqual(states, [("shutoff", "starting"), ("starting", "running"),
                                  ("running", "stopping"), ("stopping", "shutoff")])
        ended = [e for e in mine if e["type"] == "vm-ended"]
        self.assertEqual([e["reason"] for e in ended], ["destroyed"])
        self.assertTrue([e for e in mine if e["type"] == "strategy" and e["name"] == "scan" and
                         e["action"] == "selected"])
        for e in events:
            self.assertRegex(e["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")

    def test_sse(self):
        c, r = self.follow("/v1/events", Accept="text/event-stream")
        self.assertEqual(r.headers["Content-Type"], "text/event-stream")
        self.ok(self.d.define("a", "idle"), 201)
        kind = None
        while kind != "vm-defined":  # behind what the core may still tell of its start
            self.assertRegex(self.read_line(r), rb"^id: \d+\n$")
            line = self.read_line(r)
            self.assertTrue(line.startswith(b"data: {"))
            kind = json.loads(line[6:])["type"]
            self.assertEqual(self.read_line(r), b"\n")

    def test_slow_event_client(self):
        """One that does not read loses events and is told how many; memory is bounded."""
        s = socket.socket(socket.AF_UNIX)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        s.settimeout(PATIENCE)
        s.connect(self.d.socket)
        s.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        c = self.d.connect()
        for _ in range(1500):
            a = self.d.ask("POST", "/v1/run", {"kernel": guest("hello-pvh")}, None, c)
            self.assertEqual(a.status, 200)
        got = b""
        while b'"type":"lost"' not in got:
            more = s.recv(65536)
            self.assertTrue(more)
            got += more
        s.close()
        c.close()

    def test_many_connections(self):
        """A hundred clients at once are served, and their connections are let go."""
        self.d.get("/v1/host")
        before = self.d.fds()
        clients = [self.d.connect() for _ in range(100)]
        for c in clients:
            c.request("GET", "/v1/host")
        for c in clients:
            self.assertEqual(c.getresponse().status, 200)
        for c in clients:
            c.close()
        until("closed", lambda: self.d.fds() <= before)

    def test_pipelined(self):
        """Requests sent in one go are answered one after the other, also around one that waits."""
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(PATIENCE)
        s.connect(self.d.socket)
        body = json.dumps({"kernel": guest("hello-pvh")}).encode()
        s.sendall(b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
                  b"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%sGET /v1/nothing HTTP/1.1\r\nHost: x\r\n"
                  b"Connection: close\r\n\r\n" % (len(body), body))
        got = b""
        while True:
            more = s.recv(65536)
            if not more:
                break
            got += more
        s.close()
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 2)
        self.assertLess(got.index(b"plugin_abi"), got.index(b"Hello world!"))
        self.assertLess(got.index(b"Hello world!"), got.index(b"HTTP/1.1 404"))


if __name__ == "__main__":
    unittest.main()
