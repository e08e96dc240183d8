//! Metrics of a relay for Prometheus.

use pontoon_control::http::HttpResponse;
use pontoon_control::metrics_text::{MetricType, MetricsText};
use pontoon_relay::counters::{DeviceStats, InterfaceStats, OutputStats, RuleStats, Stats, WorkerStats};

/// Returns the response to a request for metrics, made of the relay's counters.
pub(super) fn response(stats: &Stats) -> HttpResponse {
    HttpResponse::metrics(render(stats))
}

fn render(stats: &Stats) -> String {
    let mut text = MetricsText::new("pontoon_relay");
    for family in of_rules(&stats.rules) {
        counter(&mut text, family);
    }
    for family in of_outputs(&stats.rules) {
        counter(&mut text, family);
    }
    counter(&mut text, lost(&stats.rules));
    for family in of_interfaces(&stats.interfaces) {
        counter(&mut text, family);
    }
    counter(&mut text, outcomes(&stats.interfaces));
    for family in of_workers(&stats.workers, stats.querier.as_ref()) {
        counter(&mut text, family);
    }
    for family in of_devices(&stats.devices) {
        counter(&mut text, family);
    }
    let help = "Packets of all devices that the kernel dropped before it processed them.";
    text.family(MetricType::Counter, "softnet_dropped_packets", help)
        .sample(&[], stats.softnet_dropped);
    let help = "Derived rules that are not installed, as there are no counters left for them.";
    text.family(MetricType::Gauge, "left_out_rules", help)
        .sample(&[], stats.left_out);
    let help =
        "Group memberships and receive sockets that are not open, as the descriptor limit leaves no room.";
    text.family(MetricType::Gauge, "refused_sockets", help)
        .sample(&[], stats.refused_sockets);
    outputs_up(&mut text, &stats.rules);
    text.finish()
}

