//! A profile as aligned tables for the terminal.

use bilayer_measure::profile::{AtSequences, AtThreads, Curves, Profile};

use super::columns;

/// The tables, the recommendation and its reason; ends with a line break.
pub fn text(profile: &Profile) -> String {
    let tables = match &profile.curves {
        Some(curves) => of_curves(Some(curves)).iter().map(Table::text).collect(),
        None => vec![by_layers(profile)],
    };
    let tables = tables.join("\n\n");
    let prompts = profile.streamed_prompt_tokens.map_or(String::new(), |streamed| {
        let tokens = profile.prompt_tokens;
        format!("prefill: a prompt of {tokens} tokens; streamed: one of {streamed}\n")
    });
    format!("{tables}\n\n{prompts}recommended: {}\n{}\n", profile.flag(), profile.why)
}

/// The table over the number of layers.
fn by_layers(profile: &Profile) -> String {
    let columns = columns::filled(profile);
    let cells = |cells: &[Option<columns::Cell>]| {
        cells.iter().map(|cell| cell.as_ref().map_or("-".to_owned(), |c| c.text.clone())).collect()
    };
    let head = columns.iter().map(|(column, _)| (column.title, column.unit)).collect();
    let table =
        Table { head, columns: columns.iter().map(|(_, column)| cells(column)).collect() }.text();
    let mut rows: Vec<String> = table.lines().map(str::to_owned).collect();
    for (row, point) in rows.iter_mut().skip(2).zip(&profile.points) {
        let remarks = columns::remarks(profile, point).join(", ");
        if !remarks.is_empty() {
            *row += &format!("  {remarks}");
        }
    }
    rows.join("\n")
}

/// A table of texts.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title and unit of each column.
    pub head: Vec<(&'static str, &'static str)>,
    /// The cells of each column.
    pub columns: Vec<Vec<String>>,
}

impl Table {
    /// Aligned at the right, without a line break at the end.
    fn text(&self) -> String {
        let rows = self.columns.first().map_or(0, Vec::len) + 2;
        let mut lines = vec![String::new(); rows];
        for ((title, unit), cells) in self.head.iter().zip(&self.columns) {
            let texts = [*title, *unit].into_iter().chain(cells.iter().map(String::as_str));
            let texts: Vec<&str> = texts.collect();
            let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
            for (line, text) in lines.iter_mut().zip(texts) {
                let gap = if line.is_empty() { "" } else { "  " };
                *line += &format!("{gap}{text:>width$}");
            }
        }
        lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
    }
}

/// The tables of a profile without a GPU: by threads and by sequences.
pub fn of_curves(curves: Option<&Curves>) -> Vec<Table> {
    let Some(curves) = curves else { return Vec::new() };
    let cell = |value: f64| match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    };
    let of_threads = |value: fn(&AtThreads) -> f64| {
        curves.threads.iter().map(|at| cell(value(at))).collect::<Vec<_>>()
    };
    let of_sequences = |value: fn(&AtSequences) -> f64| {
        curves.sequences.iter().map(|at| cell(value(at))).collect::<Vec<_>>()
    };
    vec![
        Table {
            head: vec![
                ("threads", ""),
                ("decode", "tok/s"),
                ("prefill", "tok/s"),
                ("weights", "GB/s"),
                ("file read", "GB/s"),
            ],
            columns: vec![
                curves.threads.iter().map(|at| at.threads.to_string()).collect(),
                of_threads(|at| at.decode_tps),
                of_threads(|at| at.prefill_tps),
                of_threads(|at| at.weight_gbps),
                of_threads(|at| at.read_gbps),
            ],
        },
        Table {
            head: vec![("sequences", ""), ("decode", "tok/s"), ("each", "tok/s"), ("step", "ms")],
            columns: vec![
                curves.sequences.iter().map(|at| at.sequences.to_string()).collect(),
                of_sequences(|at| at.decode_tps),
                of_sequences(|at| at.decode_tps / at.sequences as f64),
                of_sequences(|at| 1e3 * at.sequences as f64 / at.decode_tps),
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilayer_measure::profile::Point;

    #[test]
    fn columns_stand_below_each_other_and_empty_ones_are_left_out() {
        let point = |n: u32, decode_ms: f64| Point {
            gpu_layers: n,
            map: String::new(),
            decode_ms,
            predicted_decode_ms: None,
            prefill_tps: 100.5,
            predicted_prefill_tps: None,
            streamed_prefill_tps: None,
            speedup: 12.5 / decode_ms,
            marginal: (n > 0).then_some(12.5 - decode_ms),
            cpu_ms: 4.0,
            gpu_ms: 1.5,
            crossing_ms: 0.25,
            idle_ms: f64::NAN,
            expert_hit_rate: None,
            expected_expert_hit_rate: None,
            gpu_bytes: (n < 2).then_some(u64::from(n) << 20),
            gpu_held_bytes: None,
            fits: n < 2,
        };
        let mut profile = Profile {
            model: "m".to_owned(),
            parameters: 1,
            bytes: 1,
            gpu: "a".to_owned(),
            cpu: "c".to_owned(),
            threads: 1,
            context: 1,
            prompt_tokens: 1,
            streamed_prompt_tokens: None,
            rounds: 1,
            points: vec![point(0, 12.5), point(1, 5.0), point(2, 4.0), point(3, f64::NAN)],
            knee: 1,
            recommended: 1,
            why: "because".to_owned(),
            timeline: Vec::new(),
            steps: Vec::new(),
            read_gbps: 1.0,
            curves: None,
        };
        let expected = "\
N  decode  speedup  saved   cpu   gpu  crossing  prefill  memory
       ms        x     ms    ms    ms        ms    tok/s     MiB
0   12.50     1.00      -  4.00  1.50     0.250    100.5       0
1    5.00     2.50  +7.50  4.00  1.50     0.250    100.5       1  recommended, knee
2    4.00     3.12  +8.50  4.00  1.50     0.250    100.5       -  does not fit
3       -        -      -  4.00  1.50     0.250    100.5       -  does not fit

recommended: -ngl 1
because
";
        assert_eq!(text(&profile), expected);
        profile.streamed_prompt_tokens = Some(512);
        profile.points[1].streamed_prefill_tps = Some(400.0);
        let lines = text(&profile);
        let named = "\nprefill: a prompt of 1 tokens; streamed: one of 512\nrecommended: ";
        assert!(lines.contains(" streamed ") && lines.contains(named), "{lines}");
    }
}
