"""Trains the model. Data is made while training; a run goes on from its last checkpoint.

On a CPU several processes with one thread each share the parameters, as threads that wait for each other at every operator lose much
where other work runs. With CUDA there is one process.
"""
import argparse
import json
import os
import pathlib
import queue
import threading
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from dialogues import document
from model import Config, Model
from muon import Optimizer, share
from prose import Prose
from tokenizer import Tokenizer
from words import rng

WEIGHTS = dict(text=0.3, user=0.3, value=2.0, story=0.5)
# From this part of the run on: lengths of documents, and how often each.
CURRICULUM = [(0.0, ((256, 1.0),)), (0.25, ((256, 0.5), (512, 0.5))), (0.5, ((256, 0.4), (512, 0.3), (1024, 0.3))),
              (0.67, ((256, 0.3), (512, 0.3), (1024, 0.3), (2048, 0.1)))]


def length(step, progress):
    now = [c for at, c in CURRICULUM if progress >= at][-1]
    lengths, odds = zip(*now)
    return rng("length", step).choices(lengths, odds)[0]


def batch(tok, prose, seed, tokens, t):
    """(tokens, t)-sized documents: inputs, and the targets that count: where, what, weight."""
    rows = max(1, tokens // t)
    ids = torch.full((rows, t + 1), tok.pad)
    w = torch.zeros(rows, t + 1)
    for i in range(rows):
        r = rng(*seed, i)
        d, v = tok.document(r, document(r, prose, t), WEIGHTS)
        n = min(len(d), t + 1)
        ids[i, :n], w[i, :n] = torch.tensor(d[:n]), torch.tensor(v[:n])
    where = w[:, 1:].flatten().nonzero()[:, 0]
    return ids[:, :-1], where, ids[:, 1:].flatten()[where], w[:, 1:].flatten()[where]


@torch.no_grad()
def held_out_loss(model, tok, prose, device="cpu"):
    """Mean loss of what the assistant says, over a fixed set of dialogues that training never makes; also only of the values."""
    model.eval()
    total = n = value = m = 0.0
    for t, count in ((256, 12), (1024, 3)):
        x, where, y, w = (a.to(device) for a in batch(tok, prose, ("held out",), t * count, t))
        loss = F.cross_entropy(model(x, where), y, reduction="none")
        said, val = w >= WEIGHTS["story"], w == WEIGHTS["value"]
        total, n, value, m = total + loss[said].sum().item(), n + said.sum().item(), value + loss[val].sum().item(), m + val.sum().item()
    model.train()
    return total / n, value / m


def schedule(step, progress):
    """Warm-up, constant, then down to nothing in the last fifth."""
    return min(1.0, (step + 1) / 30, max(0.0, (1 - progress) / 0.2))


AHEAD = 5  # batches are made so many steps ahead


def work(rank, size, model, shared, barrier, a):
    torch.set_num_threads(1 if size > 1 else a.threads)
    device = a.device
    tok, prose, held = Tokenizer(a.data + "/tokenizer.json"), Prose(a.data + "/prose.json"), Prose(a.data + "/prose.json", True)
    model.train()
    parameters = list(model.named_parameters())
    for n, p in parameters:
        p.grad = shared["grads"][rank][n]
    opt = Optimizer(share(parameters, size)[rank], a.lr_muon, a.lr_adam)
    out = pathlib.Path(a.out)
    state = out / f"optimizer-{rank}of{size}.pt"
    if a.start and state.exists():
        d = torch.load(state)
        opt.state, opt.steps = d["state"], d["steps"]
    lengths = shared["lengths"]
    progress = lambda step: max(step / a.steps, (time.time() - a.began) / (60 * a.minutes) if a.minutes else 0.0)
    if rank == 0:
        for step in range(a.start, min(a.start + AHEAD, a.steps)):
            lengths[step] = length(step, progress(step))
    made = queue.Queue(AHEAD - 2)

    def feed():
        for step in range(a.start, a.steps):
            while not lengths[step]:  # the first process says it in time
                time.sleep(0.01)
            made.put(batch(tok, prose, ("train", a.seed, step, rank), a.tokens // size, int(lengths[step])))
    threading.Thread(target=feed, daemon=True).start()
    saved = time.time()
    sums, seen = [0.0, 0.0, 0.0, 0.0], a.seen
    mean = lambda n: sum(g[n] for g in shared["grads"]) / size
    for step in range(a.start, a.steps):
        x, where, y, w = (t.to(device) for t in made.get())
        for n, p in parameters:
            p.grad.zero_()
        loss = F.cross_entropy(model(x, where), y, reduction="none")
        ((loss * w).sum() / w.sum()).backward()
        values = w == WEIGHTS["value"]
        now = loss.detach()
        mine = torch.stack([now[w >= 0.5].sum(), (w >= 0.5).sum(), now[values].sum(), values.sum()])
        shared["sums"][rank] = mine
        if rank == 0:
            shared["progress"][0] = progress(step)
            if step + AHEAD < a.steps:
                lengths[step + AHEAD] = length(step + AHEAD, progress(step))
        if barrier:
            barrier.wait()
        rate = schedule(step, shared["progress"].item())
        last = step + 1 == a.steps or shared["progress"].item() >= 1
        opt.step(mean, rate)
        if barrier:
            barrier.wait()
        seen += x.numel() * size
        if rank == 0:
            for layer in model.blk:
                if hasattr(layer, "load"):  # the bias draws tokens to experts that had few
                    layer.exp_probs_b += 0.003 * torch.sign(layer.load.mean() - layer.load) * rate
                    shared["balance"][0] = layer.load.max() / layer.load.mean()
                    layer.load.zero_()
            s = shared["sums"].sum(0)
            sums = [0.9 * q + float(v) for q, v in zip(sums, s)]
            if step % 10 == 9 or last:
                held_loss = ("%.4f\t%.4f" % held_out_loss(model, tok, held, device)) if step % 100 == 99 or last else "\t"
                with open(out / "log.tsv", "a") as f:
                    f.write(f"{step + 1}\t{seen}\t{time.time() - a.began:.0f}\t{x.shape[1]}\t{sums[0] / sums[1]:.4f}\t{sums[2] / max(sums[3], 1):.4f}\t"
                            f"{held_loss}\t{shared['balance'][0]:.2f}\n")
        save = shared["save"]
        if rank == 0:
            save[0] = float(time.time() - saved > a.save_every or last)
        if barrier:
            barrier.wait()
        if save[0]:
            torch.save(dict(state=opt.state, steps=opt.steps), str(state) + ".new")
            os.replace(str(state) + ".new", state)
            if rank == 0:
                torch.save(dict(model=model.state_dict(), step=step + 1, seen=seen, seconds=time.time() - a.began), out / "model.pt.new")
                os.replace(out / "model.pt.new", out / "model.pt")
            saved = time.time()
        if barrier:
            barrier.wait()
        if last:
            return


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True, help="folder with prose.json and tokenizer.json")
    p.add_argument("--out", required=True, help="folder for checkpoints and the log")
    p.add_argument("--init", help="a GGUF file to take the weights from")
    p.add_argument("--steps", type=int, default=1800)
    p.add_argument("--minutes", type=float, help="end after so long at the latest; the schedule follows")
    p.add_argument("--tokens", type=int, default=2048, help="tokens a step")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--lr-muon", type=float, default=0.02)
    p.add_argument("--lr-adam", type=float, default=0.003)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--save-every", type=float, default=300, help="seconds between checkpoints")
    a = p.parse_args()
    a.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    model = Model(Config())
    a.start, a.seen, a.began = 0, 0, time.time()
    if (out / "model.pt").exists():
        d = torch.load(out / "model.pt", map_location="cpu")
        model.load_state_dict(d["model"])
        a.start, a.seen, a.began = d["step"], d["seen"], time.time() - d["seconds"]
    elif a.init:
        from export import load_gguf
        load_gguf(model, a.init)
    model.to(a.device)
    size = 1 if a.device == "cuda" else a.processes
    model.share_memory()
    grads = [{n: torch.zeros_like(q).share_memory_() for n, q in model.named_parameters()} for _ in range(size)]
    shared = dict(grads=grads, sums=torch.zeros(size, 4).share_memory_(), save=torch.zeros(1).share_memory_(), balance=torch.zeros(1).share_memory_(),
                  lengths=torch.zeros(a.steps, dtype=torch.int64).share_memory_(), progress=torch.zeros(1).share_memory_())
    (out / "args.json").write_text(json.dumps(vars(a), indent=1))
    if size == 1:
        return work(0, 1, model, shared, None, a)
    ctx = mp.get_context("spawn")
    barrier = ctx.Barrier(size)
    # The buffers (routing bias and load) are shared with the parameters.
    mp.spawn(work, (size, model, shared, barrier, a), nprocs=size)


if __name__ == "__main__":
    main()
