//! A profile as an aligned table for the terminal.

use bilayer_measure::profile::Profile;

use super::columns;

/// The table, the recommendation and its reason; ends with a line break.
pub fn text(profile: &Profile) -> String {
    let columns = columns::filled(profile);
    let mut rows = vec![String::new(); profile.points.len() + 2];
    for (column, cells) in &columns {
        let texts = cells.iter().map(|cell| cell.as_ref().map_or("-", |cell| cell.text.as_str()));
        let texts: Vec<&str> = [column.title, column.unit].into_iter().chain(texts).collect();
        let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        for (row, text) in rows.iter_mut().zip(texts) {
            let gap = if row.is_empty() { "" } else { "  " };
            *row += &format!("{gap}{text:>width$}");
        }
    }
    for (row, point) in rows[2..].iter_mut().zip(&profile.points) {
        let remarks = columns::remarks(profile, point).join(", ");
        if !remarks.is_empty() {
            *row += &format!("  {remarks}");
        }
    }
    let table: Vec<&str> = rows.iter().map(|row| row.trim_end()).collect();
    format!("{}\n\nrecommended: -ngl {}\n{}\n", table.join("\n"), profile.recommended, profile.why)
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
            gpu_bytes: u64::from(n) << 20,
            gpu_held_bytes: None,
            fits: n < 2,
        };
        let profile = Profile {
            model: "m".to_owned(),
            parameters: 1,
            bytes: 1,
            gpu: "a".to_owned(),
            cpu: "c".to_owned(),
            threads: 1,
            context: 1,
            prompt_tokens: 1,
            rounds: 1,
            points: vec![point(0, 12.5), point(1, 5.0), point(2, 4.0), point(3, f64::NAN)],
            knee: 1,
            recommended: 1,
            why: "because".to_owned(),
            timeline: Vec::new(),
            steps: Vec::new(),
            read_gbps: 1.0,
        };
        let expected = "\
N  decode  speedup  saved   cpu   gpu  crossing  prefill  memory
       ms        x     ms    ms    ms        ms    tok/s     MiB
0   12.50     1.00      -  4.00  1.50     0.250    100.5       0
1    5.00     2.50  +7.50  4.00  1.50     0.250    100.5       1  recommended, knee
2    4.00     3.12  +8.50  4.00  1.50     0.250    100.5       2  does not fit
3       -        -      -  4.00  1.50     0.250    100.5       3  does not fit

recommended: -ngl 1
because
";
        assert_eq!(text(&profile), expected);
    }
}
