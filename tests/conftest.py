"""Lets every test import ``synthetic``, the maker of step traces."""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "unit"))


def pytest_collection_finish() -> None:
    """What is imported by now stays: no garbage collection of a test need look through it again."""
    gc.collect()
    gc.freeze()
