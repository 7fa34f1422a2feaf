"""Scripts are as narrow and as short as the rest of the code, and say what they are for."""

import os
import re
import unittest

LINES, COLUMNS = 500, 108


class Scripts(unittest.TestCase):
    def test_scripts_are_narrow_and_short(self):
        for place, _, names in os.walk(os.path.dirname(os.path.abspath(__file__))):
            for name in filter(lambda name: name.endswith(".py"), names):
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    text = file.read()
                lines = text.splitlines()
                self.assertLessEqual(len(lines), LINES, name)
                self.assertTrue(re.match('(#!.*\n)?"""', text), f"{name} says its role")
                wide = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
                self.assertEqual(wide, [], name)
