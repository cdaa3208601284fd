#!/usr/bin/env bash
# Side by side with llama.cpp on one machine, in one run: the two take turns, and each figure is the median of its rounds.
#
#   benches/versus-llama.sh MODEL.gguf...
#
# Needs the oracle, a command line on top of llama.cpp (ORACLE=path), and a release build of kadence.
# ROUNDS, PP, TG, DEPTH and THREADS change what is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${ORACLE:?give the path of the oracle: ORACLE=.../oracle benches/versus-llama.sh MODEL.gguf}"
rounds=${ROUNDS:-3} pp=${PP:-128,512} tg=${TG:-64} depth=${DEPTH:-0,4096} threads=${THREADS:-1,2}
[ $# -gt 0 ] || { echo "usage: ORACLE=path benches/versus-llama.sh MODEL.gguf..." >&2; exit 2; }
cargo build --release --quiet
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Lines of "test depth threads tokens/s".
ours() {
    target/release/kadence bench -m "$1" --pp "$pp" --tg "$tg" --depth "$depth" --threads "$2" --runs 1 |
        awk '/tokens\/s/ { print $1, $3, $4, $6 }'
}
theirs() {
    "$ORACLE" bench "$1" --p "$pp" --n "$tg" --d "$depth" --t "$2" --r 1 2>/dev/null |
        awk -F'|' '$2 ~ /(pp|tg)[0-9]/ { gsub(/ /, ""); print $2, $4, $3, $5 }'
}
for model in "$@"; do
    : >"$out/ours" && : >"$out/theirs"
    for _ in $(seq "$rounds"); do
        for t in ${threads//,/ }; do
            ours "$model" "$t" >>"$out/ours"
            theirs "$model" "$t" >>"$out/theirs"
        done
    done
    echo "**$(basename "$model" .gguf)**"
    echo
    echo "| test | depth | threads | llama.cpp, tokens/s | Kadence, tokens/s | ratio |"
    echo "|---|---|---|---|---|---|"
    awk '
        function median(key, list,    n, values, i, j, swap) {
            n = split(list[key], values, " ")
            for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++)
                if (values[j] + 0 < values[i] + 0) { swap = values[i]; values[i] = values[j]; values[j] = swap }
            return values[int((n + 1) / 2)]
        }
        { key = $1 " | " $2 " | " $3 }
        FNR == NR { if (!(key in mine)) order[++count] = key; mine[key] = mine[key] " " $4; next }
        { other[key] = other[key] " " $4 }
        END {
            for (i = 1; i <= count; i++) {
                a = median(order[i], other); b = median(order[i], mine)
                printf "| %s | %.1f | %.1f | %.2f |\n", order[i], a, b, (a > 0 ? b / a : 0)
            }
        }' "$out/ours" "$out/theirs"
    echo
done
