"""Where fresh copies of an environment come from, for evaluation beside training."""

from __future__ import annotations

import copy
from typing import Any

from kumite.errors import UserError


def source(env: Any) -> Any:
    """Something that makes new copies: ids and callables do; an Env object is made again from its spec or copied."""
    if isinstance(env, (str, type)) or (callable(env) and not hasattr(env, "step")):
        return env
    spec = getattr(env, "spec", None)
    if spec is not None and getattr(spec, "entry_point", None) is not None:
        import gymnasium

        return lambda: gymnasium.make(spec)
    if makers := getattr(env, "env_fns", None):  # gymnasium's vector environments remember what made them
        return makers[0]
    if hasattr(env, "single_action_space") or hasattr(env, "slots"):
        raise UserError(
            "a vector environment cannot be made again for evaluation; give its id or a callable, or --eval.every -1"
        )
    try:
        copy.deepcopy(env)
    except Exception:
        raise UserError(
            "this environment cannot be copied for evaluation; give a callable that makes it, or --eval.every -1"
        ) from None
    return lambda: copy.deepcopy(env)
