"""What the model can do, measured through Kadence.

    evaluate.py recall  KADENCE MODEL DATA OUT.json [--count 200] [--distances 50,200,1000,4000]
    evaluate.py stories KADENCE MODEL OUT.json
    evaluate.py bigram  DATA OUT.json
"""
import argparse
import collections
import concurrent.futures
import json
import math
import pathlib
import subprocess

from dialogues import document, recall
from prose import Prose
from tokenizer import Tokenizer
from train import WEIGHTS, batch
from words import rng


def render(turns):
    """A conversation in K3's chat format up to the beginning of the answer, as text; thinking is off."""
    message = lambda role, body: f'<|open|>message role="{role}"<|sep|>{body}<|close|>message<|sep|><|end_of_msg|>'
    answer = lambda t: f"<|open|>response<|sep|>{t}<|close|>response<|sep|>"
    clean = lambda t: t.replace("\x01", "").replace("\x02", "")
    return "".join(message(r, answer(clean(t)) if r == "assistant" else clean(t)) for r, t in turns) + \
        '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'


def ask(kadence, model, turns):
    """The greedy answer to a conversation."""
    r = subprocess.run([kadence, "generate", "-m", model, "--raw", "--special", "--temp", "0", "-n", "40", "--threads", "1", "--json", "-p", "-"],
                       input=render(turns), capture_output=True, text=True, check=True)
    d = json.loads(r.stdout)
    return d["text"].split("response")[0], d["prompt_tokens"]


def measure_recall(a):
    tok, prose = Tokenizer(a.data + "/tokenizer.json"), Prose(a.data + "/prose.json", True)
    count = lambda turns: len(tok.prompt(turns)) - 10  # less the beginning of the answer
    table = {}
    for distance in map(int, a.distances.split(",")):
        made = [recall(rng("recall", distance, i), prose, distance, count) for i in range(a.count)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            got = list(pool.map(lambda m: ask(a.kadence, a.model, m[0]), made))
        # The value has to be there as it was told, not as a part of a longer word or number.
        right = [said(v, text) for (_, v), (text, _) in zip(made, got)]
        wrong = [dict(asked=t[-1][1], value=v, answer=text) for (t, v), (text, _), ok in zip(made, got, right) if not ok]
        table[distance] = dict(count=a.count, right=sum(right), prompt_tokens=sum(n for _, n in got) / len(got), wrong=wrong[:10])
        print(f"{distance:5d} tokens: {sum(right)}/{a.count} right = {sum(right) / a.count:.1%}", flush=True)
        pathlib.Path(a.out).write_text(json.dumps(table, indent=1))


def said(value, text):
    at = text.find(value)
    while at >= 0:
        before, after = text[at - 1: at], text[at + len(value): at + len(value) + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        at = text.find(value, at + 1)
    return False


def tell_stories(a):
    out = []
    for seed in range(1, 11):
        r = subprocess.run([a.kadence, "generate", "-m", a.model, "-p", "Tell me a story about a fox.", "-n", "100", "--seed", str(seed), "--json"],
                           capture_output=True, text=True, check=True)
        out.append(json.loads(r.stdout)["text"])
        print(seed, out[-1], "\n")
    pathlib.Path(a.out).write_text(json.dumps(out, indent=1))


def bigram(a):
    """Held-out loss of a bigram model, mixed with unigrams, on the same targets as the model's."""
    tok, prose, held = Tokenizer(a.data + "/tokenizer.json"), Prose(a.data + "/prose.json"), Prose(a.data + "/prose.json", True)
    one, two, n = collections.Counter(), collections.Counter(), 0
    for i in range(6000):
        r = rng("bigram", i)
        ids, _ = tok.document(r, document(r, prose, 512), WEIGHTS)
        one.update(ids)
        two.update(zip(ids, ids[1:]))
        n += len(ids)
    pairs = []
    for t, count in ((256, 12), (1024, 3)):
        x, where, y, w = batch(tok, held, ("held out",), t * count, t)
        pairs += [(p, q) for p, q, v in zip(x.flatten()[where].tolist(), y.tolist(), w.tolist()) if v >= WEIGHTS["story"]]
    best = min((sum(-math.log(m * two[p, q] / max(one[p], 1) + (1 - m) * (one[q] + 0.1) / (n + 0.1 * len(tok.tokens))) for p, q in pairs) / len(pairs), m)
               for m in (0.5, 0.7, 0.8, 0.9, 0.95))
    print(f"bigram: loss {best[0]:.4f} over {len(pairs)} targets, from {n} tokens")
    pathlib.Path(a.out).write_text(json.dumps(dict(loss=best[0], tokens=n)))


def main():
    p = argparse.ArgumentParser()
    s = p.add_subparsers(required=True)
    for name, f, names in (("recall", measure_recall, "kadence model data out"), ("stories", tell_stories, "kadence model out"), ("bigram", bigram, "data out")):
        q = s.add_parser(name)
        for x in names.split():
            q.add_argument(x)
        if name == "recall":
            q.add_argument("--count", type=int, default=200)
            q.add_argument("--distances", default="50,200,1000,4000")
        q.set_defaults(run=f)
    a = p.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
