# Prints figures of all processes that execute pasta or Pontoon: their proportional set size in kB, their number, and the
# numbers of their descriptors and inotify instances.
processes=$(pgrep '^(pasta|pontoon)')
for process in $processes; do
    cat "/proc/$process/smaps_rollup"
    find "/proc/$process/fd" -mindepth 1 -printf 'Descriptor: %l\n'
done 2>/dev/null | awk -v processes="$(wc -w <<<"$processes")" '
    $1 == "Pss:" {size += $2}
    $1 == "Descriptor:" {descriptors += 1}
    $2 ~ /inotify/ {instances += 1}
    END {print size + 0, processes, descriptors + 0, instances + 0}'
