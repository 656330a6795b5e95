#!/usr/bin/env bash
# The tilelamp command from outside: what it prints, and its exit status.
#   commands.sh TILELAMP [DIRECTORY with *.safetensors]
set -u
tilelamp=$1
data=${2:-}
failures=0
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary" || exit 1
mkdir elsewhere
echo "leak:libfontconfig" >elsewhere/leaks # it keeps its fonts until the program ends
export LSAN_OPTIONS="suppressions=$PWD/elsewhere/leaks:print_suppressions=0"

failed() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}

# expect STATUS ARGUMENT...: runs the command into out and err. A failure is one line that begins with tilelamp:.
expect() {
    local status=$1 got
    shift
    "$tilelamp" "$@" >out 2>err
    got=$?
    [[ $got == "$status" ]] || failed "exit status $got, not $status: tilelamp $*: $(head -c 300 err)"
    if ((got == 0)); then
        [[ ! -s err ]] || failed "text on stderr: tilelamp $*: $(head -c 300 err)"
    else
        [[ $(wc -l <err) == 1 && $(<err) == "tilelamp: "*": "* ]] || failed "not one line: tilelamp $*: $(head -c 300 err)"
    fi
}

# has FILE TEXT...
has() {
    local file=$1 text
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$file" || failed "no '$text' in $file: $(head -c 300 "$file")"
    done
}

is_json() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" 2>/dev/null || failed "$1 is no JSON: $(head -c 300 "$1")"
}

small="hq2 hk1 q70 k130 d20 dv12 f16 causal"
numbers=("problem" "policy" "kernel" "ms" "gflops" "max_abs_error" "mean_abs_error" "rel_l2_error" "max_lse_error"
    "max_weight_l1_error" "max_certificate" "certificate_provider" "eps_high" "int8_share" "group" "tile" "cell" "level_share"
    "low" "x3" "high" "recomputed_share" "counters" "max_error_to_bound")

# ---- usage

expect 0 --help
expect 0 --version
for command in info run compare mask bench; do
    expect 0 $command --help
    has out "Usage: tilelamp $command"
    # argp breaks long lines, and goes on in the first column: wrong in examples and in tables
    ! sed -n '/^Example\|^PROBLEM/,$p' out | grep -E '^[a-z-]|.{80}' || failed "$command --help breaks lines"
    expect 2 $command --nonsense
    expect 2 $command --threads 0
    expect 2 $command --threads
    expect 2 $command --seed=-1
    expect 2 $command --device tpu
done
expect 2
expect 2 nonsense
expect 3 cache inspect file

# ---- bench

printf '%s\n' '# tiny' 'hq2 hk1 q70 k130 d20 f16 causal' '    high pv=f32  # of them' '    band:0.5' 'hq2 q64 k64 d16 f32' \
    '    int8 pv=f32' '    int8 state=fp16 pv=int8' >elsewhere/shapes
printf '%s\n' 'hq2 q256 k256 d16 f16' '    high pv=f32' '    int8 pv=f32' >elsewhere/quant
results=('"machine"' '"peak"' '"results"' '"shape"' '"mode"' '"kernel"' '"threads"' '"ms_min"' '"ms_median"' '"gflops"'
    '"roofline_fraction"' '"peers"')

