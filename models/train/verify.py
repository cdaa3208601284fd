"""The exported file means the same everywhere: PyTorch, the numpy reference, llama.cpp and Kadence give the same logits.

    verify.py CHECKPOINT DATA F16.gguf Q8.gguf KADENCE [--reference k3_ref.py] [--oracle ORACLE]

Tokens are those of a dialogue. The logits of all engines must agree within 1e-2 (relative to nothing: logits are about 10 large) and the
most likely token be the same everywhere where it leads by more than 2e-2. The Q8_0 file may lose 1% in held-out loss.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

from dialogues import Dialogue
from export import load_checkpoint, load_gguf
from model import Config, Model
from prose import Prose
from tokenizer import Tokenizer
from train import held_out_loss
from words import rng


def main():
    p = argparse.ArgumentParser()
    for x in ("checkpoint", "data", "f16", "q8", "kadence"):
        p.add_argument(x)
    p.add_argument("--reference", help="path of the numpy reference, k3_ref.py")
    p.add_argument("--oracle", help="path of a program that runs llama.cpp")
    a = p.parse_args()
    tok, prose = Tokenizer(a.data + "/tokenizer.json"), Prose(a.data + "/prose.json", True)
    failed = []

    # The text must be the same tokens first.
    turns = Dialogue(rng("verify"), prose).grow(300).turns
    tokens = tok.prompt(turns)
    for _, text in turns + [("", "Caf\u00e9 na\u00efve, 12345.6 it's HTTPServer\n\n  x"), ("", prose.passage(rng(1), 30))]:
        text = text.replace("\x01", "").replace("\x02", "")
        got = subprocess.run([a.kadence, "tokenize", "-m", a.f16, "-"], input=text, capture_output=True, text=True, check=True).stdout
        if [int(i) for i in got.strip().split(",")] != tok.encode(text):
            failed.append(f"tokens of {text[:50]!r}")

    # As llama.cpp and Kadence read it: the weights of the f16 file.
    model = Model(Config()).eval()
    load_gguf(model, a.f16)
    with torch.no_grad():
        want = model(torch.tensor([tokens]))[0].double().numpy()
        exact = load_checkpoint(a.checkpoint)(torch.tensor([tokens]))[0].double().numpy()
    print(f"{len(tokens)} tokens, logits of size {want.std():.2f} (mean square); before rounding to f16 they differ by {np.abs(want - exact).max():.1e}")
    lists = ",".join(map(str, tokens))
    with tempfile.TemporaryDirectory() as d:
        out = pathlib.Path(d) / "logits"
        runs = [("Kadence", [a.kadence, "logits", "-m", a.f16, "--tokens", lists, "--out", out])]
        if a.reference:
            runs.append(("numpy", [sys.executable, a.reference, a.f16, "--tokens", lists, "--out", str(out) + ".npz"]))
        if a.oracle:
            runs.append(("llama.cpp", [a.oracle, "logits", a.f16, "--tokens", lists, "--out", out]))
        for name, command in runs:
            subprocess.run(command, check=True, capture_output=True)
            got = np.load(str(out) + ".npz")["logits"] if name == "numpy" else np.fromfile(out, dtype=np.float32).astype(float)
            got = got.reshape(-1, want.shape[1])[: len(want)]
            error = np.abs(got - want).max()
            best = np.sort(want, 1)
            sure = best[:, -1] - best[:, -2] > 2e-2
            same = (got.argmax(1) == want.argmax(1))
            print(f"{name:10s} largest difference {error:.1e}; same best token {same.mean():.1%}, {same[sure].mean():.1%} where it leads by 0.02")
            if error > 1e-2 or not same[sure].all():
                failed.append(f"logits of {name}")
    losses = {}
    for name, path in (("f16", a.f16), ("q8_0", a.q8)):
        load_gguf(model, path)
        losses[name] = held_out_loss(model, tok, prose)[0]
    print(f"held-out loss: f16 {losses['f16']:.4f}, q8_0 {losses['q8_0']:.4f} ({losses['q8_0'] / losses['f16'] - 1:+.2%})")
    if losses["q8_0"] > 1.01 * losses["f16"]:
        failed.append("loss of the Q8_0 file")
    if failed:
        sys.exit("failed: " + "; ".join(failed))
    print("all agree")


if __name__ == "__main__":
    main()
