"""`python -m kumite` is the command `kumite`."""

import sys

from kumite.cli import main

if __name__ == "__main__":
    sys.argv[0] = "kumite"  # what a run's manifest shows
    sys.exit(main())