expect 2 bench nonsense
expect 2 bench peak lamp
expect 2 bench peak --shapes elsewhere/shapes
expect 2 bench quant --peers=elsewhere/shapes
expect 2 bench --shapes missing
expect 2 bench --peers=missing --shapes elsewhere/shapes
expect 2 bench --peers=elsewhere --shapes elsewhere/shapes # a folder
printf 'hq1 q16 d16\n  high\n\0hq9 hk2\n' >elsewhere/nul
expect 2 bench --shapes elsewhere/nul
# A wrong policy is named and left out, whoever finds it: we, or the library for that problem. All of them wrong is an error.
printf 'q4 d4 f32\n  high\n  int9\n  high tile=17x64\n' >elsewhere/wrong
expect 0 bench --quick --shapes elsewhere/wrong
has out "not run: int9: elsewhere/wrong:3: policy: " "not run: high tile=17x64: " "high  "
expect 0 bench --quick --json --shapes elsewhere/wrong
is_json out
has out '"mode": "int9"' '"reason": "elsewhere/wrong:3: policy: ' '"mode": "high"'
printf 'q4 d4\n  int9\n  int7\n' >elsewhere/wrong
expect 2 bench --shapes elsewhere/wrong
has err "tilelamp: elsewhere/wrong:2: policy: "
printf 'q4 d4\n  high tile=17x64\n' >elsewhere/wrong
expect 2 bench --quick --shapes elsewhere/wrong
has err "tilelamp: policy.block_m"
expect 2 bench decode --shapes err
# A wrong shape ends it before anything is measured, and says where it stands.
printf 'q4 d4 f32\n  high\nq4 d4 f32 threads:1\n  high\n' >elsewhere/wrong
expect 2 bench --quick --shapes elsewhere/wrong
has err "tilelamp: elsewhere/wrong:3: problem: threads: "
printf 'q256 d16 f32\n  high\nq256 d16 f32 causal\n  high\n' >elsewhere/wrong
expect 2 bench quant --quick --shapes elsewhere/wrong
has err "tilelamp: elsewhere/wrong:3: "
expect 3 bench tune
expect 2 bench tune --quick
for what in peak lamp; do
    expect 0 bench $what --quick --json --threads 1
    is_json out
    has out "${results[@]}"
done
has out '"fma_gflops"'
expect 0 bench peak --quick
has out fma softmax read copy
for what in prefill decode; do
    expect 0 bench $what --quick --json --threads 2 --shapes elsewhere/shapes
    is_json out
    has out "${results[@]}" '"skipped"' '"ms_max"' '"rounds"' '"passed": true' '"max_error_to_bound"' \
        '"shape": "hq2 hk1 q70 k130 d20 f16 causal"' '"mode": "band:0.5"' '"softmax_gelems"' '"read_gbs"'
done
if command -v python3 >/dev/null && [[ -n $data ]]; then
    python3 "$data/../../bench/markdown.py" out >elsewhere/table || failed "markdown.py does not read bench --json"
    has elsewhere/table '| `hq2 hk1 q70 k130 d20 f16 causal` | `high pv=f32` |' "not run: int8 state=fp16 pv=int8"
    echo '{"machine": 1}' >elsewhere/no-result
    for wrong in missing elsewhere elsewhere/shapes elsewhere/no-result; do
        ! python3 "$data/../../bench/markdown.py" $wrong 2>err || failed "markdown.py reads $wrong"
        (($(wc -l <err) == 1)) && grep -q "^$wrong: " err || failed "markdown.py $wrong: not one line that names it"
    done
fi
expect 0 bench quant --quick --json --shapes elsewhere/quant
is_json out
has out "${results[@]}" '"skipped": []' '"copy_gbs"' '"passed": true' '"gbs"'
! grep -E '"(ms_min|ms_median|gflops|gbs|roofline_fraction)": (-|0\.0,|null)' out || failed "bench quant prints what no time can be"
printf '%s\n' 'hq2 q8 k256 d16 f16' '    high pv=f32' >elsewhere/few
expect 0 bench quant --quick --shapes elsewhere/few
has out "not run: high pv=f32: nothing is packed ahead" "memcpy of K and V"
printf '%s\n' 'hq2 q256 k256 d16 f16' '    high splits=2' >elsewhere/few
expect 2 bench quant --quick --shapes elsewhere/few
expect 3 bench quant --device gpu
expect 0 bench --quick --shapes elsewhere/shapes --isa scalar
has out "of bound" "err/bound" scalar "band:0.5"

# Within so many seconds, or until somebody stops it, it says what it has measured by then.
expect 2 bench peak --seconds 3
expect 2 bench --seconds 0
for ((i = 0; i < 12; i++)); do printf 'hq8 q1024 d64 f32 seed:%d\n  high pv=f32\n' $i; done >elsewhere/many
expect 0 bench --seconds 2 --json --shapes elsewhere/many --threads 1
is_json out
has out '"mode": "high pv=f32"' '"reason": "the time was up'
"$tilelamp" bench --json --shapes elsewhere/many --threads 1 >out 2>err &
running=$!
for ((i = 0; i < 300; i++)); do # until it listens
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' /proc/$running/status 2>/dev/null)
    ((0x${caught:-0} & 1 << 14)) && break
    sleep 0.1
done
kill -TERM $running
wait $running || failed "bench that is stopped: exit status $?"
is_json out
has out '"skipped"' '"reason": "the run was stopped"'

