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
        self.__dict__["learned"] = list(net.parameters())  # to look for them anew takes as long as a small step
        for i, (_, p) in enumerate(net.named_parameters()):
            self.register_buffer(f"m{i}", torch.zeros_like(p))
            self.register_buffer(f"v{i}", torch.zeros_like(p))
        # float32: a compiled graph (torch 2.13, CPU) silently loses in-place changes of 0-d float64 tensors
        self.register_buffer("t", torch.zeros(()))
        self.register_buffer("lr", torch.tensor(lr))
        self.register_buffer("coming", torch.zeros(2), persistent=False)  # it follows from t
        self.t: Tensor
        self.lr: Tensor
        self.coming: Tensor
        self.ready_()
        self.register_load_state_dict_post_hook(lambda adam, _: adam.ready_())

    def descend(self, loss_fn: Callable[[Any], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """One step on this net along `loss_fn(net) -> (loss, aux)`; every other net is a constant in it."""
        net: nn.Module = self.__dict__["net"]
        if torch.compiler.is_compiling():
            params = dict(net.named_parameters())
            wrapped = lambda p: self.learning(loss_fn, lambda *x: functional_call(net, p, x))
            grads, (loss, (aux, seen)) = grad_and_value(wrapped, has_aux=True)(params)
            self.step_(list(params.values()), [grads[name] for name in params])
            self.settle_(seen)
            return loss, aux
        learned: list[Tensor] = self.__dict__["learned"]
        for p in learned:
            p.requires_grad_(True)
        try:
            with torch.enable_grad():
                loss, (aux, seen) = self.learning(loss_fn, net)
            found = torch.autograd.grad(loss, learned, allow_unused=True)
        finally:
            for p in learned:
                p.requires_grad_(False)
        filled = [torch.zeros_like(p) if g is None else _as(g, p) for p, g in zip(learned, found, strict=True)]
        with torch.no_grad():
            self.step_(learned, filled)
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
        """After the step: weights back onto their surface, and the batch's statistics into the running ones."""
        for module in self.__dict__["projected"]:
            module.project_()
        for norm, statistics in zip(self.__dict__["norms"], seen, strict=True):
            if statistics is not None:
                norm.settle_(*statistics)

    def step_(self, params: list[Tensor], grads: list[Tensor]) -> None:
        m = [getattr(self, f"m{i}") for i in range(len(params))]
        v = [getattr(self, f"v{i}") for i in range(len(params))]
        self.t.add_(1)
        if torch.compiler.is_compiling():
            if self.clip:
                grads = list(torch._foreach_mul(grads, (self.clip / (_norm(grads) + 1e-6)).clamp(max=1.0)))
            self.traced_(params, grads, m, v)
        else:
            self.fused_(params, grads, m, v)

    def ready_(self) -> None:
        """Before the first step of a graph: what is left of the bias corrections, for step t + 1."""
        log1, log2 = (math.log(b) if b else -math.inf for b in self.betas)
        root = (-torch.expm1((self.t + 1) * log2)).sqrt()
        self.coming.copy_(torch.stack([root / -torch.expm1((self.t + 1) * log1), root]))

    def fused_(self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor]) -> None:
        """By torch's own kernel, in one pass over the numbers."""
        b1, b2 = self.betas
        too_long = ((_norm(grads) + 1e-6) / self.clip).clamp(min=1.0) if self.clip else None
        kernel = torch._fused_adamw_ if self.weight_decay else torch._fused_adam_
        kernel(
            params,
            grads,
            m,
            v,
            [],
            [self.t] * len(params),
            lr=self.lr,
            beta1=b1,
            beta2=b2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=too_long,  # it divides
        )

    def traced_(self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor]) -> None:
        """The same for the compiler. The step's scalars were left in a buffer by the step before: if they were formed
        here, the graph would form them anew for every few numbers, which took longer than all the rest.
        """
        b1, b2 = self.betas
        rate, eps = -self.lr * self.coming[0], self.eps * self.coming[1]
        for p, g, first, second in zip(params, grads, m, v, strict=True):
            first.lerp_(g, 1 - b1)
            second.mul_(b2).addcmul_(g, g, value=1 - b2)
            if self.weight_decay:
                p.mul_(1 - self.lr * self.weight_decay)
            p.add_(rate * (first / (second.sqrt() + eps)))
        self.ready_()


def _as(g: Tensor, p: Tensor) -> Tensor:
    """Convolutions on a GPU hand out gradients with channels last, which torch's kernel does not mix with weights."""
    return g if g.stride() == p.stride() or not g.is_cuda else torch.empty_like(p).copy_(g)


def _norm(grads: list[Tensor]) -> Tensor:
    if torch.compiler.is_compiling():  # _foreach_norm stays a call for each tensor there, sums become part of the graph
        return torch.stack([g.square().sum() for g in grads]).sum().sqrt()
    return torch.stack(torch._foreach_norm(grads)).norm()


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
