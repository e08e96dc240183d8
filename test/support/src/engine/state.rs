//! Replaces the engine by a successor with its state, which may be modified.

use pontoon_engine::state::SocketRefused;

use super::{EngineRunner, Script};

/// Runs the engine with a script that replaces it by successors. Those with an unmodified state have to be equal; a modified
/// state is refused, or no handler of the successor panics. Panics if the engine violates a check.
pub fn run(script: &[u8]) {
    let mut runner = EngineRunner::new(Script(script));
    while let Some(step) = runner.host.script.next_byte() {
        match step {
            0xff => {
                if runner.succeed(Damage::Script) == Successor::Refused {
                    return;
                }
            }
            0xfe => {
                if runner.succeed(Damage::None) == Successor::Refused {
                    return;
                }
            }
            _ => runner.step(step),
        }
        runner.check();
    }
    runner.end();
}

/// Restores arbitrary octets behind a valid envelope.
pub fn run_octets(octets: &[u8]) {
    let mut runner = EngineRunner::new(Script(&[]));
    let mut bytes = runner.engine.save_state(runner.now).bytes;
    bytes.truncate(ENVELOPE);
    bytes[LENGTH].copy_from_slice(&(octets.len() as u64).to_le_bytes());
    bytes.extend(octets);
    let mut successor = runner.engine.successor([1; 32], runner.now);
    let _ = successor.restore_state(&bytes, runner.now, &mut |_, _| Err(SocketRefused));
}

/// Modification of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    /// As the next bytes of the script demand.
    Script,
}

/// Result of restoring a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    /// The successor has replaced the engine.
    Begins,
    /// The state was refused.
    Refused,
}

impl EngineRunner<'_> {
    fn succeed(&mut self, damage: Damage) -> Successor {
        let saved = self.engine.save_state(self.now);
        let sockets: Vec<usize> = saved.sockets.iter().map(|saved| saved.socket.place()).collect();
        let original = saved.bytes;
        let mut bytes = original.clone();
        if damage == Damage::Script {
            self.is_damaged = true;
            for _ in 0..=self.host.script.below(4) {
                self.damage(&mut bytes);
            }
        }
        let mut successor = self.engine.successor([1; 32], self.now);
        let host = &mut self.host;
        let mut adopted = Vec::new();
        let restored = successor.restore_state(&bytes, self.now, &mut |place, description| {
            let socket = *sockets.get(place as usize).ok_or(SocketRefused)?;
            if damage == Damage::Script && host.script.byte() & 31 == 31 {
                return Err(SocketRefused);
            }
            adopted.push(socket);
            Ok(host.adopt(socket, description.flow))
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(error) => {
                assert!(self.is_damaged, "an unmodified state is refused: {error}");
                return Successor::Refused;
            }
        };
        // Flows are refused if the script has replaced resolvers or rules since they were opened.
        if !self.is_damaged && restored.refused == 0 {
            let again = successor.save_state(self.now).bytes;
            assert!(again == original, "the successor has another state");
        }
        // The process of the former engine closes the others when it exits.
        for socket in sockets.into_iter().filter(|socket| !adopted.contains(socket)) {
            self.host.release(socket);
        }
        self.engine = successor;
        self.engine
            .handle_restored(&mut self.link, &mut self.host, self.now);
        self.settle();
        Successor::Begins
    }

    /// Changes, removes or adds octets of a state.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let script = &mut self.host.script;
        let at = script.u16() as usize % bytes.len().max(1);
        let by = script.byte();
        match script.byte() % 8 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, by),
            2 => drop(bytes.remove(at)),
            3 => bytes[at..].iter_mut().take(4).for_each(|octet| *octet = by),
            4 => bytes[at] = bytes[at].wrapping_add(1),
            _ => bytes[at] ^= by,
        }
        // With another length, the envelope would be refused at once.
        if let Some(records) = bytes.len().checked_sub(ENVELOPE) {
            bytes[LENGTH].copy_from_slice(&(records as u64).to_le_bytes());
        }
    }
}

/// Length of the envelope, and the place of the records' length in it.
const ENVELOPE: usize = 28;
const LENGTH: core::ops::Range<usize> = 12..20;
