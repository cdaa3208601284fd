"""Kimi Delta Attention for training: the chunkwise form, with its own backward passes where autograd would be slow.

For a chunk of n tokens with decays G (sums of the log gates), keys K, values V and write strengths b:
    (I + A) U = b (V - K e^G S),   A[t,s] = b_t sum_c k_t k_s e^(G_t - G_s) for s < t
    O = Q e^G S + P U,             P[t,s] = sum_c q_t k_s e^(G_t - G_s) for s <= t
    S' = e^G_n S + (K e^(G_n - G))^T U
The gate is bounded by -5 a token: with the middle row as reference no exponent passes 16 * 5 = 80, which f32 holds.
"""
import torch

CHUNK = 32


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular matrices."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        t = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, dt):
        t, = ctx.saved_tensors
        return -(t.mT @ dt @ t.mT).tril(-1)


class Scan(torch.autograd.Function):
    """The states before each chunk and the corrected values U of each: u [b,c,n,v], w [b,c,n,k], k [b,c,n,k], decay [b,c,k]."""

    @staticmethod
    def forward(ctx, u, w, k, decay):
        s = u.new_zeros(u.shape[0], w.shape[-1], u.shape[-1])
        states, out = [], []
        kt = k.mT
        for c in range(u.shape[1]):
            states.append(s)
            x = torch.baddbmm(u[:, c], w[:, c], s, alpha=-1)
            out.append(x)
            s = torch.baddbmm(decay[:, c, :, None] * s, kt[:, c], x)
        states, out = torch.stack(states, 1), torch.stack(out, 1)
        ctx.save_for_backward(w, k, decay, states, out)
        return states, out

    @staticmethod
    def backward(ctx, dstates, dout):
        w, k, decay, states, out = ctx.saved_tensors
        ds = torch.zeros_like(dstates[:, 0])
        dus, dnext = [], []
        wt = w.mT
        for c in reversed(range(w.shape[1])):
            dnext.append(ds)
            du = torch.baddbmm(dout[:, c], k[:, c], ds)
            dus.append(du)
            ds = torch.baddbmm(dstates[:, c].addcmul(decay[:, c, :, None], ds), wt[:, c], du, alpha=-1)
        du, dnext = torch.stack(dus[::-1], 1), torch.stack(dnext[::-1], 1)
        return du, -(du @ states.mT), out @ dnext.mT, (dnext * states).sum(-1)


def kda(q, k, v, g, beta):
    """q, k, g [b,t,h,d] (q and k of length one), v [b,t,h,d], beta [b,t,h]; t a multiple of CHUNK. Gives [b,t,h,d]."""
    b, t, h, d = q.shape
    n, c = CHUNK, t // CHUNK
    split = lambda x: x.reshape(b, c, n, h, -1).permute(0, 3, 1, 2, 4).reshape(b * h, c, n, -1)
    q, k, v, g, beta = split(q), split(k), split(v), split(g).cumsum(2), split(beta)
    middle = g[:, :, n // 2, None]
    left, right = (g - middle).exp(), (middle - g).exp()
    kr = (k * right).mT
    # Above the diagonal exponents add up instead of cancelling: these elements may be infinite, and have to go before
    # anything is multiplied with them, or their gradients are 0 times infinity.
    a = beta * ((k * left) @ kr).tril(-1)
    p = ((q * left) @ kr).tril()
    e = g.exp()
    inverse = UnitLowerInverse.apply(a)
    last = g[:, :, -1]
    states, u = Scan.apply(inverse @ (beta * v), inverse @ (beta * (k * e)), k * (last[:, :, None] - g).exp(), last.exp())
    o = (q * e) @ states + p @ u
    return o.reshape(b, h, c, n, d).permute(0, 2, 3, 1, 4).reshape(b, t, h, d) * d ** -0.5


def recurrent(q, k, v, g, beta):
    """The same, token by token: for checks."""
    b, t, h, d = q.shape
    s, out = q.new_zeros(b, h, d, d), []
    for i in range(t):
        s = s * g[:, i].exp()[..., None]
        u = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhk,bhkv->bhv", k[:, i], s))
        s = s + k[:, i, :, :, None] * u[:, :, None]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, i], s) * d ** -0.5)
    return torch.stack(out, 1)


if __name__ == "__main__":
    torch.manual_seed(0)
    for gate in (0.1, 5.0):
        x = [torch.randn(2, 96, 2, 16, dtype=torch.float64, requires_grad=True) for _ in range(4)]
        z = torch.randn(2, 96, 2, dtype=torch.float64, requires_grad=True)
        unit = lambda y: y / y.norm(dim=-1, keepdim=True)
        args = lambda: (unit(x[0]), unit(x[1]), x[2], -gate * x[3].sigmoid(), z.sigmoid())
        weight = torch.randn(2, 96, 2, 16, dtype=torch.float64)
        one, two = kda(*args()), recurrent(*args())
        g1 = torch.autograd.grad((one * weight).sum(), x + [z])
        g2 = torch.autograd.grad((two * weight).sum(), x + [z])
        print(gate, (one - two).abs().max().item(), max((i - j).abs().max().item() for i, j in zip(g1, g2)))
