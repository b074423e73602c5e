"""`python -m reconcile`: see `reconcile.cli`."""

import sys

from reconcile.cli import main

if __name__ == "__main__":
    sys.exit(main())
