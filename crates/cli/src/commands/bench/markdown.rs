//! Results as a table: llama-bench's columns, then the bandwidth at which weights were read and its share of the
//! measured read bandwidth.

use bilayer_cpu::numa::Numa;
use bilayer_engine::placement::SplitMode;
use serde_json::Value;

use super::record::{Record, plain};
use super::settings::{SETTINGS, Setting, Side};
use crate::args::{Bench as Args, FlashAttn};
use crate::version;

/// A column of the table.
pub struct Column {
    field: &'static str,
    head: &'static str,
    width: usize,
    side: Side,
}

/// The optional columns to show: settings with several values or one that is not the default.
pub fn varied(args: &Args) -> Vec<&'static str> {
    let (model, placing) = (&args.model, &args.placing);
    let many =
        |lists: &[crate::args::Numbers], usual: usize| lists.len() != 1 || lists[0].0 != [usual];
    let f16 = |types: &[bilayer_quant::Type]| types == [bilayer_quant::Type::F16];
    let checks = [
        ("n_cpu_moe", many(&placing.n_cpu_moe, 0)),
        ("n_threads", true),
        ("cpu_level", !model.cpu_level.is_empty()),
        ("numa", model.numa != [Numa::Off]),
        ("n_batch", many(&model.batch_size, 2048)),
        ("n_ubatch", many(&model.ubatch_size, 512)),
        ("type_k", !f16(&model.cache_type_k)),
        ("type_v", !f16(&model.cache_type_v)),
        ("k_cache_hadamard", model.k_cache_hadamard != [false]),
        ("fast_prefill", model.fast_prefill != [false]),
        ("no_kv_offload", placing.no_kv_offload != [false]),
        ("flash_attn", model.flash_attn != [FlashAttn::Auto]),
        ("split_mode", placing.adapter.split_mode == SplitMode::None),
        ("main_gpu", placing.adapter.main_gpu.is_some()),
        ("devices", placing.adapter.device.is_some()),
        ("tensor_split", placing.adapter.tensor_split.is_some()),
        ("use_mmap", model.no_mmap || model.mmap != [true]),
        ("tensor_buft_overrides", !placing.adapter.override_tensor.is_empty()),
        ("no_op_offload", placing.adapter.no_op_offload),
    ];
    checks.into_iter().filter(|(_, is_varied)| *is_varied).map(|(field, _)| field).collect()
}

/// The columns, once the first result is known. The number of layers has one if there is a GPU.
pub fn columns(first: &Record<'_>, varied: &[&str]) -> Vec<Column> {
    let with_adapter =
        first.own_fields().iter().any(|(name, value)| *name == "adapter" && !value.is_null());
    let column = |field, head, width, side| Column { field, head, width, side };
    let mut columns = vec![
        column("model", "model", 30, Side::Left),
        column("size", "size", 10, Side::Right),
        column("params", "params", 10, Side::Right),
        column("backend", "backend", 10, Side::Left),
    ];
    let is_shown = |field: &str| varied.contains(&field) || field == "n_gpu_layers" && with_adapter;
    columns.extend(
        SETTINGS
            .iter()
            .filter(|setting| is_shown(setting.field))
            .map(|&Setting { field, head, width, side, .. }| column(field, head, width, side)),
    );
    columns.extend([
        column("test", "test", 15, Side::Right),
        column("t/s", "t/s", 20, Side::Right),
        column("weight_gbps", "GB/s", 8, Side::Right),
        column("probe_share", "of read", 7, Side::Right),
    ]);
    columns
}

/// Headings and rule.
pub fn head(columns: &[Column]) -> String {
    let heads = line(columns, |column| column.head.to_owned());
    let rules = line(columns, |column| {
        let dashes = "-".repeat(column.width - 1);
        if column.side == Side::Right { dashes + ":" } else { dashes + "-" }
    });
    heads + &rules
}

/// One result.
pub fn row(columns: &[Column], record: &Record<'_>) -> String {
    let fields: Vec<(&str, Value)> =
        record.fields().into_iter().chain(record.own_fields()).collect();
    let value = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, v)| v);
    let text = |name: &str| value(name).map_or(String::new(), plain);
    let number = |name: &str| value(name).and_then(Value::as_f64);
    line(columns, |column| match column.field {
        "model" => text("model_type"),
        "size" => match number("model_size").unwrap_or(0.0) / f64::from(1 << 20) {
            mebibytes if mebibytes < 1024.0 => format!("{mebibytes:.2} MiB"),
            mebibytes => format!("{:.2} GiB", mebibytes / 1024.0),
        },
        "params" => match number("model_n_params").unwrap_or(0.0) {
            parameters if parameters < 1e9 => format!("{:.2} M", parameters / 1e6),
            parameters => format!("{:.2} B", parameters / 1e9),
        },
        "backend" => text("backends"),
        "test" => record.measured.test.to_string(),
        "t/s" => {
            let (mean, deviation) = (number("avg_ts"), number("stddev_ts"));
            format!("{:.2} ± {:.2}", mean.unwrap_or(0.0), deviation.unwrap_or(0.0))
        }
        "weight_gbps" => number("weight_gbps").map_or(String::new(), |gbps| format!("{gbps:.2}")),
        "probe_share" => {
            number("probe_share").map_or(String::new(), |share| format!("{:.0} %", 100.0 * share))
        }
        other => text(other),
    })
}

fn line(columns: &[Column], cell: impl Fn(&Column) -> String) -> String {
    let mut line = String::from("|");
    for column in columns {
        // A bar would end the cell.
        let (text, width) = (cell(column).replace('|', "\\|"), column.width);
        line += &match column.side {
            Side::Left => format!(" {text:<width$} |"),
            Side::Right => format!(" {text:>width$} |"),
        };
    }
    line + "\n"
}

/// What is said below the table: the build, then machine and kernels, each once.
#[derive(Default)]
pub struct Footer {
    lines: Vec<String>,
    kernels: Vec<String>,
}

impl Footer {
    /// Takes up what a result ran on.
    pub fn add(&mut self, record: &Record<'_>) {
        let fields: Vec<(&str, Value)> =
            record.fields().into_iter().chain(record.own_fields()).collect();
        let value = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, v)| v);
        let text = |name: &str| value(name).map_or(String::new(), plain);
        let mut line = format!("cpu: {}, {}", text("cpu_info"), text("cpu_level"));
        if let Some(adapter) = value("adapter").and_then(Value::as_str) {
            line += &format!(" | adapter: {adapter}");
        }
        line += &format!(" | placement: {}", text("placement"));
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
        for kernel in value("kernels").and_then(Value::as_array).into_iter().flatten() {
            let kernel = plain(kernel);
            if !self.kernels.contains(&kernel) {
                self.kernels.push(kernel);
            }
        }
    }

    /// The lines.
    pub fn text(&self) -> String {
        let (build, number) = (version::COMMIT, version::build_number());
        let (lines, kernels) = (self.lines.join("\n"), self.kernels.join(", "));
        format!("\nbuild: {build} ({number})\n{lines}\nkernels: {kernels}\n")
    }
}
