#!/bin/sh
# What ISC's dhclient runs. It closes its standard output when it has an address.
case $reason in
BOUND6)
    ip -6 address add "$new_ip6_address/128" dev "$interface"
    echo "dhcp6 $new_ip6_address $new_dhcp6_name_servers" >"$OUTPUT"
    ;;
esac
