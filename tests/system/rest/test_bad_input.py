"""Whatever comes in wrong is refused with an error that names it, and changes nothing."""
import os
import re
import socket
import struct
import unittest

from util import PATIENCE, SharedCase, guest

JSON = {"Content-Type": "application/json"}
XML = {"Content-Type": "application/xml"}
GOOD = {"name": "good", "memory": "16M", "kernel": guest("hello-pvh")}


def domain(name="x", memory="16", kernel=guest("hello-pvh"), more="", unit="MiB"):
    return ("<domain type='mayfly'>\n<name>%s</name>\n<memory unit='%s'>%s</memory>\n"
            "<os><type>hvm</type><kernel>%s</kernel></os>\n%s</domain>\n"
            % (name, unit, memory, kernel, more))


class BadInput(SharedCase):
    def setUp(self):
        super().setUp()
        self.before = self.d.get("/v1/vms").json()

    def tearDown(self):
        """Nothing is left of anything, on the wire or on the disk, and good requests work."""
        self.assertEqual(self.d.get("/v1/vms").json(), self.before)
        self.assertEqual(os.listdir(os.path.join(self.d.state, "vms")), [])
        self.ok(self.d.post("/v1/vms", GOOD), 201)
        self.assertEqual(self.d.delete("/v1/vms/good").status, 204)

    def refused(self, body, status=400, field=None, code=None, detail=None, headers=JSON):
        """By define, and where it can be by run."""
        self.problem(self.d.post("/v1/vms", body, headers), status, field, code, detail)

    # ---- JSON

    def test_json_that_is_none(self):
        for body in ("", " ", "{", "nul", "[]", "1", '"x"', "null", '{"name":"a",}', "{'a':1}",
                     '{"name":"a"} {}', b"\xff\xfe{\0}\0", b'{"name":"\xff"}'):
            self.refused(body, code="malformed")
            self.problem(self.d.post("/v1/run", body, JSON), 400, code="malformed")

    def test_json_empty_object(self):
        self.refused("{}", field="name")
        self.problem(self.d.post("/v1/run", "{}", JSON), 400, "kernel")
        self.problem(self.d.put("/v1/vms/x", "{}", JSON), 400, "name")
        self.problem(self.d.put("/v1/host/allocator", "{}", JSON), 400, "name")
        self.problem(self.d.put("/v1/host/teardown", "{}", JSON), 400, "name")
        self.problem(self.d.post("/v1/strategies", "{}", JSON), 400, "path")

    def test_json_wrong_types(self):
        for key in ("name", "uuid", "memory", "vcpus", "kernel", "cmdline", "engine", "teardown",
                    "on_reset", "weight", "cap"):
            for value in (None, True, [], {}, 1.5):
                self.refused(dict(GOOD, **{key: value}), field=key)
        self.problem(self.d.put("/v1/host/allocator", {"name": 5}), 400, "name")

    def test_json_unknown_member(self):
        self.refused(dict(GOOD, colour="red"), field="colour")
        self.problem(self.d.run_guest(colour="red"), 400, "colour")
        self.problem(self.d.put("/v1/host/teardown", {"name": "scan", "x": 1}), 400, "x")

    def test_json_deep(self):
        for depth in (9, 100, 200000):
            self.refused('{"name":' + "[" * depth, detail="nested")
            self.problem(self.d.post("/v1/run", "[" * depth, JSON), 400, detail="nested")

    def test_names(self):
        for name in ("", "123", "a" * 64, "a/b", "..", "../a", "a..b", ".a", "-a", "a b", "\u00e4"):
            self.refused(dict(GOOD, name=name), field="name", code="bad-name")
            self.problem(self.d.run_guest(name=name), 400, "name", "bad-name")
        self.refused(dict(GOOD, name="a\0b"), field="name")

    def test_memory(self):
        for memory, code in ((0, "out-of-range"), (512, "out-of-range"), (-1, "out-of-range"),
                             (65537, "unaligned"), ("1T", "out-of-range"),
                             ("9223372036854775808MiB", "out-of-range"),
                             (2 ** 64, None), (2 ** 64 - 4096, "out-of-range"),
                             ("", "malformed"), ("16X", "malformed"), ("-16M", "malformed")):
            self.refused(dict(GOOD, memory=memory), field="memory", code=code)
            self.problem(self.d.run_guest(memory=memory), 400, "memory", code)

    def test_vcpus(self):
        for vcpus in (0, 9999, -1, 65, 2 ** 40):
            self.refused(dict(GOOD, vcpus=vcpus), field="vcpus", code="out-of-range")

    def test_other_values(self):
        self.refused(dict(GOOD, engine="xen"), field="engine")
        self.refused(dict(GOOD, on_reset="maybe"), field="on_reset")
        self.refused(dict(GOOD, teardown="No Such"), field="teardown")
        self.refused(dict(GOOD, weight=0), field="weight")
        self.refused(dict(GOOD, cap=101), field="cap")
        self.refused(dict(GOOD, uuid="x"), field="uuid")
        self.refused(dict(GOOD, cmdline="a\nb"), field="cmdline")
        self.refused(dict(GOOD, cmdline="c" * 2048), field="cmdline")
        self.problem(self.d.run_guest(timeout_ms=0), 400, "timeout_ms")

    # ---- kernels

    def kernel_file(self, data):
        path = os.path.join(self.d.dir, "kernel")
        with open(path, "wb") as f:
            f.write(data)
        return path

    def kernel_refused(self, path):
        self.refused(dict(GOOD, kernel=path), field="kernel")
        self.problem(self.d.post("/v1/run", {"kernel": path}), 400, "kernel")

    def test_kernel_paths(self):
        for path in ("", "relative", "/no/such/file", "/", self.d.dir, "/dev/zero", "/dev/null",
                     "/" + "k" * 4096, "/proc/self/mem", "/a\nb"):
            self.kernel_refused(path)
        fifo = os.path.join(self.d.dir, "fifo")
        os.mkfifo(fifo)
        self.kernel_refused(fifo)

    def test_kernel_images(self):
        with open(guest("hello-pvh"), "rb") as f:
            good = f.read()
        self.kernel_refused(self.kernel_file(b""))
        self.kernel_refused(self.kernel_file(b"not a kernel"))
        for cut in (1, 16, 63, 64, 100, len(good) // 2):
            self.kernel_refused(self.kernel_file(good[:cut]))

        def patched(offset, fmt, value):
            data = bytearray(good)
            struct.pack_into(fmt, data, offset, value)
            return bytes(data)

        is64 = good[4] == 2
        self.kernel_refused(self.kernel_file(patched(18, "<H", 183)))  # another machine
        if is64:
            phoff = struct.unpack_from("<Q", good, 32)[0]
            self.kernel_refused(self.kernel_file(patched(32, "<Q", 2 ** 64 - 8)))
            self.kernel_refused(self.kernel_file(patched(phoff + 32, "<Q", 2 ** 64 - 1)))
        self.ok(self.d.post("/v1/vms", GOOD), 201)
        self.d.delete("/v1/vms/good")

    def test_kernel_outside_ram(self):
        self.refused(dict(GOOD, memory="64K"), field="kernel")

    def test_kernel_broken_after_define(self):
        with open(guest("hello-pvh"), "rb") as f:
            good = f.read()
        path = self.kernel_file(good)
        self.ok(self.d.post("/v1/vms", dict(GOOD, name="b", kernel=path)), 201)
        try:
            for data in (b"", good[:100], None):
                if data is None:
                    os.unlink(path)
                else:
                    self.kernel_file(data)
                self.problem(self.d.post("/v1/vms/b/start"), 400, "kernel")
                vm = self.d.vm("b")
                self.assertEqual((vm["state"], vm["id"]), ("shutoff", None))
            self.kernel_file(good)
            self.ok(self.d.post("/v1/vms/b/start?wait=ended"))
            self.assertEqual(self.d.vm("b")["end"]["reason"], "poweroff")
        finally:
            self.d.delete("/v1/vms/b")

    # ---- XML

    def xml_refused(self, text, field=None, detail=None):
        self.refused(text, field=field, detail=detail, headers=XML)

    def test_xml_doctype(self):
        self.xml_refused("<!DOCTYPE domain>" + domain(), "DOCTYPE")
        self.xml_refused("<!DOCTYPE d SYSTEM 'file:///etc/passwd'>" + domain(), "DOCTYPE")
        bomb = ("<!DOCTYPE d [<!ENTITY a0 'aaaaaaaaaa'>" +
                "".join("<!ENTITY a%d '%s'>" % (i, ("&a%d;" % (i - 1)) * 10) for i in range(1, 20)) +
                "]>" + domain(name="&a19;"))
        self.xml_refused(bomb, "DOCTYPE")
        self.xml_refused("<?xml version='1.0'?>\n<!ENTITY x 'y'>" + domain(), "ENTITY")
        self.xml_refused(domain(name="&undeclared;"), detail="line 2")
        self.xml_refused(("<!DOCTYPE d>" + domain()).encode("utf-16"))

    def test_xml_unknown_element(self):
        self.xml_refused(domain(more="<devices/>\n"), "devices", "line 5")
        self.xml_refused(domain(more="<name>again</name>\n"), "name", "line 5")
        self.xml_refused("<vm/>", "vm")

    def test_xml_malformed(self):
        for text in ("", "  ", "<", "<domain", domain()[:-12], "{}", domain() + "<more/>"):
            self.xml_refused(text)

    def test_xml_depth(self):
        self.xml_refused("<os>" * 50 + "</os>" * 50, "os", "deeper")
        self.xml_refused("<a>" * 300000)

    def test_xml_values(self):
        for name in ("", "123", "a/b", "..", "a" * 64):
            self.xml_refused(domain(name=name), "name")
        for memory in ("0", "9223372036854775808", "99999999999999999999999"):
            self.xml_refused(domain(memory=memory), "memory")
        self.xml_refused(domain(memory="512", unit="b"), "memory")
        self.xml_refused(domain(memory="65537", unit="b"), "memory")
        self.xml_refused(domain(memory="9999", unit="GiB"), "memory")
        self.xml_refused(domain(more="<vcpu>0</vcpu>"), "vcpus")
        self.xml_refused(domain(more="<vcpu>9999</vcpu>"), "vcpus")
        self.xml_refused(domain(kernel="/no/such"), "kernel")
        self.xml_refused(domain(kernel="relative"), "kernel")

    # ---- HTTP

    def test_unknown_endpoint(self):
        for path in ("/", "/v1", "/v1/", "/v2/vms", "/v1/vms/", "/v1/vms/a/b", "/v1/vms//start",
                     "/v1/vms/a/start/x", "/v1/%2e%2e/vms", "/v1/nothing", "/favicon.ico"):
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
                a = self.d.ask(method, path)
                self.assertEqual(a.status, 404, path)
                if method != "HEAD":
                    self.problem(a, 404, code="not-found")

    def test_unknown_method(self):
        for method in ("PATCH", "OPTIONS", "TRACE", "BREW", "DELETE"):
            a = self.d.ask(method, "/v1/vms")
            self.problem(a, 405, code="method-not-allowed")
            self.assertEqual(a.headers["Allow"], "GET, HEAD, POST")
        a = self.d.get("/v1/vms/x/start")
        self.problem(a, 405)
        self.assertEqual(a.headers["Allow"], "POST")
        self.problem(self.d.put("/v1/run", "{}", JSON), 405)

    def test_media_type(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/yaml", ""):
            self.refused("{}", 415, "Content-Type", "media-type", headers={"Content-Type": kind})
        self.problem(self.d.post("/v1/run", domain(), XML), 415, "Content-Type")
        self.problem(self.d.put("/v1/host/allocator", "<a/>", XML), 415, "Content-Type")
        self.refused("{}", 400, "name", headers={"Content-Type": "application/json; charset=utf-8"})
        self.refused("{}", 400, "name", headers={})

    def test_query(self):
        self.ok(self.d.define("q"), 201)
        for path, field in (("start?wait=soon", "wait"), ("start?wait=", "wait"),
                            ("start?timeout_ms=0", "timeout_ms"),
                            ("start?timeout_ms=x", "timeout_ms"),
                            ("shutdown?grace_ms=-1", "grace_ms"),
                            ("shutdown?grace_ms=99999999", "grace_ms")):
            self.problem(self.d.post("/v1/vms/q/" + path), 400, field)
        self.problem(self.d.get("/v1/vms/q/console?offset=-1"), 400, "offset")
        self.problem(self.d.get("/v1/vms/q/console?offset=99999999999999999999"), 400, "offset")
        self.problem(self.d.get("/v1/vms/q/console?follow=maybe"), 400, "follow")
        self.assertEqual(self.d.vm("q")["state"], "shutoff")
        self.assertEqual(self.d.delete("/v1/vms/q").status, 204)

    def rss(self):
        with open("/proc/%d/status" % self.d.process.pid) as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1)) * 1024

    def big(self, head, chunk, times):
        """Sends without listening, as a rude client does; then what the server said."""
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(PATIENCE)
        s.connect(self.d.socket)
        sent = 0
        try:
            s.sendall(head)
            for _ in range(times):
                s.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        got = b""
        try:
            while True:
                more = s.recv(65536)
                if not more:
                    break
                got += more
        except (ConnectionResetError, socket.timeout):
            pass
        s.close()
        return sent, got

    def test_huge_body_with_length(self):
        before = self.rss()
        head = (b"POST /v1/vms HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 104857600\r\n\r\n")
        sent, got = self.big(head, b"a" * 65536, 1600)
        self.assertTrue(got.startswith(b"HTTP/1.1 413 "), got[:100])
        self.assertIn(b'"code":"too-big"', got)
        self.assertLess(sent, 104857600)
        self.assertLess(self.rss() - before, 16 << 20)

    def test_huge_body_that_asks_first(self):
        head = (b"POST /v1/vms HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 104857600\r\nExpect: 100-continue\r\n\r\n")
        sent, got = self.big(head, b"", 0)
        self.assertTrue(got.startswith(b"HTTP/1.1 413 "), got[:100])
        self.assertIn(b'"code":"too-big"', got)

    def test_huge_body_in_chunks(self):
        before = self.rss()
        for target in (b"POST /v1/vms", b"POST /v1/run", b"POST /v1/nothing", b"GET /v1/host"):
            head = (target + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n")
            sent, got = self.big(head, b"10000\r\n" + b"[" * 65536 + b"\r\n", 1600)
            self.assertTrue(got.startswith(b"HTTP/1.1 413 "), got[:100])
            length = int(re.search(rb"Content-Length: (\d+)", got).group(1))
            self.assertEqual(len(got.split(b"\r\n\r\n", 1)[1]), length)
            self.assertLess(sent, 104857600)
        self.assertLess(self.rss() - before, 16 << 20)

    def test_body_at_the_limit(self):
        pad = " " * (1048576 - 2)
        self.refused("{" + pad + "}", 400, "name")
        self.refused("{" + pad + " }", 413, code="too-big")
        self.refused("<!-- " + "x" * (1048576 - 9 - len(domain(memory="0"))) + "-->" +
                     domain(memory="0"), 400, "memory", headers=XML)

    def test_broken_http(self):
        """The daemon lives. It need not answer: half a request may be waited for until it idles."""
        for raw in (b"\r\n\r\n", b"GARBAGE\r\n\r\n", b"GET\r\n\r\n", b"\0" * 1000,
                    b"GET /v1/host HTTP/9.9\r\n\r\n", b"GET " + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                    b"POST /v1/vms HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                    b"POST /v1/vms HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                    b"POST /v1/vms HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                    b"GET /v1/host HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n"):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(1)
            s.connect(self.d.socket)
            try:
                s.sendall(raw)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError:
                pass
            s.close()
            self.assertEqual(self.d.get("/v1/version").status, 200)

    def test_unknown_vm(self):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/start"), ("POST", "/pause"),
                             ("POST", "/destroy"), ("GET", "/stats"), ("GET", "/console")):
            self.problem(self.d.ask(method, "/v1/vms/nobody" + path), 404, "vm", "not-found")
        self.problem(self.d.put("/v1/vms/nobody/teardown", {"name": "scan"}), 404, "vm")


if __name__ == "__main__":
    unittest.main()
