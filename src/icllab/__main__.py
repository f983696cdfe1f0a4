"""``python -m icllab`` is ``icl``."""

import sys

from icllab.cli import main

if __name__ == "__main__":
    sys.exit(main())
