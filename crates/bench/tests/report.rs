//! Reports made of a made-up run: what people and programs are told.

#[path = "report/fixture.rs"]
mod fixture;

use std::path::Path;

use pontoon_bench::report;

use fixture::Fixture;

#[test]
fn x() {
    let of = Fixture::default().build();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(dir.join("report.html"), report::html(&of)).unwrap();
    std::fs::write(dir.join("report.md"), report::markdown(&of)).unwrap();
    std::fs::write(
        dir.join("compare.md"),
        report::compare(&of, &Fixture::default().seed(2).build()),
    )
    .unwrap();
    report::write_json(&of, &dir.join("report.json")).unwrap();
    println!("{}", dir.display());
}
