"""docs/plugins.md leads to a strategy that works: its example is compiled outside the tree and used."""
import os
import shutil
import subprocess
import tempfile
import unittest

import util

SOURCE = os.environ["MAYFLY_SOURCE"]


def example():
    """The indented block of the page that is the plugin's source."""
    with open(os.path.join(SOURCE, "docs", "plugins.md"), encoding="utf-8") as f:
        lines = f.read().splitlines()
    first = next(i for i, line in enumerate(lines) if "#include <mayfly/plugin.h>" in line)
    last = next(i for i, line in enumerate(lines) if "MF_TEARDOWN_PLUGIN(" in line)
    return "\n".join(line[4:] for line in lines[first:last + 1]) + "\n"


class Howto(util.SharedDaemonTest):
    # A reader who does what the page says has a strategy that loads, tears down and loses nothing.
    def test_example(self):
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(os.path.join(d, "mayfly"))
            shutil.copy(os.path.join(SOURCE, "proto", "plugin.h"), os.path.join(d, "mayfly"))
            source, plugin = os.path.join(d, "mine.c"), os.path.join(d, "teardown_mine.so")
            with open(source, "w", encoding="utf-8") as f:
                f.write(example())
            subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared",
                            "-fvisibility=hidden", "-I", d, "-o", plugin, source], check=True)
            os.chmod(plugin, 0o644)
            for seed in ("1", "2", "3"):
                self.hvctl("plugin", "check", plugin, "--seed", seed, "--operations", "3000")
            self.hvctl("strategy", "load", plugin)
            run = self.hvctl("run", self.guest("hello"), "--teardown", "mine", "-o", "json")
            self.assertIn('"teardown":"mine"', run.stdout)
            self.assertIn("every frame is accounted for", self.hvctl("heap", "audit").stdout)


if __name__ == "__main__":
    unittest.main()
