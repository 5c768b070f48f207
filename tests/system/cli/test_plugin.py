"""hvctl plugin: the conformance check from the command line, and strategy load with and without it."""
import json
import os
import shutil
import unittest

import util

PLUGINS = os.path.join(util.BUILD, "plugins")
BROKEN = os.path.join(util.BUILD, "tests", "plugins", "broken")
GOOD = os.path.join(PLUGINS, "teardown_single.so")
BAD = os.path.join(BROKEN, "broken_teardown_entry_twice.so")


class Plugin(util.CliTest):
    # A verdict, its exit code and its JSON; no daemon is started for it.
    def test_check(self):
        done = self.hvctl("plugin", "check", GOOD, "--operations", "300")
        self.assertIn("all rules kept", done.stdout)
        done = self.hvctl("plugin", "check", BAD, "--seed", "3", code=65)
        self.assertIn("broken: entry-removed-once", done.stdout)
        done = self.hvctl("plugin", "check", BAD, "--seed", "3", "-o", "json", code=65)
        verdict = json.loads(done.stdout)
        self.assertEqual((verdict["ok"], verdict["rule"], verdict["seed"]),
                         (False, "entry-removed-once", 3))
        self.assertIn("entry-removed-once", self.hvctl("plugin", "rules").stdout)
        self.assertFalse(os.path.exists(self.home.socket))

    # load refuses by rule, and takes the same file when it is forced; --force belongs to load alone.
    def test_load(self):
        path = os.path.join(self.dir, "bad.so")
        shutil.copy(BAD, path)
        os.chmod(path, 0o644)
        self.env.pop("MAYFLY_NO_START")
        self.addCleanup(self.home.stop_daemons)
        done = self.hvctl("strategy", "load", path, code=65)
        self.assertIn("entry-removed-once", done.stderr)
        self.hvctl("strategy", "load", "--force", path)
        self.assertIn("not-checked", self.hvctl("strategy", "show", "teardown", "broken-teardown").stdout)
        self.hvctl("strategy", "list", "--force", code=64)

    # Wrong usage names what is wrong; a file or program that is not there is told apart from a verdict.
    def test_wrong(self):
        for args, code in ((["check"], 64), (["rules", GOOD], 64), (["mend", GOOD], 64),
                           (["check", GOOD, "--operations", "0"], 64),
                           (["check", GOOD, "--seed", "-1"], 64), (["check", "/no/such.so"], 70)):
            done = self.hvctl("plugin", *args, code=code)
            self.assertTrue(done.stderr)
        self.env["MAYFLY_PLUGIN_CHECK"] = "/no/such/program"
        done = self.hvctl("plugin", "check", GOOD, code=69)
        self.assertIn("MAYFLY_PLUGIN_CHECK", done.stderr)


if __name__ == "__main__":
    unittest.main()
