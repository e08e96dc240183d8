//! Every reader of text that takes it from outside this process.

use pontoon_runtime::Update;
use pontoon_runtime::messages::Report;
use pontoon_supervisor::publish::Publish;

/// Reads the bytes as each kind of text. What is understood is the same once it has been written and read again.
pub(crate) fn play(bytes: &[u8]) {
    if let Ok(update) = Update::decode(bytes) {
        assert_eq!(Update::decode(&update.encode()).unwrap(), update);
    }
    if let Ok(report) = Report::decode(bytes) {
        assert_eq!(report.encode(), bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(publish) = text.parse::<Publish>() {
        assert_eq!(publish.to_string().parse(), Ok(publish));
        let last = u32::from(publish.host) + u32::from(publish.count) - 1;
        assert!(publish.count > 0 && last <= u32::from(u16::MAX), "{publish:?}");
    }
}
