//! A report as markdown, for a README: the text and the tables, without the charts.
//!
//! Owns: markdown. Must not: compute figures.

use super::document::{Block, Document, Figures, Row, Table};
use super::format::markdown as escape;

/// Renders the whole report as markdown.
pub(crate) fn render(document: &Document) -> String {
    let mut out = format!("# {}\n\n{}\n", escape(&document.title), escape(&document.lead));
    for section in &document.sections {
        out.push_str(&format!("\n## {}\n", escape(&section.title)));
        for block in &section.blocks {
            out.push_str(&rendered(block));
        }
    }
    out
}

fn rendered(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("\n{}\n", escape(text)),
        Block::List(lines) => lines.iter().fold("\n".to_owned(), |out, line| out + "- " + &escape(line) + "\n"),
        Block::Folded(head, lines) => {
            let list = lines.iter().fold(String::new(), |out, line| out + "- " + &escape(line) + "\n");
            format!("\n<details><summary>{}</summary>\n\n{list}\n</details>\n", escape(head))
        }
        Block::Fold(head, blocks) => {
            blocks.iter().fold(format!("\n### {}\n", escape(head)), |out, block| out + &rendered(block))
        }
        Block::Code(text) => fenced(text),
        Block::Table(rows) => table(rows),
        // The tables have the figures of the charts.
        Block::Charts(_) => String::new(),
    }
}

fn fenced(text: &str) -> String {
    // The fence has to be longer than any run of backticks inside.
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("\n{fence}\n{text}\n{fence}\n")
}

fn table(table: &Table) -> String {
    let mut out = format!("\n**{}**\n\n", escape(&table.caption));
    out.push_str(&line(table.head.iter().map(|name| escape(name))));
    let columns = table.head.len().saturating_sub(1);
    out.push_str(&format!("|---|{}\n", "---:|".repeat(columns)));
    for row in &table.rows {
        out.push_str(&match row {
            Row::Title(title) => {
                let blank = std::iter::repeat_n(String::new(), columns);
                line(std::iter::once(format!("**{}**", escape(title))).chain(blank))
            }
            Row::Figures(name, cells) => line(std::iter::once(escape(name)).chain(cells.iter().map(cell))),
        });
    }
    out
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.fold("|".to_owned(), |out, cell| out + " " + &cell + " |") + "\n"
}

fn cell(figures: &Figures) -> String {
    let main = escape(&figures.main);
    let main = if figures.ahead.is_some() { format!("**{main}**") } else { main };
    if figures.detail.is_empty() { main } else { format!("{main} ({})", escape(&figures.detail)) }
}
