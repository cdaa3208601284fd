"""Muon for matrices, Adam for the rest. Parameters are shared between the processes; each updates its own part of them."""
import torch

# Four steps towards the nearest orthogonal matrix: singular values go to about one.
COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 4


def orthogonal(g):
    """g [n, rows, columns], each matrix on its own."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (1.01 * x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in COEFFICIENTS:
        y = x @ x.mT
        x = a * x + (b * y + c * (y @ y)) @ x
    return x if wide else x.mT


class Optimizer:
    """`parts` are (name, parameter) of this process; `grads` gives all processes' gradients of a name."""

    def __init__(self, parts, lr_muon=0.02, lr_adam=0.003):
        self.parts, self.lr_muon, self.lr_adam = parts, lr_muon, lr_adam
        self.state = {n: [torch.zeros_like(p) for _ in range(1 if self.is_muon(n, p) else 2)] for n, p in parts}
        self.steps = 0

    @staticmethod
    def is_muon(name, p):
        return p.ndim == 2 and not any(x in name for x in ("token_embd", "conv1d", "gate_inp", "ssm_beta"))

    @torch.no_grad()
    def step(self, grads, scale):
        self.steps += 1
        groups = {}
        for n, p in self.parts:
            g, s = grads(n), self.state[n]
            if self.is_muon(n, p):
                s[0].mul_(0.95).add_(g, alpha=0.05)
                groups.setdefault(tuple(p.shape), []).append((p, g * 0.05 + s[0] * 0.95))
                continue
            s[0].mul_(0.9).add_(g, alpha=0.1)
            s[1].mul_(0.98).addcmul_(g, g, value=0.02)
            lr = self.lr_adam * scale * (3 if "token_embd" in n else 1)
            update = s[0] / (1 - 0.9 ** self.steps) / ((s[1] / (1 - 0.98 ** self.steps)).sqrt_() + 1e-10)
            p.sub_(update, alpha=lr)
        for shape, members in groups.items():
            o = orthogonal(torch.stack([g for _, g in members]))
            factor = max(1.0, shape[0] / shape[1]) ** 0.5
            for (p, _), u in zip(members, o):
                p.mul_(1 - 0.01 * self.lr_muon * scale).sub_(u, alpha=self.lr_muon * scale * factor)


def share(parameters, processes):
    """Splits the parameters so that each process has about the same work; matrices of Muon cost more."""
    load, out = [0] * processes, [[] for _ in range(processes)]
    for n, p in sorted(parameters, key=lambda x: -x[1].numel()):
        i = min(range(processes), key=load.__getitem__)
        load[i] += p.numel() * (20 if Optimizer.is_muon(n, p) else 1)
        out[i].append((n, p))
    return out
