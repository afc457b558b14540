"""Runs the tests of the Python package pike-smb2, which find the server in PIKE_SERVER, and prints how each ended.

pike_tests.py [MODULE...]
"""

import os
import pkgutil
import sys
import unittest

import pike.test


class Outcomes(unittest.TestResult):
    """Prints a line for each test: its name, and `ok`, `skip`, `fail` or `error`."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "ok"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skip"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "fail"
        print(self.failures[-1][1], file=sys.stderr)

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = "error"
        print(self.errors[-1][1], file=sys.stderr)

    def stopTest(self, test):
        super().stopTest(test)
        print(test.id().removeprefix("pike.test."), self.outcome, flush=True)


def main():
    modules = sys.argv[1:] or [module.name for module in pkgutil.iter_modules(pike.test.__path__)]
    tests = unittest.defaultTestLoader.loadTestsFromNames([f"pike.test.{module}" for module in modules])
    tests.run(Outcomes())
    # A failed test can leave a thread or a connection behind.
    sys.stdout.flush()
    os._exit(0)


main()
