# Prints the proportional set size of all processes that execute pasta or Pontoon, in kB.
for process in $(pgrep '^(pasta|pontoon)'); do
    cat "/proc/$process/smaps_rollup"
done | awk '$1 == "Pss:" {sum += $2} END {print sum + 0}'
