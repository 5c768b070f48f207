"""The plugins that ship keep every rule; the program's own manners."""
import os
import sys
import tempfile
import unittest

import kit


class Shipped(unittest.TestCase):
    def test_every_plugin_keeps_every_rule(self):
        seeds, operations = ((1,), 500) if kit.SANITIZED else ((1, 2, 3, 2 ** 64 - 1), 2000)
        runs = [(p, s) for p in kit.shipped() for s in seeds]
        self.assertGreaterEqual(len(runs), 9 * len(seeds))

        def look(run):
            return kit.check(run[0], run[1], operations)

        wrong = []
        for (path, seed), (code, v) in zip(runs, kit.in_parallel(look, runs)):
            bad = [r for r in v["rules"] if r["mark"] not in ("kept", "not-claimed")]
            if code or not v["ok"] or bad or v["operations"] < operations:
                wrong.append("%s, seed %d: %s: %s" % (path, seed, v["rule"], v["text"]))
        self.assertEqual(wrong, [])

    def test_no_plugin(self):
        """A file that is none is a finding; one that is not there is not."""
        with tempfile.NamedTemporaryFile(suffix=".so") as f:
            f.write(b"not an ELF file" * 100)
            f.flush()
            code, v = kit.check(f.name)
            self.assertEqual((code, v["ok"], v["rule"]), (1, False, "loads"))
            self.assertIn("ELF", v["text"])
        r = kit.run("/no/such/file.so")
        self.assertEqual(r.returncode, 3)
        self.assertIn("No such file", r.stderr)

    def test_usage(self):
        so = kit.shipped()[0]
        for args in ((), (so, so), ("--seed", "x", so), ("--seed", "-1", so),
                     ("--operations", "0", so), ("--operations", "1000000001", so),
                     ("--operations", "", so), ("--frobnicate", so)):
            r = kit.run(*args)
            self.assertEqual((r.returncode, r.stdout), (2, ""), args)
            self.assertIn("usage:", r.stderr)

    def test_rules_are_a_table(self):
        """The names are stable words; text and JSON speak of the same rules."""
        lines = kit.run("--rules").stdout.splitlines()
        names = [line.split()[0] for line in lines]
        self.assertEqual(len(set(names)), len(names))
        for n in names:
            self.assertRegex(n, r"^[a-z]+(-[a-z]+)*$")
        text = kit.run("--operations", 200, kit.shipped()[0]).stdout
        v = kit.check(kit.shipped()[0], operations=200)[1]
        for r in v["rules"]:
            self.assertIn(r["name"], names)
            self.assertIn("  %-24s %s" % (r["name"], r["mark"]), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