# A peer whose result is wrong, one that knows no such shape, one that ends, one that is no peer, one that does not start.
cat >elsewhere/peer <<'PEER'
while read -r what words; do
    case $1-$what in
    late-hello) exit 1 ;;
    mute-hello) echo what ;;
    *-hello) echo "ok peer 1.0 held to ${ONEDNN_MAX_CPU_ISA-nothing}" ;;
    wrong-open) directory=${words%% *} && echo "ok zeros" ;;
    *-open) echo "no such shape" ;;
    *-check) head -c 1000000 /dev/zero >"$directory/o" && echo ok ;;
    *) echo ok ;;
    esac
done
PEER
cat >elsewhere/peers <<'PEERS'
# NAME COMMAND
wrong bash elsewhere/peer wrong
choosy bash elsewhere/peer choosy
late bash elsewhere/peer late
mute bash elsewhere/peer mute
absent elsewhere/no-such-program
PEERS
expect 0 bench --quick --threads 2 --shapes elsewhere/quant --peers=elsewhere/peers
has out "not run: wrong: its result is wrong" "not run: choosy: such shape" "not run: late: it ended" \
    "not run: mute: it does not keep to the protocol" "not run: absent: it ended" "peer 1.0"
expect 0 bench --quick --json --shapes elsewhere/quant --peers=elsewhere/peers
is_json out
has out '"reason": "such shape"' '"name": "wrong"' '"version": "peer 1.0 held to nothing"'
expect 0 bench --quick --shapes elsewhere/quant --peers=elsewhere/peers --isa scalar
has out "peer 1.0 held to SSE41"

# ---- info

expect 0 info
has out scalar
expect 0 info --json
is_json out
has out '"version"' '"isa"' '"kernels"' '"devices"'
expect 0 info --isa scalar
expect 2 info --isa nonsense
expect 3 info --device gpu:60000
export TLAMP_MAX_ISA=avx-512
for words in info "run q4_d4" "compare q4_d4" "mask --layout one --lq 64" "bench peak"; do
    expect 2 ${words/_/ }
    has err "tilelamp: TLAMP_MAX_ISA: avx-512 is no instruction set: scalar, avx2, "
done
expect 0 info --isa scalar # says it instead
TLAMP_MAX_ISA="" expect 0 info
unset TLAMP_MAX_ISA

# ---- run

expect 0 run "$small"
expect 0 run $small --policy int8 --json
is_json out
for name in "${numbers[@]}"; do has out "\"$name\""; done
expect 0 run "$small" --policy one --json
has out '"passed": true'
expect 0 run "hq2 d16 varlen:5,0,70/9,3,130 causal mask:rowempty bias:f16" --policy band:0.5 --threads 2 --isa scalar --seed 3
has out "seed:3"
expect 2 run
expect 2 run "q4"
expect 2 run "q4 d4 nonsense"
expect 2 run "q4 d4" --policy nonsense
expect 2 run "q4 d4" --policy high --policy int8
expect 2 run "hq3 hk2 q4 d4"
expect 2 run "q4 d4" --qkv file
expect 2 run --qkv missing
expect 2 run "q2147483647 hq65536 d65536"
expect 2 run "q4 d4" --out missing/directory/file
expect 3 run "q4 d4" --policy adaptive:budget=0.5
expect 3 run "q4 d4 cache:int8"

# ---- run --out: no half-written file, and what was written can be read

expect 0 run "b2 hq2 hk1 q6 d8 f16 layout:bhsd pad:1" --out o.safetensors
[[ $(ls) == $'elsewhere\nerr\no.safetensors\nout' ]] || failed "run --out leaves other files: $(ls)"
has o.safetensors '"lse":{"dtype":"F32","shape":[2,2,6]' '"o":{"dtype":"F16","shape":[2,6,2,8]'
expect 2 run --qkv o.safetensors
has err "tensor q is missing"
expect 0 run "hq2 d8 varlen:3,4/5,6" --out o.safetensors
has o.safetensors '"lse":{"dtype":"F32","shape":[2,7]' '"cu_seqlens_q":{"dtype":"I32","shape":[3]' '"layout":"thd"'

# ---- mask, and maps as policies

