#!/usr/bin/perl
# Stand-in for tcp_crr of neper: one TCP connection after the other, each with one request and one response. Options:
# -P PORT, -C CONTROL_PORT, -4, -6, -l SECONDS, -c (client), -H HOST, --nolog. The server ends with its first client.
use strict;
use warnings;
use IO::Socket::IP;

my %given = (P => 12867, C => 12866, l => 10, H => undef);
my ($client, $family) = (0, AF_INET6);
while (defined(my $option = shift)) {
    if ($option eq '-c') { $client = 1 }
    elsif ($option eq '-4') { $family = AF_INET }
    elsif ($option =~ /^-([PClH])(.*)$/) { $given{$1} = $2 ne '' ? $2 : shift }
}

sub listener {
    return IO::Socket::IP->new(
        Family => $family, LocalHost => $family == AF_INET ? '0.0.0.0' : '::', LocalPort => shift,
        Listen => 128, ReuseAddr => 1,
    ) || die "cannot listen: $@\n";
}

sub connection {
    return IO::Socket::IP->new(Family => $family, PeerHost => $given{H}, PeerPort => shift, Timeout => 5);
}

if ($client) {
    # A forwarded connection is accepted, and then reset, if nobody listens yet.
    my ($control, $deadline) = (undef, time + 10);
    until ($control = connection($given{C}) and sysread $control, my $greeting, 1) {
        die "cannot connect: $@\n" if time > $deadline;
        select undef, undef, undef, 0.1;
    }
    my ($end, $count) = (time + $given{l}, 0);
    while (time <= $end) {
        my $data = connection($given{P}) or next;
        syswrite $data, 'x';
        $count += sysread($data, my $reply, 1) // 0;
    }
    printf "throughput=%.2f\n", $count / $given{l};
    exit;
}

my ($data, $control) = (listener($given{P}), listener($given{C}));
my $session = $control->accept;
syswrite $session, 'x';
while (1) {
    my $ready = '';
    vec($ready, fileno $_, 1) = 1 for $data, $session;
    select $ready, undef, undef, undef;
    if (vec $ready, fileno $data, 1) {
        my $peer = $data->accept or next;
        syswrite $peer, 'x' if sysread $peer, my $request, 1;
        next;
    }
    last unless sysread $session, my $rest, 1;
}
