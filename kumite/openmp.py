"""How long torch's waiting threads spin before they sleep.

GNU's OpenMP reads that from the environment once, when torch is loaded. Its own choice is so long that two processes on
the same cores slow each other tenfold; a thousand turns cost a process that is alone next to nothing. Whoever imports
kumite imports this first.
"""

from __future__ import annotations

import os
import sys

BOUNDED = "torch" not in sys.modules
if BOUNDED and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
