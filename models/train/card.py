"""Writes the numbers of a run into the model card, between its marks.

    card.py WORK LOG.tsv README.md
"""
import json
import pathlib
import sys


def main():
    work, log, card = map(pathlib.Path, sys.argv[1:])
    read = lambda n: json.loads((work / n).read_text())
    recall, bigram, stories = read("recall.json"), read("bigram.json"), read("stories.json")
    last = [line.rstrip("\n").split("\t") for line in log.read_text().splitlines()][-1]
    held = [r for r in (line.rstrip("\n").split("\t") for line in log.read_text().splitlines()) if r[6]][-1]
    out = ["## Numbers", "",
           f"Training: {int(last[0]):,} steps, {int(last[1]) / 1e6:.2f} million tokens, {float(last[2]) / 60:.0f} minutes on two CPU cores shared with other work.", "",
           "![Loss by tokens seen](loss.svg)", "",
           "| held-out loss (nats a token, what the assistant says) | |", "|---|---|", f"| this model | {float(held[6]):.3f} |",
           f"| this model, only the values to remember | {float(held[7]):.3f} |", f"| bigram model, {bigram['tokens'] / 1e6:.1f} million tokens | {bigram['loss']:.3f} |", "",
           "The exported files, checked by `train/verify.py`:", "", "```", (work / "verify.txt").read_text().strip(), "```", "",
           "## Recall by distance", "",
           "One fact, told and asked for in wordings that training never shows (facts with a verb, as \"I live in\", and values of small sets, as colours, are as in training; names, places, numbers and titles are not); then small talk, sums, definitions, stories, passages and",
           "other facts (also questions about these); then the question. Greedy, through `kadence generate`; right is the whole value.",
           "The dialogues were not blind: after a look at interim answers, wordings were added to training, some of them close to the held-out ones. Take the figures as slightly high.", "",
           "| tokens between fact and question | dialogues | right |", "|---:|---:|---:|"]
    out += [f"| {int(d):,} | {x['count']} | {x['right'] / x['count']:.1%} |" for d, x in recall.items()]
    out += ["", "![Recall by distance](recall.svg)", "", "Some of the wrong answers, the first of each distance:", ""]
    out += [f"- {int(d):,} tokens: \"{w['asked']}\" should be \"{w['value']}\", was \"{w['answer'].strip()}\"" for d, x in recall.items() for w in x["wrong"][:3]]
    out += ["", "## Samples", "", "`kadence generate -p \"Tell me a story about a fox.\" -n 100 --seed N`, not picked:", ""]
    out += [f"{i}. {' '.join(s.split())}" for i, s in enumerate(stories, 1)]
    text = card.read_text()
    before, after = text.split("<!-- numbers -->")[0], text.split("<!-- end of numbers -->")[1]
    card.write_text(before + "<!-- numbers -->\n" + "\n".join(out) + "\n<!-- end of numbers -->" + after)


if __name__ == "__main__":
    main()
