"""The Kimi K3 architecture in PyTorch. Parameters bear the names of the GGUF tensors."""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from kda import CHUNK, kda


@dataclasses.dataclass
class Config:
    layers: int = 5
    mla: tuple = (3, 4)
    width: int = 256
    heads: int = 4
    kda_dim: int = 64
    conv: int = 4
    q_rank: int = 256
    kv_rank: int = 256
    nope: int = 32
    shared_key: int = 32
    value: int = 64
    dense: int = 512
    experts: int = 16
    used: int = 2
    expert_width: int = 256
    latent: int = 128
    block: int = 2
    vocab: int = 4096
    eps: float = 1e-5
    beta: float = 4.0
    beta_linear: float = 25.0
    lower_bound: float = -5.0


class Situ(torch.autograd.Function):
    """beta tanh(g / beta) sigmoid(g) * beta_linear tanh(u / beta_linear)"""

    @staticmethod
    def forward(ctx, g, u, b, l):
        ctx.b, ctx.l = b, l
        t, s, w = torch.tanh(g / b), torch.sigmoid(g), torch.tanh(u / l)
        ctx.save_for_backward(t, s, w)
        return (t * s).mul_(w).mul_(b * l)

    @staticmethod
    def backward(ctx, d):
        t, s, w = ctx.saved_tensors
        dg = (1 - t * t).div_(ctx.b).addcmul_(t, 1 - s).mul_(s).mul_(w).mul_(d).mul_(ctx.b * ctx.l)
        du = (1 - w * w).mul_(t).mul_(s).mul_(d).mul_(ctx.b)
        return dg, du, None, None


def linear(n_in, n_out, gain=1.0, lead=()):
    return nn.Parameter(torch.randn(*lead, n_out, n_in) * (gain * n_in ** -0.5))


