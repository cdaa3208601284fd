"""Byte-level BPE with the kimi-k2 pre-tokenizer, and K3's chat format.

    tokenizer.py train PROSE.json OUT.json
"""
import collections
import heapq
import json
import pathlib
import sys

import regex
from tokenizers import Regex, Tokenizer as Fast, decoders, models, pre_tokenizers

SIZE = 4096
SPECIAL = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[start_header_id]", "[end_header_id]",
           "[EOT]", "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "[UNK]", "[PAD]"]
UP, LO = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LO + "+" + SHORT, r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LO + "*" + SHORT,
                    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PIECES = regex.compile(PATTERN, regex.V1)


def byte_alphabet():
    """GPT-2's letters for the 256 bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters, n = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + n)
            n += 1
    return letters


def train(texts, size):
    """The most frequent pairs, merged one after the other. Digits are joined to pairs at most, so that numbers are spelled from few
    well-known tokens."""
    letters = byte_alphabet()
    count = collections.Counter(p for t in texts for p in PIECES.findall(t))
    words = [[[letters[b] for b in w.encode()], c] for w, c in count.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, c) in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += c
            where[p].add(i)
    tokens = [letters[b] for b in range(256)]
    known = set(tokens)
    heap = [(-c, p) for p, c in pairs.items()]
    heapq.heapify(heap)
    while len(tokens) < size:
        c, p = heapq.heappop(heap)
        if pairs[p] != -c:
            if pairs[p] > 0:
                heapq.heappush(heap, (-pairs[p], p))
            continue
        new = p[0] + p[1]
        if new.isdigit() and len(new) > 2:
            continue
        if new not in known:
            known.add(new)
            tokens.append(new)
        touched = set()
        for i in list(where.pop(p)):
            w, c = words[i]
            for q in zip(w, w[1:]):
                pairs[q] -= c
            out, k = [], 0
            while k < len(w):
                if k + 1 < len(w) and (w[k], w[k + 1]) == p:
                    out.append(new)
                    k += 2
                else:
                    out.append(w[k])
                    k += 1
            words[i][0] = out
            for q in zip(out, out[1:]):
                pairs[q] += c
                where[q].add(i)
                touched.add(q)
        pairs.pop(p, None)
        for q in touched:
            heapq.heappush(heap, (-pairs[q], q))
    return tokens


class Tokenizer:
    """Encodes as Kadence and llama.cpp do. `tokens` are the ordinary ones; K3's markers follow."""

    def __init__(self, path):
        self.ordinary = json.loads(pathlib.Path(path).read_text())
        self.tokens = self.ordinary + SPECIAL
        self.id = {t: i for i, t in enumerate(self.tokens)}
        # Every way to make a token of two others, lowest token first: then the rule "lowest id of the result" and the rule
        # "lowest rank of the merge" are one.
        self.merges = [(t[:k], t[k:]) for t in self.ordinary for k in range(1, len(t)) if t[:k] in self.id and t[k:] in self.id]
        self.fast = Fast(models.BPE(vocab={t: i for i, t in enumerate(self.ordinary)}, merges=self.merges))
        self.fast.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        self.fast.decoder = decoders.ByteLevel()
        i = self.id
        self.open, self.close, self.sep, self.end, self.pad = i["<|open|>"], i["<|close|>"], i["<|sep|>"], i["<|end_of_msg|>"], i["[PAD]"]
        e = lambda s: self.fast.encode(s).ids
        self.message_close = [self.close, *e("message"), self.sep, self.end]
        self.head = {r: [self.open, *e(f'message role="{r}"'), self.sep] for r in ("user", "system", "assistant")}
        self.response = [self.open, *e("response"), self.sep]
        self.response_close = [self.close, *e("response"), self.sep]

    def encode(self, text):
        return self.fast.encode(text).ids

    def decode(self, ids):
        return self.fast.decode([i for i in ids if i < len(self.ordinary)], skip_special_tokens=False)

    def prompt(self, turns):
        """A conversation with the beginning of the assistant's answer; thinking is off."""
        out = []
        for role, text in turns:
            body = self.encode(text.replace("\x01", "").replace("\x02", ""))
            out += self.head[role] + (self.response + body + self.response_close if role == "assistant" else body) + self.message_close
        return out + self.head["assistant"] + self.response

    def document(self, r, turns, weights):
        """(ids, weight of each id as a target). Of what the user says only a sample of the tokens counts, as it is of little use."""
        ids, w = [], []

        def add(new, weight):
            ids.extend(new)
            w.extend([weight] * len(new) if isinstance(weight, float) else weight)

        for role, text in turns:
            if role == "text":
                body = self.encode(text)
                add(body, [weights["text"]] * len(body))
                continue
            add(self.head[role], 0.0)
            if role != "assistant":
                body = self.encode(text)
                add(body, [weights["user"] if r.random() < 0.2 else 0.0 for _ in body])
                add(self.message_close, 0.0)
                continue
            add(self.response, 0.0)
            plain, spans, at = [], [], 0
            for part in regex.split("([\x01\x02])", text):
                if part == "\x01":
                    start = at
                elif part == "\x02":
                    spans.append((start, at + 1))  # that it ends is a part of knowing it
                else:
                    plain.append(part)
                    at += len(part)
            e = self.fast.encode("".join(plain))
            base = weights["story"] if len(plain[0]) > 200 else 1.0
            add(e.ids, [weights["value"] if any(a < y and x < b for a, b in spans) else base for x, y in e.offsets])
            add([self.close], 0.5)
            add(self.response_close[1:] + self.message_close, [0.0 if r.random() < 0.9 else 1.0] * (len(self.response_close) - 1 + len(self.message_close)))
        return ids, w


def main():
    from dialogues import document
    from prose import Prose
    from words import rng
    prose = Prose(sys.argv[2])
    r = rng("tokenizer")
    texts = [t.replace("\x01", "").replace("\x02", "") for i in range(6000) for _, t in document(rng("tokenizer", i), prose, 512)]
    texts += [prose.passage(r, 8) for _ in range(3000)]
    texts += ['message role="user"', 'message role="assistant"', 'message role="system"', "response", "think", "tools", "call", "argument"] * 3000
    tokens = train(texts, SIZE - len(SPECIAL))
    pathlib.Path(sys.argv[3]).write_text(json.dumps(tokens))
    t = Tokenizer(sys.argv[3])
    print(len(t.tokens), "tokens;", sum(map(len, texts)) / sum(len(t.encode(x)) for x in texts), "letters a token")


if __name__ == "__main__":
    main()
