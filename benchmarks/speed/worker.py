"""One process of a measurement: runs the cases named on its command line and prints a line of JSON for each.

    python worker.py '{"cases": ["act/ppo-cartpole"], "loops": [], "seconds": 0.5, "home": "/path/of/kumite"}'

`home` is where kumite has to come from; PYTHONPATH puts it there.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).parent))
import cases


def measured(case: cases.Case, seconds: float) -> dict[str, Any]:
    """Microseconds per call: the least, the median, and by the process's own clock; and the first calls apart."""
    start = time.perf_counter()
    call, units = case.make()
    made = time.perf_counter() - start
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    for _ in range(2):
        call()
    inner, spent = 1, 0.0
    while True:  # blocks of at least 5 ms: the clock's own cost does not matter
        start = time.perf_counter()
        for _ in range(inner):
            call()
        spent = time.perf_counter() - start
        if spent > 0.005 or inner >= 1 << 16:
            break
        inner *= 2
    walls, cpus = [], []
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    while len(walls) < 5 or time.perf_counter() - begin < seconds:
        c, w = time.process_time(), time.perf_counter()
        for _ in range(inner):
            call()
        walls.append((time.perf_counter() - w) / inner)
        cpus.append((time.process_time() - c) / inner)
    gc.enable()
    return {
        "least_us": 1e6 * min(walls),
        "median_us": 1e6 * median(walls),
        "cpu_us": 1e6 * min(cpus),
        "blocks": len(walls),
        "units": units,
        "first_s": first,
        "setup_s": made,
    }


def main() -> None:
    order = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    import kumite

    found = Path(kumite.__file__).parents[1].resolve()
    if found != Path(order["home"]).resolve():
        sys.exit(f"kumite comes from {found}, not from {order['home']}")
    known = {case.name: case for case in cases.all_cases()}
    for name in order["cases"]:
        try:
            say(case=name, **measured(known[name], order["seconds"]))
        except Exception as error:  # one case must not cost the others
            say(case=name, failed=f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
    for name in order["loops"]:
        try:
            say(loop=name, **cases.loop(name, order["loop_seconds"], order["threads"], order["compile"]))
        except Exception as error:
            say(loop=name, failed=f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
