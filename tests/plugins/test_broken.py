"""Each plugin that is broken on purpose is caught, by the name of the rule that it breaks."""
import os
import sys
import unittest

import kit

PAIRS = [a.split("=") for a in sys.argv[1:]]
# A sanitizer build has no filter for system calls, and the thread sanitizer ends the process at a
# race before the kit can name it.
NOT_SANITIZED = {"no-system-calls"}
if kit.SANITIZED == "thread":
    NOT_SANITIZED.add("thread-safe")


class Broken(unittest.TestCase):
    def test_every_fault(self):
        pairs = [(n, r) for n, r in PAIRS if not (kit.SANITIZED and r in NOT_SANITIZED)]
        self.assertGreater(len(pairs), 40)

        def look(pair):
            return kit.check(os.path.join(kit.BROKEN, pair[0] + ".so"))

        wrong = []
        for (name, rule), (code, v) in zip(pairs, kit.in_parallel(look, pairs)):
            if (code, v["ok"], v["rule"]) != (1 if rule else 0, not rule, rule):
                wrong.append("%s: %s expected, found %s in %s: %s"
                             % (name, rule or "nothing", v["rule"], v["during"], v["text"]))
            elif rule and not (v["text"] and v["seed"] == 1):
                wrong.append(name + ": no sentence, or no seed")
        self.assertEqual(wrong, [])

    def test_the_seed_repeats_it(self):
        """The same seed finds the same, word for word and operation for operation."""
        for name in ("allocator_loses_freed", "teardown_hides_blocked"):
            path = os.path.join(kit.BROKEN, "broken_%s.so" % name)
            first, again = kit.check(path, 7)[1], kit.check(path, 7)[1]
            for key in ("rule", "during", "text", "operations", "rules"):
                self.assertEqual(first[key], again[key])

    def test_marks(self):
        """What came before the broken rule's finding is told apart from what was not come to."""
        v = kit.check(os.path.join(kit.BROKEN, "broken_allocator_small_metadata.so"))[1]
        marks = {r["name"]: r["mark"] for r in v["rules"]}
        self.assertEqual(marks["refuses-small-metadata"], "broken")
        self.assertEqual(marks["starts-empty"], "kept")
        self.assertEqual(marks["thread-safe"], "not-claimed")
        self.assertNotIn("no-skipped-entry", marks)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
