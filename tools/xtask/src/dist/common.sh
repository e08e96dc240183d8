# Functions of the checks in a clean system. They print the name of each check, and stop at the first one that fails.
set -e
export LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive
cd /
apt='apt-get --quiet=2 --option APT::Sandbox::User=root --option Binary::apt-get::APT::Keep-Downloaded-Packages=true'

last='preparation'
trap '[ $? = 0 ] || echo "failed: $last"' EXIT

check() {
    last=$*
    echo "  $last"
}

# Lists files and directories except the state of package managers.
list() {
    find / -xdev \( -path /check -o -path /run -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/rpm -o -path /tmp -o -path /root/.rpmdb \) -prune -o -print | sort
}

# Fails if a file was added or removed since the list was made.
unchanged() {
    check "$1: nothing is left"
    list >/check/after
    diff /check/before /check/after
}
