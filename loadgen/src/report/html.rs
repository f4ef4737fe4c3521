//! A report as one self-contained HTML page, with style, script and charting library inside.
//!
//! Owns: HTML, and the guarantee that no text of a record becomes markup. Must not: compute figures.

use super::document::{Bar, BarGroup, Bars, Block, Chart, Document, Figures, Row, Section, Table};
use super::format::{html as escape, script_json};

const UPLOT_JS: &str = include_str!("../../assets/uplot-1.6.32/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../../assets/uplot-1.6.32/uPlot.min.css");
const PAGE_JS: &str = include_str!("../../assets/report.js");
const PAGE_CSS: &str = include_str!("../../assets/report.css");

/// Content security policy of the page: it may fetch nothing, whatever it contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Heading for each kind of chart.
const CHART_HEADS: [(&str, &str); 4] = [
    ("caps", "Latency against the memory cap"),
    ("size", "Latency against size"),
    ("time", "Latency over time"),
    ("nines", "Percentiles, by nines"),
];

/// Renders the whole page as HTML.
pub(crate) fn render(document: &Document) -> serde_json::Result<String> {
    let charts: Vec<&Chart> = document.sections.iter().flat_map(|section| inside(&section.blocks)).collect();
    let data = serde_json::to_string(&serde_json::json!({ "engines": document.engines, "charts": charts }))?;
    let title = escape(&document.title);
    let links: String = document.sections.iter().map(link).collect();
    let sections: String = document.sections.iter().map(section).collect();
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>{UPLOT_CSS}</style>\n<style>{PAGE_CSS}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the figures</a>\n\
         <header>\n<h1>{title}</h1>\n<p>{lead}</p>\n</header>\n\
         <nav aria-label=\"Sections\"><ul>{links}</ul><div id=\"controls\"></div></nav>\n\
         <main id=\"main\">\n<noscript><p>The lines need JavaScript; every table and bar stands without.</p></noscript>\n\
         {sections}</main>\n<script type=\"application/json\" id=\"report-data\">{data}</script>\n\
         <script>{UPLOT_JS}</script>\n<script>{PAGE_JS}</script>\n</body>\n</html>\n",
        lead = escape(&document.lead),
        data = script_json(&data),
    ))
}

fn inside(blocks: &[Block]) -> Vec<&Chart> {
    let of = blocks.iter().flat_map(|block| match block {
        Block::Charts(charts) => charts.iter().collect(),
        Block::Fold(_, blocks) => inside(blocks),
        _ => Vec::new(),
    });
    of.collect()
}

fn link(section: &Section) -> String {
    format!("<li><a href=\"#{}\">{}</a></li>", escape(&section.id), escape(&section.title))
}

fn section(section: &Section) -> String {
    let blocks: String = section.blocks.iter().map(block).collect();
    let (id, title) = (escape(&section.id), escape(&section.title));
    format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{blocks}</section>\n"
    )
}

fn block(one: &Block) -> String {
    match one {
        Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Block::List(lines) => {
            let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
            format!("<ul>\n{lines}</ul>\n")
        }
        Block::Folded(head, lines) => {
            let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
            format!("<details class=\"folded\"><summary>{}</summary>\n<ul>\n{lines}</ul></details>\n", escape(head))
        }
        Block::Fold(head, blocks) => {
            let blocks: String = blocks.iter().map(block).collect();
            format!("<details class=\"fold\"><summary>{}</summary>\n{blocks}</details>\n", escape(head))
        }
        Block::Code(text) => format!("<pre tabindex=\"0\"><code>{}</code></pre>\n", escape(text)),
        Block::Table(rows) => table(rows),
        Block::Bars(all) => bars(all),
        Block::Charts(charts) => {
            let kind = charts.first().map_or("", |chart| chart.kind);
            let head = CHART_HEADS.iter().find(|(of, _)| *of == kind).map_or("", |(_, head)| head);
            let charts: String = charts.iter().map(chart).collect();
            format!("<h4>{head}</h4>\n<div class=\"charts\">\n{charts}</div>\n")
        }
    }
}

/// Renders a chart's frame. The page's script adds the drawing and, once opened, the table of the same figures.
fn chart(chart: &Chart) -> String {
    format!(
        "<figure class=\"chart\" data-chart=\"{}\"><figcaption>{}</figcaption><div class=\"plot\"></div>\
         <details><summary>Figures</summary><div class=\"scroll\" tabindex=\"0\"></div></details></figure>\n",
        escape(&chart.id),
        escape(&chart.title)
    )
}

