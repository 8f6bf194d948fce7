"""How much memory a process of its own takes to open a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hangs import HANGS_AFTER_S

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
import chameleon_lab.formats.reading
from chameleon_lab.trace import Trace

def memory(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) * 1024

Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
trace = Trace.open(*sys.argv[1:])
print(memory("VmHWM") - before, sum(len(step.ops) for step in trace))
"""


def memory_use(*paths: Path) -> tuple[int, int]:
    """Bytes at the peak beyond what the process had before, and how many ops it found."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    taken, ops = map(int, done.stdout.split())
    return taken, ops
