"""The exported file means the same everywhere: PyTorch, the numpy reference, llama.cpp and Kadence give the same logits.

    verify.py DATA F32.gguf F16.gguf Q8.gguf KADENCE [--reference k3_ref.py] [--oracle ORACLE]

Tokens are those of a dialogue. For each engine and file: the largest difference of a logit, and how often the most likely token is the same
where it leads by more than 2e-2. Kadence and the reference compute with the f16 weights exactly; llama.cpp rounds activations to f16 as well,
so that it may take another expert where two are nearly equal, and fail this check on another checkpoint. No row may differ by more than 1e-2.
The Q8_0 file may lose 1% in held-out loss.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

from dialogues import Dialogue
from export import load_gguf
from model import Config, Model
from prose import Prose
from tokenizer import Tokenizer
from train import held_out_loss
from words import rng


def main():
    p = argparse.ArgumentParser()
    for x in ("data", "f32", "f16", "q8", "kadence"):
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

    model = Model(Config()).eval()
    lists = ",".join(map(str, tokens))
    for file, path in (("f32", a.f32), ("f16", a.f16)):
        load_gguf(model, path)
        with torch.no_grad():
            want = model(torch.tensor([tokens]))[0].double().numpy()
        best = np.sort(want, 1)
        sure = best[:, -1] - best[:, -2] > 2e-2
        print(f"{file} file, {len(tokens)} tokens, against PyTorch:")
        with tempfile.TemporaryDirectory() as d:
            out = pathlib.Path(d) / "logits"
            runs = [("Kadence", [a.kadence, "logits", "-m", path, "--tokens", lists, "--out", out])]
            if a.reference:
                runs.append(("numpy", [sys.executable, a.reference, path, "--tokens", lists, "--out", str(out) + ".npz"]))
            if a.oracle:
                runs.append(("llama.cpp", [a.oracle, "logits", path, "--tokens", lists, "--out", out, "--ctk", "f32", "--fa", "off", "--no-repack"]))
            for name, command in runs:
                subprocess.run(command, check=True, capture_output=True)
                got = np.load(str(out) + ".npz")["logits"] if name == "numpy" else np.fromfile(out, dtype=np.float32).astype(float)
                errors = np.abs(got.reshape(-1, want.shape[1])[: len(want)] - want).max(1)
                same = got.reshape(-1, want.shape[1])[: len(want)].argmax(1) == want.argmax(1)
                beyond = (errors > 1e-2).sum()
                print(f"  {name:10s} largest difference {errors.max():.1e}, rows beyond 1e-2: {beyond}; same best token {same.mean():.1%}, "
                      f"{same[sure].mean():.1%} where it leads")
                if beyond or not same[sure].all():
                    failed.append(f"logits of {name}, {file} file")
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
