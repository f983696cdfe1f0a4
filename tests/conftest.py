"""The laboratory is tested with a book of its own, ``tests/fixture_book``, whatever book is installed.

Its distribution has the name of the shipped book, and so stands in its place, in the processes that tests start too.
"""

import os
import sys
from pathlib import Path

BOOK = str(Path(__file__).parent / "fixture_book")
sys.path.insert(0, BOOK)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [BOOK, os.environ.get("PYTHONPATH")]))
