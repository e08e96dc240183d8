#!/bin/busybox sh
# The script of the DHCPv6 client of the machine.
case $reason in
    BOUND6)
        echo "$new_ip6_address" >"/tmp/lease6.$interface"
        echo "$new_dhcp6_name_servers" >"/tmp/dns6.$interface"
        ip -6 address add "$new_ip6_address/128" dev "$interface"
        ;;
esac
