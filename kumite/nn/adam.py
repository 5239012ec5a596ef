"""Adam that owns its gradients: nothing outside `descend` ever requires grad.

Its moments, step count and learning rate are buffers: checkpoints find them, the compiler traces them. A module that
must keep its parameters on some surface has a method `project_`, called after each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value


class Adam(nn.Module):
    def __init__(
        self,
        net: nn.Module,
        lr: float = 3e-4,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__()
        self.__dict__["net"] = net  # not a child: its parameters belong to the algorithm
        self.start_lr, self.eps, self.weight_decay, self.clip, self.betas = lr, eps, weight_decay, clip, betas
        self.__dict__["norms"] = [m for m in net.modules() if hasattr(m, "settle_")]  # with statistics of the batch
        self.__dict__["projected"] = [m for m in net.modules() if hasattr(m, "project_")]  # weights on a sphere
        net.requires_grad_(False)
        self.names = [name for name, _ in net.named_parameters()]
        for i, (_, p) in enumerate(net.named_parameters()):
            self.register_buffer(f"m{i}", torch.zeros_like(p))
            self.register_buffer(f"v{i}", torch.zeros_like(p))
        # float32: a compiled graph (torch 2.13, CPU) silently loses in-place changes of 0-d float64 tensors
        self.register_buffer("t", torch.zeros(()))
        self.register_buffer("lr", torch.tensor(lr))
        self.t: Tensor
        self.lr: Tensor

    def descend(self, loss_fn: Callable[[Any], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """One step on this net along `loss_fn(net) -> (loss, aux)`; every other net is a constant in it."""
        net: nn.Module = self.__dict__["net"]
        params = dict(net.named_parameters())
        if torch.compiler.is_compiling():
            wrapped = lambda p: self.learning(loss_fn, lambda *x: functional_call(net, p, x))
            grads, (loss, (aux, seen)) = grad_and_value(wrapped, has_aux=True)(params)
            self.step_(list(params.values()), [grads[name] for name in params])
            self.settle_(seen)
            return loss, aux
        net.requires_grad_(True)
        try:
            with torch.enable_grad():
                loss, (aux, seen) = self.learning(loss_fn, net)
            found = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        finally:
            net.requires_grad_(False)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), found, strict=True)]
        with torch.no_grad():
            self.step_(list(params.values()), filled)
            self.settle_(seen)
        return loss.detach(), _detach(aux)

    def learning(self, loss_fn: Callable[[Any], tuple[Tensor, Any]], net: Any) -> tuple[Tensor, tuple[Any, list[Any]]]:
        """The loss, its aux, and what the net's batch norms have seen of the batch."""
        norms = self.__dict__["norms"]
        for norm in norms:
            norm.learning = True
        try:
            loss, aux = loss_fn(net)
            return loss, (aux, [norm.seen for norm in norms])
        finally:
            for norm in norms:
                norm.learning, norm.seen = False, None

    def settle_(self, seen: list[Any]) -> None:
        for norm, statistics in zip(self.__dict__["norms"], seen, strict=True):
            if statistics is not None:
                norm.settle_(*statistics)

    def step_(self, params: list[Tensor], grads: list[Tensor]) -> None:
        m = [getattr(self, f"m{i}") for i in range(len(params))]
        v = [getattr(self, f"v{i}") for i in range(len(params))]
        b1, b2 = self.betas
        if self.clip:
            norm = torch.stack(torch._foreach_norm(grads)).norm()
            grads = list(torch._foreach_mul(grads, (self.clip / (norm + 1e-6)).clamp(max=1.0)))
        self.t.add_(1)
        torch._foreach_lerp_(m, grads, 1 - b1)
        torch._foreach_mul_(v, b2)
        torch._foreach_addcmul_(v, grads, grads, 1 - b2)
        denominator = torch._foreach_sqrt(v)
        torch._foreach_div_(denominator, (-torch.expm1(self.t * math.log(b2))).sqrt())
        torch._foreach_add_(denominator, self.eps)
        step = torch._foreach_div(m, denominator)
        share = torch.expm1(self.t * math.log(b1)) if b1 else -1.0  # expm1(t log b) = b^t - 1 < 0
        torch._foreach_mul_(step, self.lr / share)
        if self.weight_decay:
            torch._foreach_mul_(params, 1 - self.lr * self.weight_decay)
        torch._foreach_add_(params, step)
        for module in self.__dict__["projected"]:
            module.project_()


def _detach(aux: Any) -> Any:
    if isinstance(aux, Tensor):
        return aux.detach()
    if isinstance(aux, dict):
        return {k: _detach(v) for k, v in aux.items()}
    if isinstance(aux, tuple) and hasattr(aux, "_fields"):
        return type(aux)(*map(_detach, aux))
    if isinstance(aux, (tuple, list)):
        return type(aux)(map(_detach, aux))
    return aux


def polyak_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- target + tau (source - target); tau 1 copies. Buffers, such as running statistics, are copied."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
    for theirs, mine in zip(target.buffers(), source.buffers(), strict=True):
        theirs.copy_(mine)