fn table(table: &Table) -> String {
    let head: String = table.head.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
    // A long table repeats its engines under every title.
    let again: String =
        table.head.iter().skip(1).map(|name| format!("<td aria-hidden=\"true\">{}</td>", escape(name))).collect();
    let row = |(at, row): (usize, &Row)| match row {
        Row::Title(title) if at > 0 => {
            format!("<tr class=\"title\"><th scope=\"rowgroup\">{}</th>{again}</tr>\n", escape(title))
        }
        Row::Title(title) => {
            format!(
                "<tr class=\"title\"><th colspan=\"{}\" scope=\"rowgroup\">{}</th></tr>\n",
                table.head.len(),
                escape(title)
            )
        }
        Row::Figures(name, cells) => {
            let cells: String = cells.iter().map(cell).collect();
            format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(name))
        }
    };
    let rows: String = table.rows.iter().enumerate().map(row).collect();
    format!(
        "<p class=\"caption\">{caption}</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\
         <table{class} aria-label=\"{caption}\"><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n",
        caption = escape(&table.caption),
        class = if table.words { " class=\"text\"" } else { "" },
    )
}

fn cell(figures: &Figures) -> String {
    let class = if figures.ahead.is_some() { " class=\"best\"" } else { "" };
    let detail = match figures.detail.as_str() {
        "" => String::new(),
        detail => format!("<small>{}</small>", escape(detail)),
    };
    format!("<td{class}>{}{detail}</td>", escape(&figures.main))
}

fn bars(bars: &Bars) -> String {
    let engines = |group: &BarGroup| -> String { group.bars.iter().map(|one| bar(one, bars, group)).collect() };
    let group = |group: &BarGroup| {
        let limit = if group.limit.is_some() { " <span class=\"limit-key\">line: the cap</span>" } else { "" };
        format!("<div class=\"bar-group\"><h5>{}{limit}</h5>{}</div>\n", escape(&group.title), engines(group))
    };
    let groups: String = bars.groups.iter().map(group).collect();
    let scales = if bars.groups.len() > 1 { "; every cap at its own scale" } else { "" };
    let key = if bars.parts.is_empty() {
        String::new()
    } else {
        let part = |(at, name): (usize, &&str)| format!("<span><i class=\"part-{at}\"></i>{}</span>", escape(name));
        let parts: String = bars.parts.iter().enumerate().map(part).collect();
        format!("<p class=\"key\">{parts}<span><i class=\"mark\"></i>RSS</span></p>")
    };
    format!(
        "<figure class=\"bars\"><figcaption>{}{scales}</figcaption>{key}<div class=\"bar-groups\">{groups}</div></figure>\n",
        escape(&bars.title)
    )
}

fn bar(bar: &Bar, bars: &Bars, group: &BarGroup) -> String {
    let ends = |bar: &Bar| {
        let sum: f64 = bar.parts.iter().sum();
        sum.max(bar.mark.unwrap_or(0.0)).max(bar.range.map_or(0.0, |(_, high)| high))
    };
    let scale = group.bars.iter().map(ends).chain(group.limit).fold(f64::MIN_POSITIVE, f64::max);
    let percent = |value: f64| format!("{:.2}%", value / scale * 100.0);
    let part = |(at, length): (usize, &f64)| {
        let look = if bars.parts.is_empty() { "part".to_owned() } else { format!("part part-{at}") };
        format!("<i class=\"{look}\" style=\"width:{}\"></i>", percent(*length))
    };
    let mut track: String = bar.parts.iter().enumerate().map(part).collect();
    if let Some((low, high)) = bar.range {
        let width = percent(high - low);
        track.push_str(&format!("<i class=\"range\" style=\"left:{};width:{width}\"></i>", percent(low)));
    }
    if let Some(mark) = bar.mark {
        track.push_str(&format!("<i class=\"mark\" style=\"left:{}\"></i>", percent(mark)));
    }
    if let Some(limit) = group.limit {
        track.push_str(&format!("<i class=\"limit\" style=\"left:{}\"></i>", percent(limit)));
    }
    let name = format!("<span class=\"name\">{}</span>", escape(&bar.name));
    format!(
        "<div class=\"bar engine-{}\">{name}<span class=\"track\">{track}</span><span class=\"value\">{} <small>{}</small></span></div>",
        bar.engine % 8,
        escape(&bar.text.main),
        escape(&bar.text.detail)
    )
}
