"""The two ways a run can go wrong. Both carry one sentence for a person: what, where, what to do."""

import os
import traceback


class UserError(Exception):
    """The user's mistake, found before anything was written: the command exits with 2."""


class RunError(Exception):
    """A failure while running: the command exits with 1 and names the last good checkpoint."""


FOREIGN = (Exception, SystemExit)
"""What somebody else's code may raise. Scripts call sys.exit where they should raise; a run does not end in silence."""


def origin(error: BaseException) -> str:
    """' at file.py:12', the innermost line that raised; nothing where the message itself says so (a SyntaxError)."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    known = frames and not isinstance(error, SyntaxError)
    return f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if known else ""


def failed_import(module: str, error: BaseException) -> UserError:
    """The sentence for a user's own module that fails while it is imported."""
    return UserError(f"importing '{module}' failed: {type(error).__name__}: {error}{origin(error)}")


def missing_extra(module: str, extra: str) -> UserError:
    """The sentence for an optional package that is not installed."""
    return UserError(f"the package '{module}' is not installed; install it with: pip install 'kumite[{extra}]'")


def nearest(name: str, known: list[str]) -> str:
    """'; did you mean 'x'?' for a misspelt name, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
