//! The template of all HTML pages, with the style sheet.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Returns an HTML page with this title and body.
pub(crate) fn shell(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body { (body) }
        }
    };
    page.into_string()
}
