#!/bin/sh
# check_spills.sh OBJDUMP PRODUCT LEAST OBJECT...
# The inner loops of the products keep their accumulators in registers. In every innermost loop of an object with at least
# four instructions PRODUCT (an extended regular expression), no vector may move to or from the stack; and each object has a
# loop with LEAST of them, or the check would look at nothing. A compiler that spills loses a quarter of the speed silently.
set -eu
objdump=$1 product=$2 least=$3
shift 3
for object in "$@"; do
    "$objdump" -d --no-show-raw-insn "$object" | awk -v product="$product" -v least="$least" -v object="${object##*/}" '
        # Loops of the function that has been read: backward jumps, of which none lies inside another.
        function finish(    i, j, inner, at, n, moves) {
            for (i = 0; i < jumps; i++) {
                inner = 1
                for (j = 0; j < jumps; j++)
                    if (j != i && head[j] >= head[i] && tail[j] <= tail[i]) inner = 0
                if (!inner) continue
                n = moves = 0
                for (at = head[i]; at <= tail[i]; at++) {
                    n += text[at] ~ product
                    moves += text[at] ~ /^v/ && text[at] ~ /\(%rsp/ || frame && text[at] ~ /^v/ && text[at] ~ /-0x[0-9a-f]+\(%rbp/
                }
                if (n > most) most = n
                if (n >= 4 && moves) {
                    printf "%s: %s: a loop of %d products moves vectors on the stack %d times\n", object, name, n, moves
                    bad = 1
                }
            }
        }
        /^[0-9a-f]+ <.*>:$/ { finish(); name = $2; count = jumps = frame = 0; split("", place); next }
        /^ +[0-9a-f]+:\t/ {
            address = $1
            sub(/:$/, "", address)
            line = $0
            sub(/^ *[0-9a-f]+:\t/, "", line)
            text[count] = line
            place[address] = count
            if (line ~ /^mov +%rsp,%rbp/) frame = 1
            if (line ~ /^j/ && ($3 in place)) { head[jumps] = place[$3]; tail[jumps] = count; jumps++ }
            count++
        }
        END {
            finish()
            if (most < least) { printf "%s: the largest loop has %d products, not %d\n", object, most, least; bad = 1 }
            exit bad
        }'
done
