# Checks of `cargo xtask dist --check` for the library in a clean system: the example is compiled with the installed files, and run.
. /check/common.sh

# Compiles and runs the example with the shared and with the static library.
compile() {
    check "$1: example with the shared library"
    cc -Wall -Wextra -Werror $example $(pkg-config --cflags --libs pontoon) -o /check/shared
    readelf --dynamic /check/shared | grep -q 'NEEDED.*libpontoon.so.0'
    /check/shared >/check/output
    grep -q '^the gateway is at 02:50$' /check/output

    check "$1: example with the static library"
    cc $example -Wl,-Bstatic $(pkg-config --cflags --libs pontoon) -Wl,-Bdynamic \
        $(pkg-config --static --libs pontoon | sed 's/-lpontoon//') -o /check/static
    ! readelf --dynamic /check/static | grep -q libpontoon || exit 1
    /check/static >/check/output
    grep -q '^the gateway is at 02:50$' /check/output
}

check 'compiler'
$apt update >/check/log 2>&1 || { cat /check/log; exit 1; }
$apt install --yes --no-install-recommends gcc libc6-dev pkg-config >/check/log 2>&1 || { cat /check/log; exit 1; }
ldconfig
list >/check/before

check 'deb: installation'
$apt install --yes /check/libpontoon0.deb /check/libpontoon-dev.deb >/check/log 2>&1 || { cat /check/log; exit 1; }
example=/usr/share/doc/libpontoon-dev/examples/vmm.c
compile deb
check 'deb: program without the files for development'
$apt purge --yes libpontoon-dev >/check/log 2>&1 || { cat /check/log; exit 1; }
/check/shared >/check/output
check 'deb: removal'
$apt purge --yes libpontoon0 >/check/log 2>&1 || { cat /check/log; exit 1; }
unchanged deb

# The directories of libraries in distributions that use rpm, which Debian's linkers do not search.
mkdir -p /usr/lib64/pkgconfig
list >/check/before
check 'rpm: installation'
rpm --install --nodeps /check/libpontoon.rpm /check/libpontoon-devel.rpm 2>/check/error
export PKG_CONFIG_PATH=/usr/lib64/pkgconfig LD_LIBRARY_PATH=/usr/lib64
example=/usr/share/doc/libpontoon-devel/vmm.c
compile rpm
check 'rpm: removal'
unset PKG_CONFIG_PATH LD_LIBRARY_PATH
rpm --erase --nodeps libpontoon libpontoon-devel 2>/check/error
unchanged rpm
