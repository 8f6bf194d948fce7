"""Lets every test import ``synthetic``, the maker of step traces."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "unit"))
