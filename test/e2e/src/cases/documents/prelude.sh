# Read by bash (BASH_ENV) before the commands of a page. Appends the line and the text of each command to $PROGRESS before the
# command is executed, exits at the first command that fails, and fails at the end if a background command has failed.
unset BASH_ENV
set -e

_page_step() {
    # The handler of EXIT is executed as line 1, which is the heading of a page.
    [ "$1" != 1 ] || return 0
    if [ "$!" != "$_page_job" ]; then
        _page_job=$!
        _page_jobs+=" $!:$_page_line"
    fi
    _page_line=$1
    printf '%s %s\n' "$1" "${2//$'\n'/ }" >>"$PROGRESS"
}

_page_end() {
    local status=$? job
    trap - DEBUG
    [ "$status" = 0 ] || exit "$status"
    _page_step "$_page_line" end
    for job in $_page_jobs; do
        # A command that still runs is killed with the host. Status 143 is that of a command that the page has killed.
        if ! kill -0 "${job%:*}" 2>/dev/null; then
            wait "${job%:*}" || status=$?
            if [ "$status" != 0 ] && [ "$status" != 143 ]; then
                printf '%s %s\n' "${job#*:}" "the background command" >>"$PROGRESS"
                exit "$status"
            fi
        fi
    done
}

_page_job=$! _page_jobs= _page_line=0
trap _page_end EXIT
trap '_page_step "$LINENO" "$BASH_COMMAND"' DEBUG
