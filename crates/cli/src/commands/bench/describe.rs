//! Descriptions of model, build and time in llama-bench's format.

use std::time::{SystemTime, UNIX_EPOCH};

use bilayer_convert::mix::Mix;
use bilayer_engine::Model;
use bilayer_gguf::Value;
use bilayer_quant::Type;

/// Architecture, size and type of the weights: `llama 1.24B Q4_K - Medium`.
pub fn model_type(model: &Model) -> String {
    let metadata = model.file().metadata();
    let architecture = metadata.str("general.architecture").unwrap_or("?");
    let parameters = parameters(model);
    let size = match parameters as f64 {
        n if n >= 1e9 => format!("{:.2}B", n / 1e9),
        n => format!("{:.2}M", n / 1e6),
    };
    format!("{architecture} {size} {}", weights(model)).escape_debug().to_string()
}

/// Number of weights in all tensors of the file.
pub fn parameters(model: &Model) -> u64 {
    model.file().tensors().iter().map(|tensor| tensor.layout().elements()).sum()
}

/// Bytes of all tensors.
pub fn bytes(model: &Model) -> u64 {
    model.file().tensors().iter().map(|tensor| tensor.layout().len_bytes()).sum()
}

/// The mix declared in the file, otherwise the type of most bytes.
fn weights(model: &Model) -> String {
    let named = match model.file().metadata().get("general.file_type") {
        Some(Value::U32(id)) => Mix::all().iter().find(|mix| mix.file_type == Some(*id)),
        _ => None,
    };
    if let Some(mix) = named {
        return spelled(mix.name);
    }
    let mut sizes: Vec<(Type, u64)> = Vec::new();
    for tensor in model.file().tensors() {
        let (ty, bytes) = (tensor.layout().ty(), tensor.layout().len_bytes());
        match sizes.iter_mut().find(|(known, _)| *known == ty) {
            Some((_, sum)) => *sum += bytes,
            None => sizes.push((ty, bytes)),
        }
    }
    let most = sizes.iter().max_by_key(|(_, bytes)| *bytes);
    most.map_or("?".to_owned(), |(ty, _)| ty.name.to_owned())
}

/// `Q4_K - Medium` of `Q4_K_M`.
fn spelled(mix: &str) -> String {
    let sizes = [("_K_S", "Small"), ("_K_M", "Medium"), ("_K_L", "Large")];
    match sizes.iter().find(|(end, _)| mix.ends_with(end)) {
        Some((_, size)) => format!("{} - {size}", &mix[..mix.len() - 2]),
        None => mix.to_owned(),
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// RFC 3339 in UTC: `2026-11-21T08:56:53Z`.
pub fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, chrono-compatible date algorithms, civil_from_days: eras of 400 years from 1 March of year 0.
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march / 146_097, from_march % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS +%FT%TZ`.
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_795_251_413, "2026-11-21T08:56:53Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(timestamp(seconds), expected);
        }
    }

    #[test]
    fn mixes_are_spelled_as_llama_cpp_does() {
        let cases = [("Q4_K_M", "Q4_K - Medium"), ("Q3_K_L", "Q3_K - Large"), ("Q8_0", "Q8_0")];
        for (mix, expected) in cases {
            assert_eq!(spelled(mix), expected);
        }
        assert_eq!(spelled("Q2_K_S"), "Q2_K - Small");
    }
}
