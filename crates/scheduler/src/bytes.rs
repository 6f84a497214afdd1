//! Sizes in bytes: their text, and sums that do not overflow.

use std::fmt;

/// A size in bytes, formatted in a suitable unit with three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Parses a size such as `24GiB`; a number without a unit is multiplied by two to the power of `bare`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(given: &str, bare: u32) -> Result<Bytes, String> {
        let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
        let (number, unit) = given.split_at(end);
        let power = match unit.trim().to_ascii_lowercase().as_str() {
            "" => bare,
            "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => {
                return Err(
                    "it must be a size such as 24GiB, 512MiB or a number of bytes".to_owned()
                );
            }
        };
        let number: f64 = number.parse().map_err(|_| "it must begin with a number".to_owned())?;
        Ok(Bytes((number * f64::from(power).exp2()) as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut size = self.0 as f64;
        let mut unit = 0;
        // 999.5 would print as 1000.
        while size >= 999.5 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        let decimals = match size {
            _ if unit == 0 => 0,
            size if size < 9.995 => 2,
            size if size < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{size:.decimals$} {}", UNITS[unit]))
    }
}

/// A saturating sum: a hostile file's numbers must not overflow it, and the maximum fits nowhere.
pub(crate) fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn sizes_print_in_their_unit() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (999 << 20, "999 MiB"),
            (1000 << 20, "0.98 GiB"),
            (123 << 30, "123 GiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
        assert_eq!(format!("[{:>9}]", Bytes(1536)), "[ 1.50 KiB]");
    }
}
