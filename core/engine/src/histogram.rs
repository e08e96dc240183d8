//! A histogram with fixed bucket bounds, for metrics.

/// Histogram of integer values with `N` buckets and one more for values above the last bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [u64; N],
    beyond: u64,
    sum: u64,
}

/// A measured quantity.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// The name, with the unit at its end.
    pub name: &'static str,
    /// The meaning.
    pub help: &'static str,
    /// Bounds between which values are counted.
    pub bounds: &'static [u64],
    /// The value of one unit.
    pub one: u64,
}

/// Declares a structure of histograms, and the list of what they measure. A field is the name of a quantity, followed by its
/// bounds and, after `per`, the value of the unit in the name.
#[macro_export]
macro_rules! histograms {
    ($(#[$meta:meta])* pub struct $Type:ident {
        $($(#[doc = $doc:literal])* $name:ident: $bounds:path, per $one:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $Type {
            $($(#[doc = $doc])* pub $name: $crate::Histogram<{ $bounds.len() }>,)*
        }

        impl Default for $Type {
            fn default() -> Self {
                Self { $($name: $crate::Histogram::new(&$bounds)),* }
            }
        }

        impl $Type {
            /// The number of values of all histograms: of each the sum and the counts.
            pub const COUNT: usize = 0 $(+ $bounds.len() + 2)*;

            /// The measured quantities, in the order of declaration.
            pub fn describe() -> impl Iterator<Item = $crate::histogram::Quantity> {
                [$($crate::histogram::Quantity {
                    name: stringify!($name),
                    help: concat!($($doc),*),
                    bounds: &$bounds,
                    one: $one,
                },)*].into_iter()
            }

            /// The sum and the counts of each histogram, in the order of declaration.
            pub fn values(&self) -> impl Iterator<Item = u64> {
                core::iter::empty()$(.chain(self.$name.values()))*
            }
        }
    };
}

histograms! {
    /// One worker's measurements since it started.
    pub struct Histograms {
        /// Time to establish the guest's TCP connections on the host's side.
        tcp_connect_seconds: CONNECT_TIMES, per 1_000_000_000,
    }
}

/// Bounds of the durations of successful connects, in nanoseconds: 100 us to 30 s.
pub const CONNECT_TIMES: [u64; 12] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    25_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

impl<const N: usize> Histogram<N> {
    /// Creates an empty histogram. `bounds` must be ascending.
    #[must_use]
    pub const fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            counts: [0; N],
            beyond: 0,
            sum: 0,
        }
    }

    /// Adds a value to the bucket whose bound is the first that is not below it.
    pub fn count(&mut self, value: u64) {
        let place = self.bounds.iter().position(|bound| value <= *bound);
        let count = place.map_or(&mut self.beyond, |place| &mut self.counts[place]);
        *count += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Returns the sum of all values that were added.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the number of values in each bucket, those above the previous bound and not above the bucket's own; the
    /// last number is of values above all bounds.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().copied().chain([self.beyond])
    }

    /// The sum, then the counts.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        [self.sum].into_iter().chain(self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_equal_to_a_bound_counts_below_it() {
        static BOUNDS: [u64; 3] = [1, 4, 16];
        let mut histogram = Histogram::new(&BOUNDS);
        for value in [0, 1, 2, 4, 5, 16, 17, u64::MAX] {
            histogram.count(value);
        }
        assert_eq!(histogram.counts().collect::<Vec<_>>(), [2, 2, 2, 2]);
        assert_eq!(histogram.sum(), u64::MAX);
    }

    #[test]
    fn bounds_are_ascending() {
        assert!(CONNECT_TIMES.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn values_are_the_sum_and_counts_of_each_histogram() {
        let mut histograms = Histograms::default();
        histograms.tcp_connect_seconds.count(250_000);
        let values: Vec<u64> = histograms.values().collect();
        assert_eq!(values.len(), Histograms::COUNT);
        assert_eq!(values[..4], [250_000, 0, 1, 0]);
        let quantity = Histograms::describe().next().unwrap();
        assert_eq!(
            (quantity.name, quantity.bounds.len()),
            ("tcp_connect_seconds", 12)
        );
    }
}
