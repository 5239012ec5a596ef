"""The numbers that shape a net."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Net:
    """One net: sensors -> (memory) -> hidden layers -> head."""

    keys: tuple[str, ...] = ()
    """Observation entries this net reads (an asymmetric critic names privileged ones); empty = all."""
    encoder: str = "auto"
    """auto | mlp | d2rl | nature | impala | drq | conv1d | simba | simbav2, or module:Class; auto is nature and mlp."""
    width: int = 256
    """Units per hidden layer."""
    depth: int = 2
    """Hidden layers."""
    layers: tuple[int, ...] = ()
    """Sizes of the hidden layers one by one; replaces width and depth."""
    init: str = "uniform"
    """uniform (torch's own) | orthogonal (gain sqrt 2, zero biases)."""
    activation: str = "relu"
    """relu | tanh | elu | gelu | silu | mish | selu | leaky_relu | softplus | sigmoid."""
    norm: str = "none"
    """none | layer | rms, after each hidden linear layer; renorm (batch renormalisation), around all of them."""
    dropout: float = 0.0
    """Share of a hidden layer's units that are left out while learning."""
    bf16: bool = False
    """Encoder and hidden layers compute in bfloat16, on weights that stay float32; head and memory stay float32."""
    memory: str = "none"
    """none | lstm | gru | rnn."""
    memory_width: int = 256
    """Units of the recurrent state."""
    memory_layers: int = 1
    """Recurrent layers on top of each other."""
    memory_place: str = "before"
    """The memory sits before or after the hidden layers."""
