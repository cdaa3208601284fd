"""Draws the loss curve and the recall by distance.

    chart.py LOG.tsv BIGRAM.json RECALL.json FOLDER
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "kadence", "svg.fonttype": "none"})
import matplotlib.pyplot as plt


def main():
    log, bigram, recall, folder = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text()), json.loads(pathlib.Path(sys.argv[3]).read_text()), pathlib.Path(sys.argv[4])
    rows = [line.rstrip("\n").split("\t") for line in open(log)]
    column = lambda i, of: [float(r[i]) for r in of]
    held = [r for r in rows if r[6]]
    plt.figure(figsize=(7, 4))
    tokens = lambda of: [x / 1e6 for x in column(1, of)]
    plt.plot(tokens(rows), column(4, rows), lw=1, label="training, all that the assistant says")
    plt.plot(tokens(rows), column(5, rows), lw=1, label="training, only values to remember")
    plt.plot(tokens(held), column(6, held), "o", ms=3, label="held out, all")
    plt.plot(tokens(held), column(7, held), "s", ms=3, label="held out, only values")
    plt.axhline(bigram["loss"], color="grey", ls="--", lw=1, label="bigram model, held out, all")
    plt.xlabel("tokens seen (millions)")
    plt.ylabel("loss (nats a token)")
    plt.ylim(0, 9)
    plt.legend()
    plt.grid(alpha=0.3)
    plt.savefig(folder / "loss.svg", bbox_inches="tight", metadata={"Date": None})
    plt.figure(figsize=(6, 3.5))
    names = list(recall)
    share = [100 * recall[k]["right"] / recall[k]["count"] for k in names]
    bars = plt.bar([f"{int(k):,}" for k in names], share, color="#4477aa")
    plt.bar_label(bars, [f"{x:.0f}%" for x in share])
    plt.ylim(0, 105)
    plt.xlabel("tokens between the fact and the question")
    plt.ylabel("right values (%)")
    plt.savefig(folder / "recall.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