/// Name, help text and label names of a metric, and the label values and count of each of its samples.
type MetricFamily<const N: usize> = (
    &'static str,
    &'static str,
    [&'static str; N],
    Vec<([String; N], u64)>,
);

fn of_rules(rules: &[RuleStats]) -> [MetricFamily<1>; 2] {
    let rows = |of: fn(&RuleStats) -> u64| rules.iter().map(|rule| ([rule.rule.clone()], of(rule))).collect();
    let family = |name, help, of| (name, help, ["rule"], rows(of));
    [
        family(
            "received_datagrams",
            "Datagrams received that match a rule.",
            |rule| rule.datagrams,
        ),
        family(
            "received_bytes",
            "Bytes of payload received that match a rule.",
            |rule| rule.bytes,
        ),
    ]
}

/// Returns each output with its rule.
fn outputs(rules: &[RuleStats]) -> impl Iterator<Item = (&RuleStats, &OutputStats)> {
    rules
        .iter()
        .flat_map(|rule| rule.outputs.iter().map(move |output| (rule, output)))
}

fn of_outputs(rules: &[RuleStats]) -> [MetricFamily<2>; 3] {
    let rows = |of: fn(&OutputStats) -> u64| {
        let row = |(rule, output): (&RuleStats, &OutputStats)| {
            ([rule.rule.clone(), output.output.clone()], of(output))
        };
        outputs(rules).map(row).collect()
    };
    let family = |name, help, of| (name, help, ["rule", "output"], rows(of));
    [
        family("sent_datagrams", "Datagrams sent by an output.", |output| {
            output.sent
        }),
        family("sent_bytes", "Bytes of payload sent by an output.", |output| {
            output.bytes
        }),
        family(
            "sends",
            "System calls of an output that sent at least one datagram.",
            |output| output.sends,
        ),
    ]
}

fn lost(rules: &[RuleStats]) -> MetricFamily<3> {
    let rows = outputs(rules).flat_map(|(rule, output)| {
        let reasons = [
            ("expired", output.expired),
            ("down", output.down),
            ("refused", output.refused),
            ("busy", output.busy),
        ];
        reasons.map(|(reason, count)| {
            let labels = [rule.rule.clone(), output.output.clone(), reason.to_owned()];
            (labels, count)
        })
    });
    (
        "lost_datagrams",
        "Datagrams that an output did not send: their TTL expired, the output was down, the kernel refused them, or the \
         send queue was full.",
        ["rule", "output", "reason"],
        rows.collect(),
    )
}

fn of_interface(interface: &InterfaceStats) -> [String; 2] {
    [interface.interface.clone(), interface.family.clone()]
}

fn of_interfaces(interfaces: &[InterfaceStats]) -> [MetricFamily<2>; 4] {
    let rows = |of: fn(&InterfaceStats) -> u64| {
        let row = |interface| (of_interface(interface), of(interface));
        interfaces.iter().map(row).collect()
    };
    let family = |name, help, of| (name, help, ["interface", "family"], rows(of));
    [
        family(
            "packets",
            "Packets received by workers; several datagrams of one flow can be one packet.",
            |interface| interface.packets,
        ),
        family(
            "kernel_packets",
            "Packets that arrived at the rings, including dropped ones.",
            |interface| interface.kernel_packets,
        ),
        family(
            "kernel_dropped_packets",
            "Packets dropped because a ring or a socket's buffer was full.",
            |interface| interface.kernel_dropped,
        ),
        family(
            "reopened",
            "Times that rings were reopened because the kernel had stopped one.",
            |interface| interface.reopened,
        ),
    ]
}

fn outcomes(interfaces: &[InterfaceStats]) -> MetricFamily<3> {
    let rows = interfaces.iter().flat_map(|interface| {
        let outcomes = [
            ("matched", interface.matched),
            ("unmatched", interface.unmatched),
            ("malformed", interface.malformed),
            ("checksum", interface.checksum),
            ("fragment", interface.fragment),
            ("cut", interface.cut),
        ];
        outcomes.map(|(outcome, count)| {
            let [name, family] = of_interface(interface);
            ([name, family, outcome.to_owned()], count)
        })
    });
    (
        "datagrams",
        "Datagrams received by workers, by outcome: matched by a rule, or the reason for dropping them.",
        ["interface", "family", "outcome"],
        rows.collect(),
    )
}

/// Returns the metrics of each worker, labelled by its number, and of the querier process, labelled `querier`.
fn of_workers(workers: &[WorkerStats], querier: Option<&WorkerStats>) -> [MetricFamily<1>; 11] {
    let numbered = workers.iter().enumerate();
    let labelled: Vec<(String, &WorkerStats)> = numbered
        .map(|(number, worker)| (number.to_string(), worker))
        .chain(querier.map(|querier| ("querier".to_owned(), querier)))
        .collect();
    let rows = |of: fn(&WorkerStats) -> u64| {
        let row = |(label, worker): &(String, &WorkerStats)| ([label.clone()], of(worker));
        labelled.iter().map(row).collect()
    };
    let family = |name, help, of| (name, help, ["worker"], rows(of));
    [
        family(
            "worker_restarts",
            "Times that a worker was restarted.",
            |worker| worker.restarts,
        ),
        family(
            "worker_batches",
            "Polls of a worker that returned at least one packet.",
            |worker| worker.batches,
        ),
        family("worker_packets", "Packets received by a worker.", |worker| {
            worker.packets
        }),
        family(
            "worker_datagrams",
            "Datagrams received by a worker that match a rule.",
            |worker| worker.datagrams,
        ),
        family(
            "worker_bytes",
            "Bytes of payload of datagrams received by a worker that match a rule.",
            |worker| worker.bytes,
        ),
        family("worker_sent_datagrams", "Copies sent by a worker.", |worker| {
            worker.sent
        }),
        family(
            "worker_sent_bytes",
            "Bytes of payload of the copies sent by a worker.",
            |worker| worker.sent_bytes,
        ),
        family(
            "worker_lost_datagrams",
            "Copies that a worker did not send.",
            |worker| worker.lost,
        ),
        family(
            "worker_sandbox_refused",
            "System calls of a worker that the sandbox refused.",
            |worker| worker.sandbox_refused,
        ),
        family(
            "worker_memberships_ignored",
            "New memberships that the queriers ignored because of their limit on memberships.",
            |worker| worker.memberships_ignored,
        ),
        family(
            "worker_memberships_evicted",
            "Memberships that the queriers removed because of their limit on memberships.",
            |worker| worker.memberships_evicted,
        ),
    ]
}

fn of_devices(devices: &[DeviceStats]) -> [MetricFamily<1>; 5] {
    let rows = |of: fn(&DeviceStats) -> u64| {
        let row = |device: &DeviceStats| ([device.interface.clone()], of(device));
        devices.iter().map(row).collect()
    };
    let family = |name, help, of| (name, help, ["interface"], rows(of));
    [
        family("device_rx_packets", "Packets received by a device.", |device| {
            device.rx_packets
        }),
        family(
            "device_rx_dropped_packets",
            "Packets received by a device and dropped by the kernel.",
            |device| device.rx_dropped,
        ),
        family(
            "device_rx_missed_packets",
            "Packets dropped by a device for lack of buffers.",
            |device| device.rx_missed,
        ),
        family("device_tx_packets", "Packets sent by a device.", |device| {
            device.tx_packets
        }),
        family(
            "device_tx_dropped_packets",
            "Packets dropped before a device sent them.",
            |device| device.tx_dropped,
        ),
    ]
}

fn counter<const N: usize>(text: &mut MetricsText, (name, help, labels, rows): MetricFamily<N>) {
    let mut family = text.family(MetricType::Counter, name, help);
    for (values, count) in rows {
        let labels: Vec<(&str, &str)> = labels
            .into_iter()
            .zip(values.iter().map(String::as_str))
            .collect();
        family.sample(&labels, count);
    }
}

fn outputs_up(text: &mut MetricsText, rules: &[RuleStats]) {
    let help = "1 if an output can send, else 0.";
    let mut family = text.family(MetricType::Gauge, "output_up", help);
    for (rule, output) in outputs(rules) {
        let labels = [("rule", rule.rule.as_str()), ("output", output.output.as_str())];
        family.sample(&labels, u64::from(output.state == "up"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_metric() {
        let output = OutputStats {
            output: "b 239.1.1.2:2".to_owned(),
            state: "up".to_owned(),
            sent: 7,
            busy: 3,
            ..OutputStats::default()
        };
        let rule = RuleStats {
            rule: "a 239.1.1.1:1 -> b 239.1.1.2:2".to_owned(),
            datagrams: 10,
            outputs: vec![output],
            ..RuleStats::default()
        };
        let interface = InterfaceStats {
            interface: "a".to_owned(),
            family: "ipv4".to_owned(),
            kernel_dropped: 5,
            matched: 10,
            ..InterfaceStats::default()
        };
        let worker = WorkerStats {
            restarts: 1,
            ..WorkerStats::default()
        };
        let text = render(&Stats {
            rules: vec![rule],
            interfaces: vec![interface],
            querier: Some(WorkerStats {
                restarts: 2,
                ..WorkerStats::default()
            }),
            workers: vec![worker],
            softnet_dropped: 4,
            refused_sockets: 6,
            ..Stats::default()
        });
        let of_rule = "rule=\"a 239.1.1.1:1 -> b 239.1.1.2:2\"";
        let of_output = format!("{of_rule},output=\"b 239.1.1.2:2\"");
        for line in [
            format!("pontoon_relay_received_datagrams_total{{{of_rule}}} 10"),
            format!("pontoon_relay_sent_datagrams_total{{{of_output}}} 7"),
            format!("pontoon_relay_lost_datagrams_total{{{of_output},reason=\"busy\"}} 3"),
            format!("pontoon_relay_output_up{{{of_output}}} 1"),
            "pontoon_relay_kernel_dropped_packets_total{interface=\"a\",family=\"ipv4\"} 5".to_owned(),
            "pontoon_relay_datagrams_total{interface=\"a\",family=\"ipv4\",outcome=\"matched\"} 10"
                .to_owned(),
            "pontoon_relay_worker_restarts_total{worker=\"0\"} 1".to_owned(),
            "pontoon_relay_worker_restarts_total{worker=\"querier\"} 2".to_owned(),
            "pontoon_relay_softnet_dropped_packets_total 4".to_owned(),
            "pontoon_relay_refused_sockets 6".to_owned(),
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