def rms(x, w, eps):
    return F.rms_norm(x, (x.shape[-1],), w, eps)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.c, self.i, self.is_mla = c, i, i in c.mla
        e, hd = c.width, c.heads * c.kda_dim
        ones, zeros = lambda n: nn.Parameter(torch.ones(n)), lambda n: nn.Parameter(torch.zeros(n))
        self.attn_norm, self.ffn_norm, self.attn_res_score, self.ffn_res_score = ones(e), ones(e), zeros(e), zeros(e)
        if self.is_mla:
            self.attn_q_a, self.attn_q_a_norm = linear(e, c.q_rank), ones(c.q_rank)
            self.attn_q_b = linear(c.q_rank, c.heads * (c.nope + c.shared_key))
            self.attn_kv_a_mqa, self.attn_kv_a_norm = linear(e, c.kv_rank + c.shared_key), ones(c.kv_rank)
            self.attn_k_b = nn.Parameter(torch.randn(c.heads * c.nope, c.kv_rank) * c.kv_rank ** -0.5)  # transposed in the file
            self.attn_v_b = linear(c.kv_rank, c.heads * c.value)
            self.attn_gate = linear(e, c.heads * c.value, 0.5)
            self.attn_output = linear(c.heads * c.value, e, 0.7)
        else:
            self.attn_q, self.attn_k, self.attn_v = linear(e, hd), linear(e, hd), linear(e, hd)
            # All heads but the first begin as copiers: what is asked for at a token (or at two, three of them) is what was stored one
            # token later when the same was read before. Without this, training takes long to find it.
            taps = torch.zeros(3, c.heads, c.kda_dim, c.conv)
            taps[..., -1] = 1.0
            for h in range(1, c.heads):
                n = min(h, c.conv - 1)
                taps[0, h], taps[1, h] = 0.0, 0.0
                taps[0, h, :, c.conv - n:], taps[1, h, :, c.conv - 1 - n:-1] = n ** -0.5, n ** -0.5
            self.ssm_conv1d = nn.Parameter(taps.flatten(0, 2) + 0.05 * torch.randn(3 * hd, c.conv))
            self.attn_k.data[c.kda_dim:] = self.attn_q.data[c.kda_dim:]
            self.ssm_f_a, self.ssm_f_b = linear(e, c.kda_dim), linear(c.kda_dim, hd, 0.5)
            self.ssm_dt, self.a_log = nn.Parameter(torch.empty(hd).uniform_(-9.0, -3.0)), zeros(c.heads)
            self.ssm_beta, self.ssm_g = linear(e, c.heads, 0.5), linear(e, hd, 0.5)
            self.ssm_norm, self.attn_output = ones(c.kda_dim), linear(hd, e, 0.7)
        if i == 0:
            self.ffn_gate, self.ffn_up, self.ffn_down = linear(e, c.dense), linear(e, c.dense), linear(c.dense, e, 0.7)
        else:
            x, f, z = c.experts, c.expert_width, c.latent
            self.ffn_gate_inp = linear(e, x)
            self.register_buffer("exp_probs_b", torch.zeros(x))
            self.register_buffer("load", torch.zeros(x), persistent=False)
            self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps = linear(z, f, 1, (x,)), linear(z, f, 1, (x,)), linear(f, z, 1, (x,))
            self.ffn_routed_down, self.ffn_routed_norm, self.ffn_routed_up = linear(e, z), ones(z), linear(z, e, 0.5)
            self.ffn_gate_shexp, self.ffn_up_shexp, self.ffn_down_shexp = linear(e, f), linear(e, f), linear(f, e, 0.7)

    def situ(self, g, u):
        return Situ.apply(g, u, self.c.beta, self.c.beta_linear)

    def kda(self, x):
        c = self.c
        b, t, _ = x.shape
        p = F.linear(x, torch.cat((self.attn_q, self.attn_k, self.attn_v)))
        p = F.pad(p, (0, 0, c.conv - 1, 0))
        s = p[:, c.conv - 1:] * self.ssm_conv1d[:, -1]
        for j in range(c.conv - 1):
            s = torch.addcmul(s, p[:, j:j + t], self.ssm_conv1d[:, j])
        q, k, v = F.silu(s).view(b, t, 3, c.heads, c.kda_dim).unbind(2)
        unit = lambda y: y * torch.rsqrt((y * y).sum(-1, keepdim=True) + c.eps)
        z = F.linear(F.linear(x, self.ssm_f_a), self.ssm_f_b, self.ssm_dt).view(b, t, c.heads, c.kda_dim)
        g = c.lower_bound * torch.sigmoid(self.a_log.exp()[:, None] * z)
        beta = torch.sigmoid(F.linear(x, self.ssm_beta))
        y = kda(unit(q), unit(k), v, g, beta)
        y = rms(y, self.ssm_norm, c.eps).reshape(b, t, -1) * torch.sigmoid(F.linear(x, self.ssm_g))
        return F.linear(y, self.attn_output)

    def mla(self, x):
        c = self.c
        b, t, _ = x.shape
        heads = lambda y, n: y.view(b, t, c.heads, n).transpose(1, 2)
        q = heads(F.linear(rms(F.linear(x, self.attn_q_a), self.attn_q_a_norm, c.eps), self.attn_q_b), c.nope + c.shared_key)
        latent, shared = F.linear(x, self.attn_kv_a_mqa).split((c.kv_rank, c.shared_key), -1)
        latent = rms(latent, self.attn_kv_a_norm, c.eps)
        k = heads(F.linear(latent, self.attn_k_b), c.nope)
        k = torch.cat((k, shared[:, None].expand(-1, c.heads, -1, -1)), -1)
        v = heads(F.linear(latent, self.attn_v_b), c.value)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, -1) * torch.sigmoid(F.linear(x, self.attn_gate))
        return F.linear(y, self.attn_output)

    def ffn(self, x):
        c = self.c
        if self.i == 0:
            return F.linear(self.situ(F.linear(x, self.ffn_gate), F.linear(x, self.ffn_up)), self.ffn_down)
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        p = torch.sigmoid(F.linear(x, self.ffn_gate_inp))
        top = (p.detach() + self.exp_probs_b).topk(c.used, -1).indices
        weight = p.gather(1, top)
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(6.1035e-5)
        order = top.flatten().argsort()
        count = torch.bincount(top.flatten(), minlength=c.experts)
        if self.training:
            self.load += count
        xin = F.linear(x, self.ffn_routed_down)[order // c.used]
        parts = []
        for xs, g, u, d in zip(xin.split(count.tolist()), self.ffn_gate_exps.unbind(), self.ffn_up_exps.unbind(), self.ffn_down_exps.unbind()):
            parts.append(F.linear(self.situ(F.linear(xs, g), F.linear(xs, u)), d))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        r = (torch.cat(parts)[back].view(-1, c.used, c.latent) * weight[..., None]).sum(1)
        r = F.linear(rms(r, self.ffn_routed_norm, c.eps), self.ffn_routed_up)
        r = r + F.linear(self.situ(F.linear(x, self.ffn_gate_shexp), F.linear(x, self.ffn_up_shexp)), self.ffn_down_shexp)
        return r.view(shape)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        # The head is the embedding, in training; the file has both. Its scale is in the last norm.
        self.token_embd = nn.Parameter(torch.randn(c.vocab, c.width) * 0.5)
        self.output_norm = nn.Parameter(torch.full((c.width,), 0.06))
        self.output_res_score = nn.Parameter(torch.zeros(c.width))
        self.blk = nn.ModuleList(Layer(c, i) for i in range(c.layers))

    def mix(self, bank, h, w):
        """Attention residuals: what of the bank and the stream is read. `bank` holds (entry, 1 / its length)."""
        inverse = lambda v: torch.rsqrt((v * v).mean(-1) + self.c.eps)
        if not bank:
            return h
        entries = bank + [(h, inverse(h))]
        p = torch.stack([(v @ w) * i for v, i in entries], -1).softmax(-1)
        out = p[..., :1] * entries[0][0]
        for j, (v, _) in enumerate(entries[1:], 1):
            out = torch.addcmul(out, p[..., j:j + 1], v)
        return out

    def forward(self, tokens, where=None):
        """Logits of tokens [b,t], or only of the positions `where` (into b * t)."""
        c, t = self.c, tokens.shape[1]
        tokens = F.pad(tokens, (0, -t % CHUNK))
        h, bank = self.token_embd[tokens], []
        for i, layer in enumerate(self.blk):
            a = self.mix(bank, h, layer.attn_res_score)
            if i % c.block == 0:
                bank.append((h, torch.rsqrt((h * h).mean(-1) + c.eps)))
            a = rms(a, layer.attn_norm, c.eps)
            y = layer.mla(a) if layer.is_mla else layer.kda(a)
            h = y if i % c.block == 0 else h + y
            f = self.mix(bank, h, layer.ffn_res_score)
            h = h + layer.ffn(rms(f, layer.ffn_norm, c.eps))
        h = self.mix(bank, h, self.output_res_score)[:, :t]
        if where is not None:
            h = h.reshape(-1, c.width)[where]
        return F.linear(rms(h, self.output_norm, c.eps), self.token_embd)
