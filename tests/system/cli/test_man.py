"""The manual page of hvctl and the program's own table say the same."""
import os
import re
import shutil
import subprocess
import unittest

import util

MAN = os.path.join(util.SOURCE, "docs", "man")


def options_of(help_text):
    """Long and short options of one help text, and whether they take a value."""
    found = {}
    for line in help_text.splitlines():
        match = re.match(r"^\s{2,}(?:-(\w), |\s{4})--([\w-]+)(?: (\S+))?(?:\s|$)", line)
        if match:
            letter, name, arg = match.groups()
            found[name] = (letter, arg if arg and arg.isupper() else None)
    return found


class Manual(util.CliTest):
    def setUp(self):
        super().setUp()
        with open(os.path.join(MAN, "hvctl.1"), encoding="utf-8") as f:
            text = f.read()
        commands = text.split(".Sh COMMANDS\n")[1].split("\n.Sh ")[0]
        parts = re.split(r"^\.Ss (\S+)\n", commands, flags=re.M)
        self.sections = dict(zip(parts[1::2], parts[2::2]))
        self.intro = text.split(".Sh COMMANDS\n")[0]

    def commands(self):
        text = self.hvctl("help").stdout.split("commands:\n")[1].split("\n\n")[0]
        return [line.split()[0] for line in text.splitlines()]

    def documented(self, text):
        found = {}
        for line in re.findall(r"^\.It (Fl .*)$", text, flags=re.M):
            match = re.match(r"^(?:Fl (\w) , )?Fl Fl ([\w-]+)(?: Ar (\S+))?$", line)
            self.assertTrue(match, line)
            found[match.group(2)] = (match.group(1), match.group(3))
        return found

    # Every command is there, in the program's order, and no other.
    def test_commands(self):
        self.assertEqual(sorted(self.sections), sorted(self.commands()))

    # Every option of every command is there with its letter and value, and no other.
    def test_options(self):
        for command in self.commands():
            with self.subTest(command=command):
                text = self.hvctl("help", command).stdout.split("for every command:")[0]
                self.assertEqual(self.documented(self.sections[command]), options_of(text))

    # So are the options that all commands have.
    def test_global_options(self):
        text = self.hvctl("help").stdout.split("for every command:")[1]
        self.assertEqual(self.documented(self.intro), options_of(text))
        self.assertIn("output", options_of(text))

    # The daemons' pages have the options that the daemons name themselves, and no other.
    def test_daemons(self):
        for page, program in (("hv.8", util.HV), ("hvd.8", util.HVD)):
            with self.subTest(page=page):
                done = subprocess.run([program, "--help"], text=True, capture_output=True, env=self.env,
                                      timeout=util.LIMIT)
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(os.path.join(MAN, page), encoding="utf-8") as f:
                    text = f.read()
                known = set(re.findall(r"--([a-z][\w-]*)", done.stdout)) - {"help", "version"}
                self.assertEqual(set(re.findall(r"^\.It Fl Fl ([\w-]+)", text, flags=re.M)), known)

    # The pages are well formed for the formatter, where there is one.
    def test_format(self):
        if not shutil.which("man") or not shutil.which("groff"):
            self.skipTest("no man")
        for page in ("hvctl.1", "hvd.8", "hv.8"):
            done = subprocess.run(["man", "--warnings", "-l", os.path.join(MAN, page)], text=True,
                                  capture_output=True, env=dict(self.env, LC_ALL="C.UTF-8", MANPAGER="cat"))
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)
            self.assertIn("Mayfly", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
