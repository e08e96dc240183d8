//! The load's two programs alone, for tests: `pontoon-load server LISTEN` and `pontoon-load client SERVER ORDER`.

use std::env::args;

use anyhow::{Context, Result, bail};
use pontoon_bench::load;

fn main() -> Result<()> {
    let arguments: Vec<_> = args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", listen] => load::serve(listen.parse()?),
        ["client", server, order] => {
            load::work(server.parse()?, serde_json::from_str(order).context("no order")?)
        }
        _ => bail!("server LISTEN, or client SERVER ORDER"),
    }
}
