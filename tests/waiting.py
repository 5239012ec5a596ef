"""Code that may not wait for a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, what synchronises with the device raises an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that it does not find all of it
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
