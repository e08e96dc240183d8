# passt's own tests, each a check. SOURCE is the directory of its source.

# Prepares a copy of the tests, with what the `Makefile` of passt's tests makes, and the pasta of the column.
prepare_tests() {
    mkdir /tmp/passt
    cp -r "$SOURCE/test" /tmp/passt
    ln -s /run/column/pasta /run/column/passt /tmp/passt
    cd /tmp/passt/test || return 1
    head -c 2048 /dev/urandom >small.bin
    head -c 5120 /dev/urandom >medium.bin
    head -c 10485760 /dev/urandom >big.bin
    # The machine has the same files.
    cp /run/machine/*.bin . 2>/dev/null || true
    # A holder of the namespaces that does not start is not awaited for ever.
    cat >nstool <<'END_OF_NSTOOL'
#!/bin/sh
[ "$1" != info ] || exec timeout 10 "$SOURCE/nstool" "$@"
exec "$SOURCE/nstool" "$@"
END_OF_NSTOOL
    mkdir exeter exeter/sh
    # A stand-in for the program that runs the tests in shell and Python, for those in shell.
    cat >exeter/sh/exeter.sh <<'END_OF_EXETER'
exeter_test=$1
exeter_register() {
    if [ "$exeter_test" = list ]; then echo "$1"; fi
    if [ "$exeter_test" = "$1" ]; then shift; "$@"; exit; fi
}
exeter_set_description() { :; }
exeter_main() { :; }
END_OF_EXETER
    chmod +x nstool
    cd /tmp/passt || return 1
}

finish_tests() {
    cat /tmp/passt/logs/context_* /tmp/passt/logs/pane_* 2>/dev/null
    cd /
    rm -rf /tmp/passt
}

# Prints the test files that passt's program runs with the setup GROUP, in their order.
files() {
    sed -n "/^\tsetup $1\$/,/^\tteardown $1\$/s/^\ttest //p; /^\tteardown $1\$/q" /tmp/passt/test/run
}

run_group() {
    prepare_tests
    [ "$1" != passt_in_ns ] || skip_tests_of_guests
    sh /run/scripts/passt-run.sh "$1" $(cd test && grep -l "^test$(printf '\t')" $(files "$1"))
    finish_tests
}

tests_pasta() {
    run_group pasta
}

tests_options() {
    run_group pasta_options
}

# The tests of passt with a virtual machine, over the stream and over vhost-user.
tests_machine() {
    run_group passt
}

tests_machine_vu() {
    VHOST_USER=1 run_group passt
}

# The tests of passt in the namespace of a pasta that use only this namespace and the host.
tests_in_ns() {
    run_group passt_in_ns
}

# Removes the tests that have directives of a guest or of passt, and reports their numbers as skipped.
skip_tests_of_guests() {
    local file
    for file in $(files passt_in_ns); do
        awk -F '\t' -v left="test/$file.left" -v file="$file" '
            function flush() {
                if (!guest) printf "%s", block >left
                else if (name != "") print file " " name
                block = ""; guest = 0
            }
            $1 == "test" { flush(); name = $2 }
            $1 ~ /^(guest[12]?[bw]?|g[12]?(out|tools)|passt[bw]?|p(out|int))$/ {
                if (name == "") next
                guest = 1
            }
            { block = block $0 "\n" }
            END { flush() }
        ' "test/$file" >/tmp/passt/skipped
        cat /tmp/passt/skipped
        skip "$(word "$file")" "$(wc -l </tmp/passt/skipped) tests use passt and its virtual machine"
        mv "test/$file.left" "test/$file"
    done
}

# Tests without a setup, and the list of the test files that no case runs.
tests_smoke() {
    local name file
    prepare_tests
    cd test
    for name in $(sh smoke/smoke.sh list); do
        case $name in
            pasta*) limited 10 "$(word "smoke/smoke.sh $name")" sh smoke/smoke.sh "$name" || true ;;
            *) skip "$(word "smoke/smoke.sh $name")" "a test of passt" ;;
        esac
    done
    for file in $(sed -n 's/^\t\(test\|exeter\) //p' run | sort -u); do
        case $file in
            smoke/* | pasta/* | pasta_options/* | passt_in_ns/* | passt/* | passt_vu/*) ;;
            build/*) skip "$(word "$file")" "builds or checks the source" ;;
            pasta_podman/bats) skip "$(word "$file")" "the case podman.tests-505 runs these tests" ;;
            demo/*) skip "$(word "$file")" "a demonstration" ;;
            perf/*) skip "$(word "$file")" "measures rates" ;;
            memory/* | passt_vu_in_ns/* | two_guests/* | two_guests_vu/* | migrate/* | distro/*)
                skip "$(word "$file")" "uses passt and a virtual machine" ;;
            *) echo "check $(word "$file") fail no case runs this file" >&3 ;;
        esac
    done
    finish_tests
}
