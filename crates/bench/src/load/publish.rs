//! Connections into the guest, which the server makes and times.

use std::sync::Arc;

use crate::job::Word;

use super::control::Control;
use super::fault::Sound;
use super::stage::Stage;
use super::{connect, failed, latency, socket, unreachable};

/// The client's side, which answers.
pub(crate) fn run(stage: &mut Stage, port: u16) -> Result<(), Word> {
    let listener = socket::listener_everywhere(port)
        .map_err(|error| unreachable(format_args!("cannot listen on port {port}: {error}")))?;
    connect::serve::<Sound>(&Arc::new(listener)).map_err(failed)?;
    let mut control = Control::open(stage)?;
    control.connect(stage.warm_up())?;
    stage.begin()?;
    let sheet = control.connect(stage.duration())?;
    stage.end(latency::findings(&[sheet], control.congestion_control())?)
}
