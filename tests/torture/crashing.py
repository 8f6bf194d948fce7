"""A part of the torture whose cases end in every bad way, for the tests of what runs them."""

import os
import signal
import sys
import time

from torture.outcome import Outcome


def cases(options):
    return ["good", "segfault", "hangs", "raises", "leaves", "prints", "good again"]


def check(case, options):
    outcome = Outcome(case, tried=1)
    match case:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hangs":
            time.sleep(1000)
        case "raises":
            raise ZeroDivisionError("here")
        case "leaves":
            os._exit(9)
        case "prints":
            print('{"not": "an answer"}')
            sys.stdout.flush()
            os.system("echo nor this")
            outcome.wrong.append("what the case says")
    return outcome
