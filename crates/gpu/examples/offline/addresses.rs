//! Which lines of memory and which banks of workgroup memory the matrix products touch, by executing their index
//! arithmetic.

use std::collections::{BTreeMap, HashMap};

use bilayer_gpu::caps::{Caps, Input};
use bilayer_gpu::kernel::Source;
use bilayer_gpu::kernels::matmul::{
    COLUMNS_TILED, Epilogue, GemvKey, GemvParams, Matrix, input_of, rows_of,
};
use bilayer_gpu::kernels::view::View;
use bilayer_gpu::kernels::weights::is_native;
use bilayer_quant::Type;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use rayon::prelude::*;

use crate::cost::{self, Cost};
use crate::interpret;
use crate::kernels::Wanted;

/// Rows of the matrix.
const ROWS: u32 = 4096;

/// Prints `@ name` and lines `key=value` of each product: costs of a workgroup in one round of its main loop, as the
/// difference between two rows of different length.
pub fn run(wanted: &Wanted) -> Result<(), String> {
    let mut products = BTreeMap::new();
    for profile in wanted.profiles() {
        for key in keys(&profile.caps) {
            let source = key.source(&profile.caps);
            if !wanted.has(&source) {
                continue;
            }
            let subgroup = profile.caps.coop.map_or(LANES as u32, |coop| coop.subgroup);
            products.insert(source.name.clone(), (key, source, subgroup));
        }
    }
    let said = products.par_iter().map(|(name, (key, source, subgroup))| {
        section(key, source, *subgroup).map_err(|error| format!("{name}: {error}"))
    });
    said.collect::<Result<Vec<String>, String>>()?.iter().for_each(|said| print!("{said}"));
    Ok(())
}

/// The products of decode and of prefill, of every type with a loader.
fn keys(caps: &Caps) -> Vec<GemvKey> {
    let mut keys = Vec::new();
    for ty in bilayer_quant::all().iter().copied().filter(|ty| is_native(*ty)) {
        let key = |columns, input, rows| GemvKey::plain(ty, columns, rows, input);
        for input in [Input::Floats, input_of(caps, ty, 1)] {
            keys.push(key(1, input, rows_of(caps, input, 1, Epilogue::Plain, ROWS)));
        }
        for tile in caps.tiles() {
            let caps = Caps { tile, ..caps.clone() };
            let input = input_of(&caps, ty, COLUMNS_TILED);
            let rows = rows_of(&caps, input, COLUMNS_TILED, Epilogue::Plain, ROWS);
            keys.push(key(COLUMNS_TILED, input, rows));
        }
    }
    keys
}

/// What a round of the main loop costs.
fn section(key: &GemvKey, source: &Source, subgroup: u32) -> Result<String, String> {
    let module = naga::front::wgsl::parse_str(&source.wgsl)
        .map_err(|error| error.emit_to_string(&source.wgsl))?;
    let mut validator = Validator::new(ValidationFlags::empty(), Capabilities::all());
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(&source.wgsl))?;
    let kernel = Kernel { key, source, subgroup, module, info };
    // Threads of a product with few columns take a unit of 64 weights each in a round, those of a tile one together.
    let units = if key.columns == COLUMNS_TILED { 1 } else { source.workgroup[0] as usize };
    let [short, long] = [2, 3].map(|rounds| kernel.cost(rounds * units * 64));
    let round = long?.beyond(short?);
    let values = [
        ("loads", round.loads),
        ("lines", round.lines),
        ("cache clocks", round.cache_clocks),
        ("bank clocks", round.bank_clocks),
        ("bank clocks without conflicts", round.bank_clocks_least),
        ("weight bytes", round.weight_bytes),
    ];
    let lines = values.map(|(name, value)| format!("{name}={value}\n"));
    Ok(format!("@ {}\n{}", source.name, lines.concat()))
}

struct Kernel<'a> {
    key: &'a GemvKey,
    source: &'a Source,
    subgroup: u32,
    module: naga::Module,
    info: ModuleInfo,
}

impl Kernel<'_> {
    /// The cost of a workgroup for rows of so many weights.
    fn cost(&self, cols: usize) -> Result<Cost, String> {
        let ty: Type = self.key.ty;
        let row_blocks = cols.div_ceil(ty.block_weights) as u32;
        let each = self.key.input.element_values();
        let mut params = GemvParams {
            x: View { at: 0, stride: (cols / each) as u32 },
            out: [0, ROWS],
            units: (cols / 64) as u32,
            rows: ROWS,
            row_blocks,
            ..GemvParams::default()
        };
        params.matrices[0] = Matrix { blocks: ROWS * row_blocks, ..Matrix::default() };
        // The step: as many tokens and outputs as a tile has columns.
        let storage = HashMap::from([(1, vec![self.key.columns; 8])]);
        let inputs = interpret::Inputs {
            params: bytemuck::bytes_of(&params),
            storage: &storage,
            workgroup: [1, 0, 0],
            subgroup: self.subgroup,
        };
        let threads = (0..self.source.workgroup[0])
            .map(|thread| interpret::accesses(&self.module, &self.info, &inputs, thread));
        let threads = threads.collect::<Result<Vec<_>, _>>()?;
        // Weights are bound last, as vectors and as words.
        let last = self.source.bindings.len() as u32;
        let lanes = (self.source.workgroup[0] as usize).min(LANES);
        Ok(cost::of(&threads, lanes, |binding| binding + 1 >= last))
    }
}

/// Lanes that memory serves at once.
const LANES: usize = 32;

#[cfg(test)]
mod tests {
    use bilayer_gpu::profiles;
    use bilayer_quant::Type;

    use super::{keys, section};

    /// Of one type with every form of input, whose kernels have all arguments that any has.
    #[test]
    fn products_of_every_form_are_executed() {
        let rdna3 = profiles::all().into_iter().find(|profile| profile.name == "rdna3");
        let caps = rdna3.expect("a profile with cooperative matrices").caps;
        let subgroup = caps.coop.expect("matrices").subgroup;
        for key in keys(&caps).iter().filter(|key| key.ty == Type::Q8_0) {
            let source = key.source(&caps);
            let said = section(key, &source, subgroup);
            let said = said.unwrap_or_else(|error| panic!("{}: {error}", source.name));
            assert!(!said.contains("weight bytes=0\n"), "{said}");
        }
    }
}
