//! Runs commands by turns and compares the figures that they print.
//!
//! Owns: the order of the turns and the table. Must not: run two commands at once, or drop a figure. Every other turn
//! runs the commands in reverse order, so that a drift of the machine affects all of them alike.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use solkv_engine_trials::median;

/// Compares commands by turns: each prints figures as `name=value` lines.
#[derive(Parser)]
struct Args {
    /// How often each command runs.
    #[arg(long, default_value_t = 9)]
    turns: usize,

    /// A name and a command for the shell, such as 'nosync: ./lmdb shuffled --flag nosync'. The others are compared with the
    /// first.
    #[arg(required = true, value_name = "NAME: COMMAND", value_parser = variant)]
    variants: Vec<(String, String)>,
}

/// Values by the figure's name, then by the command's place, one for each turn.
type Figures = BTreeMap<String, Vec<Vec<f64>>>;

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.turns > 0, "turns=0 measures nothing: ask for one at least");
    let count = args.variants.len();
    let mut figures = Figures::new();
    for turn in 0..args.turns {
        let backwards = turn % 2 == 1;
        for place in (0..count).map(|place| if backwards { count - 1 - place } else { place }) {
            let (name, command) = &args.variants[place];
            eprintln!("turn {} of {}: {name}", turn + 1, args.turns);
            for (figure, value) in run(command).with_context(|| format!("variant={name:?} turn={}", turn + 1))? {
                figures.entry(figure).or_insert_with(|| vec![Vec::new(); count])[place].push(value);
            }
        }
    }
    print(&args, &figures);
    Ok(())
}

fn variant(text: &str) -> Result<(String, String), String> {
    let (name, command) = text.split_once(": ").ok_or_else(|| format!("not NAME: COMMAND: {text:?}"))?;
    Ok((name.trim().to_owned(), command.trim().to_owned()))
}

fn run(command: &str) -> Result<Vec<(String, f64)>> {
    let output = Command::new("sh").arg("-c").arg(command).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "command failed: status={} command={command:?}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let figures: Result<Vec<_>> = text
        .lines()
        .map(|line| {
            let (name, value) = line.split_once('=').with_context(|| format!("not name=value: {line:?}"))?;
            Ok((name.to_owned(), value.parse().with_context(|| format!("not a number: {line:?}"))?))
        })
        .collect();
    let figures = figures?;
    ensure!(!figures.is_empty(), "command printed no figure: command={command:?}");
    Ok(figures)
}

fn print(args: &Args, figures: &Figures) {
    println!("medians (lowest to highest) of {} turns; ratio: of the same turn, to {}", args.turns, args.variants[0].0);
    println!();
    println!("| figure | variant | median | ratio |");
    println!("|---|---|---|---|");
    for (figure, by_variant) in figures {
        for ((name, _), values) in args.variants.iter().zip(by_variant) {
            if values.is_empty() {
                println!("| {figure} | {name} | none | none |");
                continue;
            }
            let paired = values.iter().zip(&by_variant[0]).map(|(value, first)| value / first).collect();
            println!("| {figure} | {name} | {} | {} |", spread(values.clone()), spread(paired));
        }
    }
}

fn spread(mut values: Vec<f64>) -> String {
    if values.is_empty() {
        return "none".to_owned();
    }
    let middle = median(&mut values);
    format!("{middle:.4} ({:.4} to {:.4})", values[0], values[values.len() - 1])
}
