"""`python -m onekernel` is the command line."""

from __future__ import annotations

import sys

from onekernel.cli import main

if __name__ == "__main__":
    sys.exit(main())
