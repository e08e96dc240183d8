use proptest::prelude::*;

use super::*;

/// Groups a batch of (rule, flow, bytes), and returns the size and the indices of the datagrams of each burst.
fn gathered(batch: &[(u8, usize, usize)]) -> Vec<(usize, Vec<usize>)> {
    let mut gather = BurstGather::new(batch.len());
    for (number, (rule, flow, bytes)) in batch.iter().enumerate() {
        gather.push(*rule, *flow, *bytes, number);
    }
    gather
        .bursts()
        .map(|burst| (burst.size, burst.locations().collect()))
        .collect()
}

#[test]
fn datagrams_of_one_flow_and_size_are_one_burst() {
    assert_eq!(gathered(&[(1, 1, 1400); 4]), [(1400, vec![0, 1, 2, 3])]);
}

#[test]
fn shorter_datagram_ends_the_burst_of_its_flow() {
    let batch = [
        (1, 1, 1400),
        (1, 1, 1400),
        (1, 1, 600),
        (1, 1, 1400),
        (1, 1, 1400),
    ];
    assert_eq!(gathered(&batch), [(1400, vec![0, 1, 2]), (1400, vec![3, 4])]);
}

#[test]
fn longer_datagram_starts_another_burst() {
    let batch = [(1, 1, 600), (1, 1, 1400), (1, 1, 600)];
    assert_eq!(gathered(&batch), [(600, vec![0]), (1400, vec![1, 2])]);
}

#[test]
fn flows_of_one_rule_share_bursts_by_size() {
    let batch = [(1, 1, 100), (1, 2, 200), (1, 1, 100), (1, 2, 200), (1, 3, 100)];
    assert_eq!(gathered(&batch), [(100, vec![0, 2, 4]), (200, vec![1, 3])]);
}

#[test]
fn flow_is_not_reordered() {
    // The third datagram would fit into the first burst, but the second one of its flow is sent later.
    let batch = [(1, 1, 100), (1, 1, 200), (1, 1, 100), (1, 2, 100)];
    assert_eq!(gathered(&batch), [(100, vec![0, 3]), (200, vec![1, 2])]);
}

#[test]
fn rules_do_not_share_bursts() {
    let batch = [(1, 1, 100), (2, 2, 100), (1, 1, 100), (2, 2, 100)];
    assert_eq!(gathered(&batch), [(100, vec![0, 2]), (100, vec![1, 3])]);
}

#[test]
fn burst_is_limited_in_datagrams_and_bytes() {
    let counts = |batch: &[(u8, usize, usize)]| {
        gathered(batch)
            .iter()
            .map(|(_, burst)| burst.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&[(1, 1, 100); 130]), [64, 64, 2]);
    assert_eq!(counts(&[(1, 1, 1400); 50]), [46, 4]);
    assert_eq!(counts(&[(1, 1, 40_000); 3]), [1, 1, 1]);
}

#[test]
fn empty_datagrams_are_bursts_of_their_own() {
    let batch = [(1, 1, 0), (1, 1, 0), (1, 1, 10), (1, 1, 0)];
    assert_eq!(
        gathered(&batch),
        [(0, vec![0]), (0, vec![1]), (10, vec![2]), (0, vec![3])]
    );
}

#[test]
fn coalesced_datagrams_stay_together() {
    let mut gather = BurstGather::new(4);
    gather.push(1_u8, 1, 1400, 0);
    gather.push_coalesced(1, 1, 4000, 1400, 1);
    gather.push(1, 1, 1400, 2);
    gather.push(1, 2, 1400, 3);
    let bursts: Vec<_> = gather
        .bursts()
        .map(|burst| {
            (
                burst.size,
                burst.datagrams,
                burst.bytes,
                burst.locations().collect::<Vec<_>>(),
            )
        })
        .collect();
    let expected = [
        (1400, 1, 1400, vec![0]),
        (1400, 3, 4000, vec![1]),
        (1400, 2, 2800, vec![2, 3]),
    ];
    assert_eq!(bursts, expected);
    gather.clear();
    assert_eq!(gather.bursts().count(), 0);
}

proptest! {
    /// No datagram is lost or duplicated, every burst fits one send, and each flow keeps its order.
    #[test]
    fn every_datagram_is_kept_in_flow_order(
        batch in prop::collection::vec((0..3_u8, 0..5_usize, prop::sample::select(vec![0, 1, 100, 600, 1400, 30_000])), 0..300)
    ) {
        let bursts = gathered(&batch);
        let order: Vec<usize> = bursts.iter().flat_map(|(_, burst)| burst.clone()).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..batch.len()).collect::<Vec<_>>());
        for (size, burst) in &bursts {
            let (last, others) = burst.split_last().unwrap();
            prop_assert!(others.iter().all(|number| batch[*number].2 == *size));
            prop_assert!(batch[*last].2 <= *size && (others.is_empty() || batch[*last].2 > 0));
            prop_assert!(burst.iter().all(|number| batch[*number].0 == batch[*last].0));
            prop_assert!(burst.len() <= MAX_DATAGRAMS);
            prop_assert!(burst.iter().map(|number| batch[*number].2).sum::<usize>() <= MAX_BYTES);
        }
        for flow in 0..5 {
            let of_flow: Vec<_> = order.iter().filter(|number| batch[**number].1 == flow).collect();
            prop_assert!(of_flow.is_sorted());
        }
    }
}