expect 0 mask --layout band --coverage 0.5 --lq 1024 --lk 1024 --block-m 64 --block-n 64 --causal --json
is_json out
has out '"words": [' '"group": 1' '"t_m": 16' '"t_mask": 16' '"group": 0.485294118' '"width": 4'
expect 0 mask --layout one --lq 4096 --json
has out 18446744073709551615
expect 0 mask --layout one --lq 130 --lk 4160 --block-n 16 --group 1 --json
is_json out
has out '"words": [[18446744073709551615, '
expect 0 mask --layout global --coverage 0.25 --lq 300 --window 100,0 --svg map.svg --png map.png
has map.svg "<svg"
has map.png "PNG"
expect 2 mask
expect 2 mask --layout nonsense
expect 2 mask --layout band --lq 5
expect 2 mask --layout band --coverage 2 --lq 5
expect 2 mask --layout band --coverage nan --lq 5
expect 2 mask --layout band --coverage 0.5
expect 2 mask --layout one --lq 2147483647 --block-m 16 --block-n 16 --group 1
expect 2 mask --layout one --lq 64 --svg missing/directory/file

expect 0 mask --layout band --coverage 0.5 --lq 512 --causal --block-m 64 --json
cp out map.json
expect 0 run "q512 d16 causal" --policy "words:map.json" --json
grep -A 100 int8_share out | grep -E 'group|tile|cell' >shares.words
expect 0 run "q512 d16 causal" --policy "band:0.5 tile=64x64" --json
grep -A 100 int8_share out | grep -E 'group|tile|cell' >shares.band
cmp -s shares.words shares.band || failed "words:FILE and the layout it holds differ"
expect 2 run "q500 k600 d16 causal" --policy words:map.json
expect 2 run "q512 d16 causal" --policy words:missing.json
for words in '["1", 1, 1, 1]' '[1.5, 1, 1, 1]' '[[], [], [], []]'; do # what is no word is refused once, and freed once
    printf '{"words": %s, "group": 1, "t_mask": 4}' "$words" >broken.json
    expect 2 run "q256 d16 causal" --policy words:broken.json
    expect 2 compare "q256 d16 causal" --policy words:broken.json
done

# ---- compare

expect 0 compare "$small" --coverage 0.5 --report report.html
has out high int8 band:0.5 global:0.5 report.html
has report.html "<svg" "band:0.5" "tilelamp compare" "</html>"
expect 0 compare "$small" --policy int8 --policy "band:0.25 smooth-k" --json
is_json out
has out '"input"' '"results"' '"speedup_vs_high"' '"policy": "high"' '"policy": "band:0.25 smooth-k"'
expect 0 compare "$small" --layouts band,one --coverage 0,1 --json
is_json out
has out '"policy": "band:0"' '"policy": "one"'
expect 0 compare "b0 q3 d4" --json
is_json out
expect 2 compare
expect 2 compare "$small" --layouts nonsense
expect 2 compare "$small" --coverage 0.5,
expect 2 compare "hq64 q4096 d128" --report no-such-directory/report.html # said before the work, not after it
expect 2 compare "hq64 q4096 d128" --report elsewhere
if [[ -c /dev/full ]]; then
    expect 2 compare "hq64 q4096 d128" --report /dev/full
    expect 2 run "hq64 q4096 d128" --out /dev/full
    expect 2 mask --layout one --lq 64 --svg /dev/full
    for words in 'compare "hq64 q4096 d128"' 'bench prefill' info; do
        eval "'$tilelamp' $words" >/dev/full 2>err
        [[ $? == 2 && $(<err) == "tilelamp: stdout: cannot be written"* ]] || failed "$words >/dev/full: $(<err)"
        eval "'$tilelamp' $words" >&- 2>err
        [[ $? == 2 && $(<err) == "tilelamp: stdout: cannot be written"* ]] || failed "$words >&-: $(<err)"
    done
fi
expect 2 run "hq64 q4096 d128" --out no-such-directory/out.safetensors
expect 0 compare "$small" --policy "lamp:fmt=e4m3/e4m11,tau=0.5" --policy int8
has out "recomputed"
expect 2 compare --qkv missing --json
[[ ! -s out ]] || failed "compare --json prints before it fails: $(head -c 300 out)"

# ---- real files

for file in "$data"/*.safetensors; do
    [[ -e $file ]] || continue
    head -c 100000 "$file" >truncated
    expect 2 run --qkv truncated
    has err "truncated: "
    break
done

((failures == 0)) && echo "commands: all passed"
exit $((failures > 0))
