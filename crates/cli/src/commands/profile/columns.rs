//! The columns of a profile's table, for the terminal and for the page.

use bilayer_measure::profile::{Point, Profile};

/// A column: one value of each point.
pub struct Column {
    pub title: &'static str,
    pub unit: &'static str,
    /// The name in the JSON document; columns without one are computed for readers.
    pub key: Option<&'static str>,
    value: fn(&Point) -> Option<f64>,
    /// Values are divided by this before printing.
    scale: f64,
    /// Whether positive numbers have a sign too.
    signed: Sign,
    /// A count: printed without decimals if all values are whole numbers.
    counted: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Needed,
    Always,
}

/// A number and its printed form.
pub struct Cell {
    pub value: f64,
    pub text: String,
}

const COLUMN: Column = Column {
    title: "",
    unit: "",
    key: None,
    value: |_| None,
    scale: 1.0,
    signed: Sign::Needed,
    counted: false,
};

const COLUMNS: [Column; 17] = [
    Column {
        title: "N",
        key: Some("gpu_layers"),
        value: |p| Some(f64::from(p.gpu_layers)),
        counted: true,
        ..COLUMN
    },
    Column {
        title: "decode",
        unit: "ms",
        key: Some("decode_ms"),
        value: |p| Some(p.decode_ms),
        ..COLUMN
    },
    Column {
        title: "predicted",
        unit: "ms",
        key: Some("predicted_decode_ms"),
        value: |p| p.predicted_decode_ms,
        ..COLUMN
    },
    Column {
        title: "error",
        unit: "%",
        value: Point::error,
        scale: 0.01,
        signed: Sign::Always,
        ..COLUMN
    },
    Column {
        title: "speedup",
        unit: "x",
        key: Some("speedup"),
        value: |p| Some(p.speedup),
        ..COLUMN
    },
    Column {
        title: "saved",
        unit: "ms",
        key: Some("marginal"),
        value: |p| p.marginal,
        signed: Sign::Always,
        ..COLUMN
    },
    Column { title: "cpu", unit: "ms", key: Some("cpu_ms"), value: |p| Some(p.cpu_ms), ..COLUMN },
    Column { title: "gpu", unit: "ms", key: Some("gpu_ms"), value: |p| Some(p.gpu_ms), ..COLUMN },
    Column {
        title: "crossing",
        unit: "ms",
        key: Some("crossing_ms"),
        value: |p| Some(p.crossing_ms),
        ..COLUMN
    },
    Column {
        title: "idle",
        unit: "ms",
        key: Some("idle_ms"),
        value: |p| Some(p.idle_ms),
        ..COLUMN
    },
    Column {
        title: "prefill",
        unit: "tok/s",
        key: Some("prefill_tps"),
        value: |p| Some(p.prefill_tps),
        ..COLUMN
    },
    Column {
        title: "predicted",
        unit: "tok/s",
        key: Some("predicted_prefill_tps"),
        value: |p| p.predicted_prefill_tps,
        ..COLUMN
    },
    Column {
        title: "streamed",
        unit: "tok/s",
        key: Some("streamed_prefill_tps"),
        value: |p| p.streamed_prefill_tps,
        ..COLUMN
    },
    Column {
        title: "experts",
        unit: "%",
        key: Some("expert_hit_rate"),
        value: |p| p.expert_hit_rate,
        scale: 0.01,
        ..COLUMN
    },
    Column {
        title: "expected",
        unit: "%",
        key: Some("expected_expert_hit_rate"),
        value: |p| p.expected_expert_hit_rate,
        scale: 0.01,
        ..COLUMN
    },
    Column {
        title: "memory",
        unit: "MiB",
        key: Some("gpu_bytes"),
        value: |p| p.gpu_bytes.map(|bytes| bytes as f64),
        scale: (1 << 20) as f64,
        counted: true,
        ..COLUMN
    },
    Column {
        title: "held",
        unit: "MiB",
        key: Some("gpu_held_bytes"),
        value: |p| p.gpu_held_bytes.map(|bytes| bytes as f64),
        scale: (1 << 20) as f64,
        ..COLUMN
    },
];

/// The columns with at least one number, each with a cell per point.
pub fn filled(profile: &Profile) -> Vec<(&'static Column, Vec<Option<Cell>>)> {
    let filled = COLUMNS.iter().map(|column| (column, column.cells(&profile.points)));
    filled.filter(|(_, cells)| cells.iter().any(Option::is_some)).collect()
}

/// The knee of the curve, if it lies between the first and the last point.
pub fn bend(profile: &Profile) -> Option<u32> {
    let last = profile.points.iter().rfind(|p| p.is_measured())?.gpu_layers;
    Some(profile.knee).filter(|&knee| 0 < knee && knee < last)
}

/// Remarks on a point.
pub fn remarks(profile: &Profile, point: &Point) -> Vec<&'static str> {
    let remarks = [
        (point.gpu_layers == profile.recommended, "recommended"),
        (Some(point.gpu_layers) == bend(profile), "knee"),
        (!point.fits, "does not fit"),
    ];
    remarks.into_iter().filter_map(|(holds, remark)| holds.then_some(remark)).collect()
}

impl Column {
    /// Formats the numbers of the column with the same number of decimals, so that they align.
    fn cells(&self, points: &[Point]) -> Vec<Option<Cell>> {
        let value = |point: &Point| (self.value)(point).filter(|value| value.is_finite());
        let most =
            points.iter().filter_map(value).map(|v| (v / self.scale).abs()).fold(0.0, f64::max);
        let whole = self.counted
            && points.iter().filter_map(value).all(|v| (v / self.scale).fract() == 0.0);
        let places = match most {
            _ if whole => 0,
            most if most >= 1000.0 => 0,
            most if most >= 100.0 => 1,
            most if most >= 1.0 => 2,
            _ => 3,
        };
        let cell = |value: f64| {
            let shown = value / self.scale;
            let text = match self.signed {
                Sign::Always => format!("{shown:+.places$}"),
                Sign::Needed => format!("{shown:.places$}"),
            };
            Cell { value, text }
        };
        points.iter().map(|point| value(point).map(cell)).collect()
    }
}
