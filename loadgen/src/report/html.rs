//! A report as one self-contained HTML page: the document as JSON, and the script and the style that show it.
//!
//! Owns: the page's parts, and the guarantee that no text of a record becomes markup. Must not: compute figures. The
//! charts are those of the service's dashboard, and so are the looks.

use super::document::Document;

const PAGE: &str = include_str!("../../assets/report.html");
const STYLE: &str =
    concat!(include_str!("../../../service/src/pages/dashboard/page.css"), include_str!("../../assets/report.css"));
const SCRIPT: &str = concat!(
    include_str!("../../../service/src/pages/dashboard/format.js"),
    include_str!("../../../service/src/pages/dashboard/charts.js"),
    include_str!("../../assets/report.js")
);

/// Renders the whole page as HTML.
pub(crate) fn render(document: &Document) -> serde_json::Result<String> {
    // In JSON a `<` occurs only in strings, where the escape is the same character. So no text ends the element.
    let data = serde_json::to_string(document)?.replace('<', "\\u003c");
    // The data come last, because they may contain anything.
    Ok(PAGE.replace("/* style */", STYLE).replace("/* script */", SCRIPT).replacen("/* data */", &data, 1))
}
