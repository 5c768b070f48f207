"""Memory by REST: balloon, log of written pages, claims, large pages, frames out of use, scrubbing."""
import threading
import unittest

from util import Case, Daemon, guest, until

MIB = 1 << 20
BASE = 4 * MIB
XML = {"Content-Type": "application/xml"}


class Memory(Case):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon(memory="256M").start()

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def setUp(self):
        pass

    def tearDown(self):
        """Every frame is back."""
        for vm in self.d.get("/v1/vms").json()["vms"]:
            if vm["state"] not in ("shutoff", "crashed"):
                self.ok(self.d.post("/v1/vms/%s/destroy?wait=ended" % vm["name"]))
            self.assertEqual(self.d.delete("/v1/vms/" + vm["name"]).status, 204)
        until("all frames are free", lambda: self.d.heap()["free"] == self.d.heap()["frames"])
        self.assertEqual(self.d.heap()["claimed"], 0)

    def start(self, name, kernel="writer", **more):
        self.ok(self.d.define(name, kernel, **more), 201)
        self.ok(self.d.post("/v1/vms/%s/start?wait=running" % name))

    def console(self, name):
        return self.d.get("/v1/vms/%s/console" % name).body.decode()

    def say(self, name, what, answer):
        self.assertEqual(self.d.post("/v1/vms/%s/console" % name, what).status, 202)
        until(answer, lambda: answer in self.console(name))

    def balloon(self, name, op, address, size):
        return self.ok(self.d.post("/v1/vms/%s/balloon" % name,
                                   {"op": op, "address": address, "size": size}))

    # Protects: what is given back is the host's when the answer comes, what is taken is there.
    def test_balloon(self):
        self.start("b", cmdline="pages=512", memory="32M")
        until("ready", lambda: "ready" in self.console("b"))
        self.say("b", "w", "round 1\n")
        before = self.ok(self.d.get("/v1/vms/b/stats"))
        used = self.d.heap()["used_ram"]
        self.assertEqual(self.balloon("b", "give", "4M", "1M")["frames"], 256)
        self.assertEqual(self.d.heap()["used_ram"], used - 256)
        self.assertEqual(self.balloon("b", "give", BASE, MIB)["frames"], 0)
        self.assertEqual(self.balloon("b", "take", BASE, 2 * MIB)["frames"], 256)
        after = self.ok(self.d.get("/v1/vms/b/stats"))
        self.assertEqual((after["frames_given"], after["frames_taken"]), (256, 256))
        self.assertEqual(after["frames_ram"], before["frames_ram"])
        self.assertEqual(after["leaves"], [after["frames_ram"], 0, 0])
        self.ok(self.d.post("/v1/vms/b/pause?wait=paused"))
        self.assertEqual(self.balloon("b", "give", BASE, 2 * MIB)["frames"], 512)
        self.ok(self.d.post("/v1/vms/b/resume"))
        self.say("b", "w", "round 2\n")
        self.say("b", "c", "checked 2\n")

    # Protects: the log tells the pages written since the last fetch, as ranges in bytes.
    def test_dirty(self):
        self.start("d", cmdline="pages=64", memory="32M")
        until("ready", lambda: "ready" in self.console("d"))
        where = {"address": "4M", "size": "1M"}
        self.problem(self.d.post("/v1/vms/d/dirty", where), 409, code="wrong-state")
        self.say("d", "w", "round 1\n")
        self.assertEqual(self.d.put("/v1/vms/d/dirty", None).status, 204)
        self.problem(self.d.put("/v1/vms/d/dirty", None), 409, code="wrong-state")
        self.assertEqual(self.ok(self.d.post("/v1/vms/d/dirty", where)),
                         {"ranges": [], "pages": 0})
        self.assertTrue(self.ok(self.d.get("/v1/vms/d/stats"))["dirty_log"])
        self.say("d", "w", "round 2\n")
        half = {"address": BASE + 8192, "size": 40960}
        self.assertEqual(self.ok(self.d.post("/v1/vms/d/dirty", half)),
                         {"ranges": [[BASE + 8192, 40960]], "pages": 10})
        self.assertEqual(self.ok(self.d.post("/v1/vms/d/dirty", where)),
                         {"ranges": [[BASE, 8192], [BASE + 12 * 4096, 52 * 4096]], "pages": 54})
        self.assertEqual(self.d.delete("/v1/vms/d/dirty").status, 204)
        self.problem(self.d.delete("/v1/vms/d/dirty"), 409, code="wrong-state")
        self.problem(self.d.post("/v1/vms/d/dirty", where), 409, code="wrong-state")

    # Protects: each bad range is refused by the member at fault, also where numbers wrap.
    def test_bad_ranges(self):
        self.start("x", "idle", memory="32M")
        self.assertEqual(self.d.put("/v1/vms/x/dirty", None).status, 204)
        given = self.ok(self.d.get("/v1/vms/x/stats"))["frames_given"]
        cases = (("address", 1, 4096, "unaligned"), ("size", 0, 1, "unaligned"),
                 ("size", 0, 0, "out-of-range"), ("size", 0, (1 << 30) + 4096, "out-of-range"),
                 ("address", 32 * MIB, 4096, "out-of-range"),
                 ("address", 32 * MIB - 4096, 8192, "out-of-range"),
                 ("address", (1 << 64) - 4096, 4096, "out-of-range"),
                 ("address", (1 << 64) - 4096, 8192, "out-of-range"),
                 ("address", "99999999999999999999", 4096, "out-of-range"),
                 ("address", 99999999999999999999, 4096, "unaligned"),
                 ("address", -4096, 4096, "out-of-range"), ("size", 0, -1, "out-of-range"),
                 ("address", "4X", 4096, "malformed"), ("address", None, 4096, "malformed"),
                 ("size", 0, 1.5, "malformed"), ("size", 0, [], "malformed"))
        for field, address, size, code in cases:
            body = {"address": address, "size": size}
            self.problem(self.d.post("/v1/vms/x/dirty", body), 400, field, code)
            for op in ("give", "take"):
                self.problem(self.d.post("/v1/vms/x/balloon", dict(body, op=op)), 400, field, code)
        good = {"address": 0, "size": 4096}
        self.problem(self.d.post("/v1/vms/x/balloon", good), 400, "op", "malformed")
        self.problem(self.d.post("/v1/vms/x/balloon", dict(good, op="eat")), 400, "op")
        self.problem(self.d.post("/v1/vms/x/balloon", dict(good, op=1)), 400, "op")
        self.problem(self.d.post("/v1/vms/x/balloon", dict(good, op="give", y=1)), 400, "y")
        self.problem(self.d.post("/v1/vms/x/balloon", {"op": "give", "size": 1}), 400, "address")
        self.problem(self.d.post("/v1/vms/nobody/balloon", dict(good, op="give")), 404)
        self.problem(self.d.put("/v1/vms/nobody/dirty", None), 404)
        self.ok(self.d.define("off"), 201)
        self.problem(self.d.post("/v1/vms/off/balloon", dict(good, op="give")), 409,
                     code="wrong-state")
        self.problem(self.d.put("/v1/vms/off/dirty", None), 409, code="wrong-state")
        self.assertEqual(self.ok(self.d.get("/v1/vms/x/stats"))["frames_given"], given)

    # Protects: a claim is kept and counted, one that cannot be is refused with the numbers.
    def test_claim(self):
        vm = self.ok(self.d.define("c", memory="128M", claim=True, pages="2M"), 201)
        self.assertEqual((vm["claim"], vm["pages"]), (True, "2M"))
        self.ok(self.d.post("/v1/vms/c/start?wait=running"))
        # Two answers are compared: the guest must not take a frame of its claim in between.
        self.ok(self.d.post("/v1/vms/c/pause?wait=paused"))
        left = self.ok(self.d.get("/v1/vms/c/stats"))["claim_left"]
        self.assertGreater(left, 30000)
        self.assertEqual(self.d.heap()["claimed"], left)
        self.ok(self.d.post("/v1/vms/c/resume?wait=running"))
        self.ok(self.d.define("c2", memory="200M", claim=True), 201)
        self.problem(self.d.post("/v1/vms/c2/start"), 503, "memory", "out-of-memory", "are free")
        self.problem(self.d.run_guest(memory="200M", claim=True), 503, "memory", "out-of-memory")
        self.ok(self.d.run_guest(memory="16M", claim=True))
        self.problem(self.d.define("c3", claim="yes"), 400, "claim")
        self.problem(self.d.define("c3", pages="1G"), 400, "pages")
        text = self.d.get("/v1/vms/c", Accept="application/xml").body
        self.ok(self.d.post("/v1/vms/c/destroy?wait=ended"))
        self.assertEqual(self.d.delete("/v1/vms/c").status, 204)
        self.ok(self.d.post("/v1/vms", text, XML), 201)
        vm = self.d.vm("c")
        self.assertEqual((vm["claim"], vm["pages"]), (True, "2M"))
        self.problem(self.d.post("/v1/vms", text.replace(b"yes", b"maybe"), XML), 400, "ram")

    # Protects: frames out of use and the policy of scrubbing, from request to the heap's numbers.
    def test_host_frames(self):
        frames = self.d.heap()["frames"]
        self.assertEqual(self.ok(self.d.post("/v1/host/heap/offline", {"first": 8, "frames": 16})),
                         {"changed": 16, "waiting": 0, "already": 0})
        self.assertEqual(self.d.heap()["offline"], 16)
        self.assertEqual(self.d.heap()["free"], frames - 16)
        self.assertEqual(self.ok(self.d.post("/v1/host/heap/online", {"first": 0, "frames": 24})),
                         {"changed": 16, "waiting": 0, "already": 8})
        for body, field in (({"first": frames, "frames": 1}, "first"),
                            ({"first": 0, "frames": 0}, "frames"),
                            ({"first": 0, "frames": 32769}, "frames"),
                            ({"first": -1, "frames": 1}, "first"),
                            ({"first": "0", "frames": 1}, "first"), ({"first": 0}, "frames"),
                            ({"first": (1 << 64) - 1, "frames": 2}, "first")):
            for what in ("offline", "online"):
                self.problem(self.d.post("/v1/host/heap/" + what, body), 400, field)
        for policy in ("free", "alloc", "background"):
            self.assertEqual(self.d.put("/v1/host/heap/scrub", {"policy": policy}).status, 204)
            self.assertEqual(self.d.heap()["scrub"], policy)
        self.problem(self.d.put("/v1/host/heap/scrub", {"policy": "never"}), 400, "policy")
        self.problem(self.d.put("/v1/host/heap/scrub", {}), 400, "policy")

    # Protects: a VM destroyed while a range of it is worked on: an answer for everybody.
    def test_destroyed_meanwhile(self):
        for _ in range(5):
            self.start("m", "loop", memory="128M")
            answers = []
            body = {"op": "take", "address": "4M", "size": "100M"}
            thread = threading.Thread(
                target=lambda: answers.append(self.d.post("/v1/vms/m/balloon", body,
                                                          None).status))
            thread.start()
            self.ok(self.d.post("/v1/vms/m/destroy?wait=ended"))
            thread.join()
            self.assertIn(answers[0], (200, 409))
            self.assertEqual(self.d.delete("/v1/vms/m").status, 204)


if __name__ == "__main__":
    unittest.main()
