#!/usr/bin/env bash
# run_until_done.sh COMMAND... - runs a training command again from its last checkpoint until it ends with exit code 0
#
# COMMAND is a trainer with its options, or a launcher that starts it (mpirun, srun, torchrun): it must name --output-dir (-o). --resume is added if neither
# that nor -y is there. Why each start ended goes to restarts.log in the output folder: exit code, duration, newest checkpoint, last lines of stderr.
#
# Progress is a new DONE_ file. After MAX_FAILURES (3) failures in a row without progress it gives up, with the last exit code; a wrong
# command line (exit codes 2, 126, 127) is not tried again. RESTART_SECONDS (5) after a failure, twice that after the second in a row ..., it starts again.
# Exit code 75 of the command says that a signal made it save and end: it starts again at once.
# Signals: USR1 makes the command save, end and start again. After TERM, INT or HUP it saves and ends, and is not started again: the exit code is its own
# (75: saved). A second one makes it end at once. All of them reach the command as USR1, which mpirun and srun hand on to the trainer: after a TERM mpirun
# kills its ranks within a second, whatever they are writing. torchrun knows TERM only, and waits 30 s.
set -u
saved=75
max_failures=${MAX_FAILURES:-3} pause=${RESTART_SECONDS:-5}
usage() { echo "run_until_done.sh: $1" >&2; echo "usage: [MAX_FAILURES=3] [RESTART_SECONDS=5] run_until_done.sh COMMAND... (with --output-dir FOLDER)" >&2; exit 2; }
case $max_failures in '' | *[!0-9]* | 0) usage "MAX_FAILURES='$max_failures' is not a number from 1 on" ;; esac
case $pause in '' | *[!0-9]*) usage "RESTART_SECONDS='$pause' is not a number of seconds" ;; esac
[ $# -gt 0 ] || usage "no command"

out='' resumes='' previous='' tell=USR1
for word in "$@"; do
    case $previous in -o | --output[-_]dir) out=$word ;; esac
    case $word in
        --output[-_]dir=*) out=${word#*=} ;;
        --resume | -y) resumes=1 ;;
        torchrun | */torchrun | torch.distributed.run) tell=TERM ;;
        --no[-_]resume) usage "$word: nothing could be started again" ;;
    esac
    previous=$word
done
[ -n "$out" ] || usage "the command names no --output-dir, where its checkpoints are"
[ -n "$resumes" ] || set -- "$@" --resume

newest() {  # step of the newest complete checkpoint, -1: none
    local file step newest=-1
    for file in "$out"/DONE_*; do
        step=${file##*/DONE_}
        case $step in '' | *[!0-9]*) continue ;; esac
        step=$((10#$step))
        [ $step -gt $newest ] && newest=$step
    done
    echo $newest
}
note() {  # a line for the user and for the log
    echo "run_until_done: $1" >&2
    mkdir -p "$out" && echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $1" >>"$out/restarts.log"
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/pipe" || exit 1
child='' stopping=''
forward() { told=1; [ -n "$child" ] && kill -"$tell" "$child" 2>/dev/null; }
trap forward USR1
trap 'stopping=1; forward' TERM INT HUP
set -m  # the command is a process group of its own: a Ctrl-C reaches it once, by this script

starts=0 failures=0
while true; do
    starts=$((starts + 1)) began=$SECONDS
    tee "$scratch/stderr" <"$scratch/pipe" >&2 &
    copier=$!
    touch "$scratch/began"
    "$@" </dev/null 2>"$scratch/pipe" &
    child=$!
    [ -n "$stopping" ] && forward  # it came before there was a command
    told=1
    while [ -n "$told" ]; do told='' code=0; wait "$child" || code=$?; done  # a signal cuts a wait short
    child=''
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $copier 2>/dev/null || break; sleep 0.1; done  # whoever still holds the pipe is not waited for
    kill $copier 2>/dev/null
    now=$(newest)
    why="start $starts ended with exit code $code after $((SECONDS - began)) s, newest checkpoint: $([ "$now" -lt 0 ] && echo none || echo "step $now")"
    if [ "$code" -eq 0 ]; then note "$why: done"; exit 0; fi
    if [ -n "$(find "$out" -maxdepth 1 -name 'DONE_*' -newer "$scratch/began" 2>/dev/null)" ]; then failures=0; else failures=$((failures + 1)); fi
    note "$why"
    tail -n 20 "$scratch/stderr" | cut -c 1-500 | sed 's/^/    | /' >>"$out/restarts.log"
    if [ -n "$stopping" ]; then note "stopped by a signal"; exit "$code"; fi
    case $code in 2 | 126 | 127) note "the command line is wrong: not tried again"; exit "$code" ;; esac
    if [ $failures -ge "$max_failures" ]; then note "$failures failures in a row without a new checkpoint: given up"; exit "$code"; fi
    [ "$code" -eq $saved ] && continue
    sleep $((pause * (failures > 0 ? failures : 1))) &
    wait $!
    kill $! 2>/dev/null
    if [ -n "$stopping" ]; then note "stopped by a signal"; exit "$code"; fi
done
