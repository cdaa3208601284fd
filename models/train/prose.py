"""Text written by people: Jane Austen's novels and WordNet's glosses, from Debian's packages.

    prose.py fetch FOLDER     downloads the two packages and unpacks what is used to FOLDER/prose.json
"""
import json
import pathlib
import re
import subprocess
import sys
import zlib

PACKAGES = ("r-cran-janeaustenr", "wordnet-base")


def unpack_rdb(data):
    """The objects of an R lazy-load database: each a big-endian length and a zlib stream."""
    out, at = [], 0
    while at + 4 < len(data):
        d = zlib.decompressobj()
        body = d.decompress(data[at + 4:])
        assert len(body) == int.from_bytes(data[at:at + 4], "big")
        out.append(body)
        at = len(data) - len(d.unused_data)
    return out


def strings(body):
    """The strings of a serialised R character vector (XDR): flags, length, bytes."""
    out, at = [], 14
    while at + 8 <= len(body):
        if body[at + 3] == 9:  # CHARSXP
            n = int.from_bytes(body[at + 4:at + 8], "big", signed=True)
            out.append(body[at + 8:at + 8 + max(n, 0)].decode("utf-8", "replace"))
            at += 8 + max(n, 0)
        else:
            at += 4
    return out


def sentences(lines):
    """Clean sentences of a novel, in paragraphs."""
    paragraphs, now = [], []
    for line in lines + [""]:
        if line.strip():
            now.append(line.strip())
        elif now:
            text = " ".join(now).replace("_", "").replace("--", " - ").replace("\u201c", '"').replace("\u201d", '"').replace("\u2019", "'")
            if len(text) > 60 and not re.match(r"(CHAPTER|VOLUME|Chapter|THE END)", text):
                paragraphs.append(re.findall(r".+?(?:[.!?]\"?)(?=\s|$)", re.sub(r"\s+", " ", text)) or [text])
            now = []
    return [[s.strip() for s in p] for p in paragraphs]


def glosses(path):
    """(word with its article, gloss) of WordNet's nouns, only plain words with short glosses; and the example sentences."""
    words, examples = [], []
    for name in ("data.noun", "data.verb", "data.adj"):
        for line in (path / name).read_text().splitlines():
            if line.startswith(" ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            word = head.split()[4]
            examples += [e for e in re.findall(r'"([^"]+)"', gloss) if 20 < len(e) < 90 and e.isascii()]
            gloss = re.sub(r"\s*\([^)]*\)\s*", " ", gloss.split('"')[0]).strip(" ;").split(";")[0]
            if name == "data.noun" and word.isalpha() and word.islower() and 12 < len(gloss) < 70 and gloss.isascii():
                words.append((("an " if word[0] in "aeiou" else "a ") + word, gloss))
    return words, examples


def fetch(folder):
    """Downloads, unpacks and cleans."""
    folder.mkdir(parents=True, exist_ok=True)
    for p in PACKAGES:
        subprocess.run(["apt-get", "download", p], cwd=folder, check=True)
        deb = next(folder.glob(p + "_*.deb"))
        subprocess.run(["dpkg", "-x", deb, folder / "x"], check=True)
    rdb = (folder / "x/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    novels = [p for body in unpack_rdb(rdb) for p in sentences(strings(body))]
    words, examples = glosses(folder / "x/usr/share/wordnet")
    (folder / "prose.json").write_text(json.dumps(dict(novels=novels, words=words, examples=examples)))
    print(len(novels), "paragraphs,", sum(len(s) for p in novels for s in p), "letters;", len(words), "glosses;", len(examples), "examples")


class Prose:
    """Passages and glosses. The last twentieth is held out for the evaluation."""

    def __init__(self, path, held_out=False):
        d = json.loads(pathlib.Path(path).read_text())
        def cut(x):
            k = len(x) * 19 // 20
            return x[k:] if held_out else x[:k]
        self.novels, self.words, self.examples = cut(d["novels"]), cut(d["words"]), cut(d["examples"])

    def gloss(self, r):
        return r.choice(self.words)

    def passage(self, r, sentences):
        if r.random() < 0.35 and sentences < 10:  # short sentences of today
            return " ".join(e[0].upper() + e[1:] + ("" if e[-1] in ".!?" else ".") for e in r.sample(self.examples, sentences))
        i = r.randrange(len(self.novels))
        out = []
        while len(out) < sentences:
            out += self.novels[i % len(self.novels)]
            i += 1
        return " ".join(out[:sentences])


if __name__ == "__main__":
    fetch(pathlib.Path(sys.argv[2]))
